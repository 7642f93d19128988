"""Narrow views of pods: only the fields that reconcilers read, and the bytes that they forward or compare."""

from __future__ import annotations

import functools
import re
import zlib
from typing import Final

import msgspec

from vkgateway.api.names import (
    MIRROR_FINALIZER,
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    TENANT_LABEL,
    UID_ANNOTATION,
)
from vkgateway.api.objects import TERMINAL_PHASES, Meta
from vkgateway.api.requests import MilliResources
from vkgateway.runtime.views.annotations import FORWARDED, REQUESTS

Owner = tuple[str, str]
"""Namespace and name of the owner of pods, as returned by `owner_of`."""

_RUN_OF_CRON_JOB: Final = re.compile(r"-\d{8,}$")

_KEPT_MAX = 32 * 1024
"""Maximum size of a pod that is retained until its compute pod exists. Tenants may hold thousands of pods of 1 MB each.
"""


class _Gate(msgspec.Struct, gc=False):
    name: str = ""


class _SchedulingGroup(msgspec.Struct, rename="camel", gc=False):
    pod_group_name: str | None = None


class _WorkloadReference(msgspec.Struct, gc=False):
    name: str | None = None


class PodSpecFields(msgspec.Struct, rename="camel", gc=False):
    """Part of a pod's spec that the table and admission read."""

    node_name: str = ""
    scheduling_gates: tuple[_Gate, ...] = ()
    scheduling_group: _SchedulingGroup | None = None
    workload_ref: _WorkloadReference | None = None
    termination_grace_period_seconds: int | None = None


class _Named(msgspec.Struct, gc=False):
    name: str = ""


class _Containers(msgspec.Struct, rename="camel", gc=False):
    """Names of a pod's containers."""

    containers: tuple[_Named, ...] = ()
    init_containers: tuple[_Named, ...] = ()


