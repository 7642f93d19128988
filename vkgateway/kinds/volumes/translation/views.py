"""Narrow views of claims, volumes and storage classes, for tenant and compute clusters alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, GROUP, POOL_LABEL
from vkgateway.api.objects import Meta, Object
from vkgateway.api.quantity import Quantity
from vkgateway.kinds.context import HOSTNAME_LABEL, PoolContext

PROVISIONER: Final = f"storage.{GROUP}"
"""Provisioner in a tenant's storage classes and volumes: the gateway."""
STORAGE: Final = "storage"
"""Resource that claims request and volumes offer."""
WAIT_FOR_CONSUMER: Final = "WaitForFirstConsumer"
DEFAULT_CLASS_ANNOTATION: Final = "storageclass.kubernetes.io/is-default-class"
PROVISIONAL_ANNOTATION: Final = "vkgateway.io/provisional"
"""Annotation of a tenant's volume without a compute volume, which waits for its first consumer."""
PROVISIONER_ANNOTATIONS: Final = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)
"""Annotations by which a cluster's controller requests the volume of a claim from a provisioner."""
SELECTED_NODE_ANNOTATION: Final = "volume.kubernetes.io/selected-node"
"""Annotation of a claim that waits for its first consumer: the node that the scheduler selected."""
_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"


class _ResourceRequests(msgspec.Struct, gc=False):
    requests: dict[str, Quantity] = {}


class ClaimSpec(msgspec.Struct, kw_only=True, rename="camel"):
    """Spec of a claim."""

    access_modes: tuple[str, ...] = ()
    resources: _ResourceRequests = msgspec.field(default_factory=_ResourceRequests)
    volume_mode: str = "Filesystem"
    storage_class_name: str | None = None
    volume_name: str = ""
    selector: Object | None = None
    data_source: Object | None = None
    data_source_ref: Object | None = None
    volume_attributes_class_name: str | None = None


class ClaimStatus(msgspec.Struct, kw_only=True, rename="camel"):
    """Status of a claim."""

    phase: str = "Pending"
    capacity: dict[str, Quantity] = {}
    conditions: tuple[Object, ...] = ()
    allocated_resources: dict[str, Quantity] = {}
    allocated_resource_statuses: dict[str, str] = {}


class ClaimView(msgspec.Struct, kw_only=True, rename="camel"):
    """PersistentVolumeClaim."""

    metadata: Meta
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)

    @property
    def class_name(self) -> str:
        """Storage class, also from the deprecated annotation. Empty: none is named."""
        return self.metadata.annotations.get(_CLASS_ANNOTATION) or self.spec.storage_class_name or ""

    @property
    def requested_storage(self) -> Quantity:
        """Requested storage."""
        return self.spec.resources.requests.get(STORAGE, "0")

    @property
    def storage_capacity(self) -> Quantity | None:
        """Capacity, or None before the claim is bound."""
        return self.status.capacity.get(STORAGE)

    @property
    def is_bound(self) -> bool:
        """Whether the claim is bound."""
        return self.status.phase == "Bound"

    @property
    def is_deleting(self) -> bool:
        """Whether the claim is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def provisioner_name(self) -> str:
        """Provisioner that must create the volume, empty until one is requested."""
        annotations = self.metadata.annotations
        return next((annotations[key] for key in PROVISIONER_ANNOTATIONS if key in annotations), "")

    @property
    def selected_node(self) -> str:
        """Node that the scheduler selected for the volume, or ""."""
        return self.metadata.annotations.get(SELECTED_NODE_ANNOTATION, "")


class ClaimReference(msgspec.Struct, kw_only=True, gc=False):
    """Claim that a volume is reserved for."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class _CSISource(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    driver: str = ""
    volume_handle: str = ""


class VolumeSpec(msgspec.Struct, kw_only=True, rename="camel"):
    """Spec of a volume."""

    capacity: dict[str, Quantity] = {}
    claim_ref: ClaimReference | None = None
    csi: _CSISource | None = None
    persistent_volume_reclaim_policy: str = "Retain"
    node_affinity: Object | None = None


class VolumeStatus(msgspec.Struct, kw_only=True):
    """Phase of a volume: `Available`, `Bound`, `Released`, ..."""

    phase: str = "Pending"


class VolumeView(msgspec.Struct, kw_only=True, rename="camel"):
    """PersistentVolume."""

    metadata: Meta
    spec: VolumeSpec = msgspec.field(default_factory=VolumeSpec)
    status: VolumeStatus = msgspec.field(default_factory=VolumeStatus)

    @property
    def volume_handle(self) -> str:
        """Handle of a volume of the gateway, empty for other volumes. It is immutable."""
        source = self.spec.csi
        return source.volume_handle if source is not None and source.driver == PROVISIONER else ""

    @property
    def storage_capacity(self) -> Quantity | None:
        """Capacity of the volume."""
        return self.spec.capacity.get(STORAGE)

    @property
    def compute_cluster(self) -> str:
        """Compute cluster of the volume, empty if it is not recorded."""
        return self.metadata.labels.get(COMPUTE_CLUSTER_LABEL, "")

    @property
    def is_provisional(self) -> bool:
        """Whether the volume has no compute volume yet."""
        return PROVISIONAL_ANNOTATION in self.metadata.annotations

    @property
    def is_released(self) -> bool:
        """Whether the volume must be deleted: it is being deleted, or was released with reclaim policy Delete."""
        released = self.status.phase == "Released" and self.spec.persistent_volume_reclaim_policy == "Delete"
        return released or self.metadata.deletion_timestamp is not None


class StorageClassView(msgspec.Struct, kw_only=True, rename="camel"):
    """StorageClass without its parameters."""

    metadata: Meta
    reclaim_policy: str = "Delete"
    volume_binding_mode: str = "Immediate"
    allow_volume_expansion: bool = False
    allowed_topologies: tuple[Any, ...] = ()

    @property
    def waits_for_consumer(self) -> bool:
        """Whether volumes are provisioned only once a pod that uses them has a node."""
        return self.volume_binding_mode == WAIT_FOR_CONSUMER

    @property
    def is_default(self) -> bool:
        """Whether claims that name no class get this one."""
        return self.metadata.annotations.get(DEFAULT_CLASS_ANNOTATION) == "true"


decode_claim: Final = msgspec.json.Decoder(ClaimView).decode
decode_volume: Final = msgspec.json.Decoder(VolumeView).decode
decode_class: Final = msgspec.json.Decoder(StorageClassView).decode


def select_label(selected: Sequence[PoolContext], candidates: Sequence[PoolContext]) -> tuple[str, list[str]] | None:
    """Return key and values of a label that selects the `selected` virtual nodes among the `candidates` of a cluster.

    The key is the pool's label if whole pools are selected, else the host name's. None: all are selected.
    """
    if len(selected) == len(candidates):
        return None
    pools = {pool.name for pool in selected}
    if all(pool in selected for pool in candidates if pool.name in pools):
        return POOL_LABEL, sorted(pools)
    return HOSTNAME_LABEL, sorted(pool.node_name for pool in selected)
