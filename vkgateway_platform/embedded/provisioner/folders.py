"""Claims and volumes as the provisioner sees them, and the volumes that it creates. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.api.objects import Meta, Object
from vkgateway.api.quantity import parse_quantity
from vkgateway.kinds.volumes.translation.views import STORAGE, ClaimReference, ClaimView
from vkgateway_platform.embedded.hollow.nodes import POOL_LABEL

PROVISIONER: Final = "folders.vkgateway.io"
"""Provisioner name in the storage class and in volumes."""
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
_PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
_NAME: Final = re.compile(r"pvc-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class _Folder(msgspec.Struct):
    path: str = ""


class _Spec(msgspec.Struct, kw_only=True, rename="camel"):
    claim_ref: ClaimReference | None = None
    host_path: _Folder | None = None
    persistent_volume_reclaim_policy: str = "Retain"


class _Status(msgspec.Struct):
    phase: str = "Pending"


class FolderView(msgspec.Struct, kw_only=True):
    """The part of a PersistentVolume that the provisioner reads."""

    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_ours(self) -> bool:
        """Whether this provisioner created the volume."""
        return self.metadata.annotations.get(_PROVISIONED_BY) == PROVISIONER

    @property
    def is_released(self) -> bool:
        """Whether the claim was deleted, and the data must be too."""
        return self.status.phase == "Released" and self.spec.persistent_volume_reclaim_policy == "Delete"


decode_folder: Final = msgspec.json.Decoder(FolderView).decode


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """Pending work."""

    make: list[ClaimView] = field(default_factory=list)
    grow: list[tuple[ClaimView, FolderView]] = field(default_factory=list)
    remove: list[FolderView] = field(default_factory=list)


def plan_work(claims: Iterable[ClaimView], volumes: Mapping[str, FolderView]) -> PlannedWork:
    """Compare claims with volumes (by name)."""
    found = PlannedWork(remove=[volume for volume in volumes.values() if volume.is_ours and volume.is_released])
    for claim in claims:
        if claim.is_deleting:
            continue
        volume = volumes.get(claim.spec.volume_name)
        if volume is not None and volume.is_ours and claim.is_bound:
            if claim.storage_capacity is not None and parse_quantity(claim.requested_storage) > parse_quantity(
                claim.storage_capacity
            ):
                found.grow.append((claim, volume))
        elif _wants_folder(claim) and volume_name(claim) not in volumes:
            found.make.append(claim)
    return found


def _wants_folder(claim: ClaimView) -> bool:
    return not claim.spec.volume_name and claim.provisioner_name == PROVISIONER and bool(claim.selected_node)


def volume_name(claim: ClaimView) -> str:
    """Return the name of a claim's volume and of its directory."""
    return f"pvc-{claim.metadata.uid}"


def folder_of(volume: FolderView, directory: Path) -> Path | None:
    """Return the directory of a volume; None if this provisioner would not have created such a volume."""
    name = volume.metadata.name
    created = directory / name
    source = volume.spec.host_path
    is_ours = _NAME.fullmatch(name) is not None and source is not None and source.path == str(created)
    return created if is_ours else None


def volume_for(claim: ClaimView, *, directory: Path, labels: Mapping[str, str]) -> Object:
    """Return the volume for a claim whose pod runs on a node with these labels.

    All nodes of that node's pool can use it: the real node's pool is this node, and hollow nodes use nothing.
    """
    metadata, name = claim.metadata, volume_name(claim)
    key = POOL_LABEL if POOL_LABEL in labels else HOSTNAME_LABEL
    place = {"key": key, "operator": "In", "values": [labels.get(key, "")]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {_PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {STORAGE: claim.requested_storage},
            "accessModes": list(claim.spec.access_modes),
            "volumeMode": claim.spec.volume_mode,
            "storageClassName": claim.class_name,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata.namespace,
                "name": metadata.name,
                "uid": metadata.uid,
            },
            "hostPath": {"path": str(directory / name), "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}},
        },
    }