class PodStatusFields(msgspec.Struct, rename="camel", gc=False):
    """Part of a pod's status that the table reads."""

    phase: str = "Pending"
    container_statuses: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class _Parts(msgspec.Struct, gc=False):
    """Result of the first pass over a pod: metadata decoded, spec and status left as bytes."""

    metadata: Meta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class _OwnerReference(msgspec.Struct, gc=False):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _TenantMeta(Meta, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    generate_name: str = ""
    owner_references: tuple[_OwnerReference, ...] = ()

    def take_controller(self) -> tuple[str, str] | None:
        """Return kind and name of the pod's controller, and drop the owner references, which have no other use."""
        references, self.owner_references = self.owner_references, ()
        return next(((one.kind, one.name) for one in references if one.controller), None)


class _TenantParts(_Parts, gc=False):
    metadata: _TenantMeta


_parts = msgspec.json.Decoder(_Parts)
_tenant_parts = msgspec.json.Decoder(_TenantParts)
_requests = msgspec.json.Decoder(MilliResources)
_spec = msgspec.json.Decoder(PodSpecFields)
_status = msgspec.json.Decoder(PodStatusFields)
_containers = msgspec.json.Decoder(_Containers)


class TenantPodView(msgspec.Struct, gc=False):
    """Tenant pod. `compute_fingerprint` covers what may change.

    `raw` is the complete object, unless it is large; it is retained until the compute pod exists.
    """

    metadata: Meta
    spec: PodSpecFields
    phase: str
    has_run: bool
    status: bytes
    fingerprint: str
    raw: bytes | None
    owner: Owner
    containers: tuple[str, ...] = ()
    """Names of the containers, with those that only initialize the pod."""
    has_controller: bool = False

    @property
    def is_terminal(self) -> bool:
        """Whether the pod's phase is final."""
        return self.phase in TERMINAL_PHASES

    @property
    def spec_state(self) -> str:
        """Identifier of the spec's state: the generation, or on servers without one the fingerprint."""
        return str(self.metadata.generation or self.fingerprint)

    @property
    def names_group(self) -> bool:
        """Whether the pod's spec names a gang."""
        group, workload = self.spec.scheduling_group, self.spec.workload_ref
        return bool((group is not None and group.pod_group_name) or (workload is not None and workload.name))


class ComputePodView(msgspec.Struct, gc=False):
    """Compute pod of a tenant pod."""

    metadata: Meta
    spec: PodSpecFields
    phase: str
    status: bytes

    @property
    def tenant_name(self) -> str:
        """Name of the tenant from the pod's label."""
        return self.metadata.labels.get(TENANT_LABEL, "")

    @property
    def tenant_key(self) -> tuple[str, str]:
        """Namespace and name of the tenant pod from the pod's annotations."""
        annotations = self.metadata.annotations
        return annotations.get(NAMESPACE_ANNOTATION, ""), annotations.get(NAME_ANNOTATION, "")

    @property
    def tenant_uid(self) -> str:
        """UID of the tenant pod from the pod's annotations."""
        return self.metadata.annotations.get(UID_ANNOTATION, "")

    @property
    def admitted_requests(self) -> MilliResources | None:
        """Recorded requests at admission, in thousandths; None if not recorded."""
        text = self.metadata.annotations.get(REQUESTS)
        try:
            return _requests.decode(text) if text is not None else None
        except msgspec.DecodeError:
            return None

    @property
    def forwarded_fingerprint(self) -> str:
        """Fingerprint of the tenant pod's last forwarded state."""
        return self.metadata.annotations.get(FORWARDED, "")

    @property
    def has_finalizer(self) -> bool:
        """Whether vkgateway's finalizer retains the pod until its end is mirrored."""
        return MIRROR_FINALIZER in self.metadata.finalizers

    @property
    def has_ended(self) -> bool:
        """Whether no container of the pod can run any longer.

        No kubelet ends a pod that was deleted before it had a node. Such a pod has never run, so its deletion is its
        end.
        """
        if self.phase in TERMINAL_PHASES:
            return True
        return self.metadata.deletion_timestamp is not None and not self.spec.node_name


def decode_tenant_pod(data: bytes) -> TenantPodView:
    """Decode a tenant pod from the bytes of its JSON object."""
    parts = _tenant_parts.decode(data)
    status = bytes(parts.status)
    fields = _status.decode(status)
    spec = bytes(parts.spec)
    metadata = parts.metadata
    controller = metadata.take_controller()
    return TenantPodView(
        metadata,
        _spec.decode(spec),
        fields.phase,
        bool(bytes(fields.container_statuses).strip(b"[] \n")),
        status,
        compute_fingerprint(metadata, spec),
        bytes(data) if len(data) <= _KEPT_MAX else None,
        owner_of(metadata.namespace, metadata.name, metadata.generate_name, controller),
        _container_names(spec),
        controller is not None,
    )


def _container_names(spec: bytes) -> tuple[str, ...]:
    found = _containers.decode(spec)
    return _shared_names(tuple(each.name for each in (*found.init_containers, *found.containers)))


@functools.lru_cache(maxsize=4096)
def _shared_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return equal names, in one object for all pods of a kind."""
    return names


def decode_compute_pod(data: bytes) -> ComputePodView:
    """Decode a compute pod from the bytes of its JSON object."""
    parts = _parts.decode(data)
    status = bytes(parts.status)
    return ComputePodView(parts.metadata, _spec.decode(parts.spec), _status.decode(status).phase, status)


def owner_of(namespace: str, name: str, generate_name: str, controller: tuple[str, str] | None) -> Owner:
    """Return the owner of a pod; `controller` is the kind and name of its controller.

    Owners are identified by name, because controllers such as JobSet re-create the owners of their pods. The runs of a
    CronJob, which are Jobs named after the minute, count as one owner. The owner of a pod without a controller is the
    pod's name, or the name that it was generated from.
    """
    if controller is None:
        return namespace, f"Pod/{generate_name or name}"
    kind, owner = controller
    return namespace, f"{kind}/{_RUN_OF_CRON_JOB.sub('', owner) if kind == 'Job' else owner}"


def compute_fingerprint(metadata: Meta, spec: bytes) -> str:
    """Return a short hash of a tenant pod's labels, annotations and spec; equal hashes mean that nothing must be
    forwarded.

    The hash only saves work: if hashes differ, the fields themselves are compared.
    """
    mark = zlib.crc32(spec)
    for part in (metadata.labels, metadata.annotations):
        mark = zlib.crc32(repr(sorted(part.items())).encode(), mark)
    return f"{mark:08x}"
