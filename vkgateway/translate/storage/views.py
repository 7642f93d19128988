"""Claims, volumes and storage classes as narrow as they are needed, of tenants and of compute clusters alike."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from vkgateway.model.names import COMPUTE_CLUSTER_LABEL, GROUP
from vkgateway.model.objects import Meta, Object
from vkgateway.model.quantity import Quantity

PROVISIONER: Final = f"storage.{GROUP}"
"""Who makes a tenant's volumes, as its storage classes and volumes name it: the gateway."""
STORAGE: Final = "storage"
"""The resource that claims ask for and volumes offer."""
WAIT_FOR_CONSUMER: Final = "WaitForFirstConsumer"
DEFAULT_CLASS_ANNOTATION: Final = "storageclass.kubernetes.io/is-default-class"
PROVISIONAL_ANNOTATION: Final = "vkgateway.io/provisional"
"""On a tenant's volume: nothing stands for it below yet, since that waits for the pod that will use it first."""
PROVISIONER_ANNOTATIONS: Final = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)
"""By which a cluster's own controller asks somebody to make the volume of a claim."""
SELECTED_NODE_ANNOTATION: Final = "volume.kubernetes.io/selected-node"
"""On a claim of a class that waits for its first consumer: where the scheduler wants the volume."""
_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"


class _ResourceRequests(msgspec.Struct, gc=False):
    requests: dict[str, Quantity] = {}


class ClaimSpec(msgspec.Struct, kw_only=True, rename="camel"):
    """What is wanted of a claim."""

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
    """What there is of it."""

    phase: str = "Pending"
    access_modes: tuple[str, ...] = ()
    capacity: dict[str, Quantity] = {}
    conditions: tuple[Object, ...] = ()
    allocated_resources: dict[str, Quantity] = {}
    allocated_resource_statuses: dict[str, str] = {}


class ClaimView(msgspec.Struct, kw_only=True, rename="camel"):
    """A PersistentVolumeClaim."""

    metadata: Meta
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)

    @property
    def class_name(self) -> str:
        """Its storage class, by the old annotation, too; empty where it names none."""
        return self.metadata.annotations.get(_CLASS_ANNOTATION) or self.spec.storage_class_name or ""

    @property
    def requested_storage(self) -> Quantity:
        """How much storage it asks for."""
        return self.spec.resources.requests.get(STORAGE, "0")

    @property
    def storage_capacity(self) -> Quantity | None:
        """How much it has; None before it is bound."""
        return self.status.capacity.get(STORAGE)

    @property
    def is_bound(self) -> bool:
        """Whether it has its volume."""
        return self.status.phase == "Bound"

    @property
    def is_deleting(self) -> bool:
        """Whether it is to go."""
        return self.metadata.deletion_timestamp is not None

    @property
    def provisioner_name(self) -> str:
        """Who was asked to make its volume; empty as long as nobody was."""
        annotations = self.metadata.annotations
        return next((annotations[key] for key in PROVISIONER_ANNOTATIONS if key in annotations), "")

    @property
    def selected_node(self) -> str:
        """Where the scheduler wants its volume, or ""."""
        return self.metadata.annotations.get(SELECTED_NODE_ANNOTATION, "")


class ClaimReference(msgspec.Struct, kw_only=True, gc=False):
    """The claim that a volume is reserved for."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class _CSISource(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    driver: str = ""
    volume_handle: str = ""


class VolumeSpec(msgspec.Struct, kw_only=True, rename="camel"):
    """What a volume is."""

    capacity: dict[str, Quantity] = {}
    claim_ref: ClaimReference | None = None
    csi: _CSISource | None = None
    persistent_volume_reclaim_policy: str = "Retain"
    node_affinity: Object | None = None


class VolumeStatus(msgspec.Struct, kw_only=True):
    """Its phase: `Available`, `Bound`, `Released`, ..."""

    phase: str = "Pending"


class VolumeView(msgspec.Struct, kw_only=True, rename="camel"):
    """A PersistentVolume."""

    metadata: Meta
    spec: VolumeSpec = msgspec.field(default_factory=VolumeSpec)
    status: VolumeStatus = msgspec.field(default_factory=VolumeStatus)

    @property
    def volume_handle(self) -> str:
        """Which volume of ours it stands for; empty where it is none of ours. It cannot be changed."""
        source = self.spec.csi
        return source.volume_handle if source is not None and source.driver == PROVISIONER else ""

    @property
    def storage_capacity(self) -> Quantity | None:
        """How much it holds."""
        return self.spec.capacity.get(STORAGE)

    @property
    def compute_cluster(self) -> str:
        """Where it was last seen; empty where that was not noted."""
        return self.metadata.labels.get(COMPUTE_CLUSTER_LABEL, "")

    @property
    def is_provisional(self) -> bool:
        """Whether nothing stands for it below yet."""
        return PROVISIONAL_ANNOTATION in self.metadata.annotations

    @property
    def is_released(self) -> bool:
        """Whether it is to go, now that no claim has it: it was deleted, or released to be deleted."""
        released = self.status.phase == "Released" and self.spec.persistent_volume_reclaim_policy == "Delete"
        return released or self.metadata.deletion_timestamp is not None


class StorageClassView(msgspec.Struct, kw_only=True, rename="camel"):
    """A StorageClass, without its parameters."""

    metadata: Meta
    provisioner: str = ""
    reclaim_policy: str = "Delete"
    volume_binding_mode: str = "Immediate"
    allow_volume_expansion: bool = False
    allowed_topologies: tuple[Any, ...] = ()

    @property
    def waits_for_consumer(self) -> bool:
        """Whether its volumes are made only once a pod that uses them has a node."""
        return self.volume_binding_mode == WAIT_FOR_CONSUMER

    @property
    def is_default(self) -> bool:
        """Whether claims that name no class get this one."""
        return self.metadata.annotations.get(DEFAULT_CLASS_ANNOTATION) == "true"


decode_claim: Final = msgspec.json.Decoder(ClaimView).decode
decode_volume: Final = msgspec.json.Decoder(VolumeView).decode
decode_class: Final = msgspec.json.Decoder(StorageClassView).decode
