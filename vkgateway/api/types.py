"""API types of the group vkgateway.io, as the CRDs in this folder define them."""

from typing import Any, Final, Literal

import msgspec

from vkgateway.api.names import API_VERSION
from vkgateway.api.objects import Condition, Meta
from vkgateway.api.quantity import Resources

PodSecurity = Literal["privileged", "baseline", "restricted"]
"""Levels of Kubernetes' Pod Security Standards (https://kubernetes.io/docs/concepts/security/pod-security-standards/)."""

WithinTenant = Literal["LowerPriority", "Never"]

ACCEPTED: Final = "Accepted"
CONTROL_PLANE_READY: Final = "ControlPlaneReady"
VIRTUAL_NODES_READY: Final = "VirtualNodesReady"
READY: Final = "Ready"
GUARANTEE_KEPT: Final = "GuaranteeKept"
DATASTORE_WRITABLE: Final = "DatastoreWritable"
"""Neither `GuaranteeKept` nor `DatastoreWritable` is part of Ready: running pods are not affected."""
DATA_KEPT: Final = "DataKept"
"""Reason of Ready of a tenant of which only the data is left, until it is deleted or restored."""
WITHIN_BUDGET: Final = "WithinBudget"
"""Condition of tenants with a budget. It is not part of Ready: running pods are not affected."""
SPEC_EFFECTIVE: Final = "SpecEffective"
"""Condition of a Tenant. The gateway reports it only while it is False: parts of the spec have no effect now."""
CONNECTED: Final = "Connected"
PUBLISHED: Final = "Published"
"""Condition of tenants whose API server is exposed outside the management cluster. It is not part of Ready."""
POOLS_APART: Final = "PoolsApart"
"""Condition of a ComputeCluster, alongside Ready. The gateway reports the condition only while it is False."""
SCHEDULERS_READY: Final = "SchedulersReady"
"""Condition of a ComputeCluster with a pool in another scheduling mode than native. It is not part of Ready."""
IMAGES_PULLED: Final = "ImagesPulled"
"""Condition of a ComputeCluster with a pool whose nodes keep a list of images. It is not part of Ready."""

DEFAULT_KUBERNETES_VERSION: Final = "1.36.3"
DEFAULT_TEMPLATE: Final = "default"
DEFAULT_COMPUTE_CLUSTER: Final = "local"


class TenantPool(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """A pool that a tenant may use. A resource without a limit is limited by the pool alone.

    `weight` is the tenant's weight in the fair share of lent capacity. `cells` are the sizes of the cells that make up
    the guarantee of the pool's cell resource, in whole units. Without `cells`, the guarantee determines the sizes.
    """

    name: str
    compute_cluster: str = DEFAULT_COMPUTE_CLUSTER
    guarantee: Resources = {}
    limit: Resources = {}
    weight: float = 1.0
    cells: tuple[int, ...] = ()


Exposure = Literal["Refuse", "ClusterAddress", "Forward"]
"""How the gateway treats a Service that requests access from outside the cluster."""


class TenantPolicy(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """What a tenant's pods may use in compute clusters. A list names the allowed values; `*` allows all, `[]` none.

    `runtime_class_names` and `storage_class_names` map a tenant's class names to the names in the compute clusters;
    these classes are allowed, too. `default_storage_class` applies to claims without a class; if empty, the compute
    cluster's default applies. `plugin_annotations` holds prefixes of annotations, and of labels, for plug-ins of the
    compute clusters. `user_namespaces` allows pods with a user namespace (`hostUsers: false`): nodes without support
    never start such a pod. `load_balancers` and `node_ports` set the treatment of Services of these types.
    """

    pod_security: PodSecurity = "baseline"
    runtime_classes: tuple[str, ...] = ()
    runtime_class_names: dict[str, str] = {}
    storage_classes: tuple[str, ...] = ()
    storage_class_names: dict[str, str] = {}
    default_storage_class: str = ""
    image_pull_secrets: tuple[str, ...] = ("*",)
    plugin_annotations: tuple[str, ...] = ()
    user_namespaces: bool = False
    load_balancers: Exposure = "ClusterAddress"
    node_ports: Exposure = "ClusterAddress"


class TenantPreemption(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Whether a higher PriorityClass preempts lower ones of the same tenant."""

    within_tenant: WithinTenant = "LowerPriority"


ExposureType = Literal["ClusterIP", "NodePort", "LoadBalancer", "TLSRoute", "Ingress"]


class GatewayReference(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """A Gateway of the Gateway API in the management cluster; without a listener's name, any of its listeners."""

    namespace: str
    name: str
    section_name: str = ""


class ApiServerExposure(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """How clients outside the management cluster reach an API server.

    With port 0, the port is 6443 for load balancers, any for node ports, and 443 for routes. Without `source_ranges`,
    every address may connect.
    """

    type: ExposureType = "ClusterIP"
    hostname: str = ""
    port: int = 0
    annotations: dict[str, str] = {}
    load_balancer_class: str = ""
    ingress_class: str = ""
    source_ranges: tuple[str, ...] = ()
    gateway: GatewayReference | None = None


class ApiServerAccess(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Port, names and exposure of the tenant's API server. With port 0, the platform chooses the port."""

    port: int = 0
    subject_alt_names: tuple[str, ...] = ()
    exposure: ApiServerExposure = ApiServerExposure()


class TenantBudget(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Monthly budget of an extended resource, in unit-hours (GPU-hours) of a UTC month.

    With a pool, it counts and stops only what runs in the pools of this name, in any compute cluster.
    """

    resource: str
    hours: float
    pool: str = ""


class TenantControlPlane(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Where a tenant's control plane runs. Without a driver, as the gateway's settings say."""

    driver: str = ""


class TenantSpec(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Desired state of a tenant."""

    template: str = DEFAULT_TEMPLATE
    kubernetes_version: str = DEFAULT_KUBERNETES_VERSION
    pools: tuple[TenantPool, ...] = ()
    policy: TenantPolicy = TenantPolicy()
    preemption: TenantPreemption = TenantPreemption()
    budget: tuple[TenantBudget, ...] = ()
    api_server: ApiServerAccess = ApiServerAccess()
    control_plane: TenantControlPlane = TenantControlPlane()
    deletion_protection: bool = False
    delete_after: str = ""
    """RFC 3339 time from which the gateway deletes the tenant; until then, it keeps only the data. Empty: never."""


class ApiServerStatus(msgspec.Struct, kw_only=True, frozen=True):
    """Address and release of the tenant's API server."""

    url: str = ""
    port: int = 0
    version: str = ""


class TenantPoolStatus(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """A tenant's virtual node and its capacity.

    The virtual node represents a pool. If the node label `virtual_nodes_by` divides the pool, the virtual node
    represents the nodes with one `value` of the label; an empty value means nodes without the label.
    """

    name: str
    compute_cluster: str
    node_name: str
    virtual_nodes_by: str = ""
    value: str = ""
    ready: bool = False
    capacity: Resources = {}


class TenantStatus(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """Observed state of a tenant. Encoded in full, so that a merge patch also resets fields."""

    observed_generation: int = 0
    phase: Literal["Pending", "Provisioning", "Ready", "Degraded", "Deleting"] = "Pending"
    conditions: tuple[Condition, ...] = ()
    api_server: ApiServerStatus | None = None
    pools: tuple[TenantPoolStatus, ...] = ()


class Tenant(msgspec.Struct, kw_only=True, rename="camel"):
    """A team with its own Kubernetes cluster. Cluster-scoped."""

    metadata: Meta
    spec: TenantSpec = TenantSpec()
    status: TenantStatus = TenantStatus()
    api_version: str = API_VERSION
    kind: str = "Tenant"

    @property
    def is_ending(self) -> bool:
        """Whether the tenant is being deleted, with its data or for now without."""
        return self.metadata.deletion_timestamp is not None or bool(self.spec.delete_after)


class KubeconfigSecret(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Reference to a Secret of the management cluster that holds a kubeconfig."""

    namespace: str
    name: str
    key: str = "kubeconfig"


class Connection(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Connection to a compute cluster. Without a Secret, the management cluster is the compute cluster."""

    kubeconfig_secret: KubeconfigSecret | None = None


NATIVE: Final = "native"
KUEUE: Final = "kueue"
VOLCANO: Final = "volcano"
EXTERNAL: Final = "external"
SchedulingMode = Literal["native", "kueue", "volcano", "external"]
"""Which scheduler admits and evicts the gangs of a pool."""


class PoolScheduling(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Scheduler of a pool. In every mode but native, the gateway's arbiter neither starts nor evicts pods of the pool.

    `queue` is the name of the scheduler's queue, with the placeholders `{tenant}` and `{pool}`. With `manage_queues`,
    the gateway creates the queues with guarantees and limits; without, the queues of the administrator are used.
    `scheduler_name` is the scheduler of compute pods in the modes volcano and external. In the mode external, they get
    `priority_class_name`, `pod_labels` and `pod_annotations`, whose values may have placeholders (`templates.py`).
    """

    mode: SchedulingMode = "native"
    queue: str = "{tenant}.{pool}"
    manage_queues: bool = True
    scheduler_name: str = ""
    priority_class_name: str = ""
    pod_labels: dict[str, str] = {}
    pod_annotations: dict[str, str] = {}

    @property
    def has_guarantees(self) -> bool:
        """Whether guarantees of tenants count in the pool. Queues of an administrator replace them."""
        return self.manage_queues or self.mode in (NATIVE, EXTERNAL)


class PrePull(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Images that every node of a pool keeps, before a pod needs them.

    A DaemonSet mounts them as image volumes, so that kubelets pull them and never remove them as unused.
    `image_pull_secrets` are Secrets in the system namespace of the compute cluster. At most `parallelism` nodes pull at
    the same time. `pause_image` is the image of the only container.
    """

    images: tuple[str, ...] = ()
    image_pull_secrets: tuple[str, ...] = ()
    parallelism: int = 5
    pause_image: str = "registry.k8s.io/pause:3.10.1"


LowYieldsTo = Literal["GuaranteedBand", "Guarantee"]
"""Work for which low pods of other tenants are evicted: gangs of the guaranteed band, also while they borrow, or only
gangs inside their tenants' guarantees.
"""


class DefaultRunLimits(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Run limits of gangs that declare none, by band, as durations like `72h` or `1h30m`; empty: no limit."""

    guaranteed: str = ""
    low: str = ""


class Pool(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """A set of compute nodes, and the tolerations that pods need to run there.

    `levels` are the node labels of the network topology, the widest level first. `cell_resource` is the resource that
    cells are measured in; if empty, the extended resource that most nodes offer. `notice_seconds` is the time between
    the notice of an eviction and the deletion. `grace_seconds` is the longest termination grace period of an evicted
    pod. For both, None means the gateway's setting. Pods that ran for less than `brief_run_seconds` get
    `brief_notice_seconds` instead of the notice if the brief notice is shorter; None means the notice. `reserve` is the
    amount of the cell resource that borrowing leaves idle: whole units, or a share of the usable nodes' amount, like
    `5%`. `low_yields_to` is the work for which low pods of other tenants are evicted: `GuaranteedBand` or `Guarantee`.
    `enforce_run_limits` evicts gangs whose run reaches its declared limit, or else one of `default_run_limits`.
    `virtual_nodes_by` is a node label: each of its values becomes one virtual node. If empty, the pool has one virtual
    node. `passed_through` are extended resources that no node reports; the gateway forwards requests for them
    unchanged.
    """

    name: str
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    levels: tuple[str, ...] = ()
    cell_resource: str = ""
    virtual_nodes_by: str = ""
    passed_through: tuple[str, ...] = ()
    notice_seconds: int | None = None
    grace_seconds: int | None = None
    brief_run_seconds: int | None = None
    brief_notice_seconds: int | None = None
    reserve: int | str = 0
    low_yields_to: LowYieldsTo = "GuaranteedBand"
    enforce_run_limits: bool = False
    default_run_limits: DefaultRunLimits = DefaultRunLimits()
    scheduling: PoolScheduling = PoolScheduling()
    pre_pull: PrePull | None = None


class ComputeClusterSpec(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Desired state of a compute cluster."""

    connection: Connection = Connection()
    pools: tuple[Pool, ...] = ()


class PrePullStatus(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """Progress of a pool's pre-pull: its number of images, and the nodes that have all of them."""

    images: int = 0
    nodes: int = 0
    ready_nodes: int = 0


class PoolStatus(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """Node counts of a pool (all, and the Ready and schedulable ones) and sums over its usable nodes.

    `scheduling_mode` is the mode in effect: a change of the mode waits for the end of the pods of the former mode.
    `pre_pull` is None in a pool without a list of images.
    """

    name: str
    nodes: int = 0
    usable_nodes: int = 0
    allocatable: Resources = {}
    guaranteed: Resources = {}
    scheduling_mode: str = ""
    pre_pull: PrePullStatus | None = None


class ComputeClusterStatus(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """Observed state of a compute cluster."""

    observed_generation: int = 0
    version: str = ""
    conditions: tuple[Condition, ...] = ()
    pools: tuple[PoolStatus, ...] = ()


class ComputeCluster(msgspec.Struct, kw_only=True, rename="camel"):
    """A real cluster that runs pods. Cluster-scoped."""

    metadata: Meta
    spec: ComputeClusterSpec = ComputeClusterSpec()
    status: ComputeClusterStatus = ComputeClusterStatus()
    api_version: str = API_VERSION
    kind: str = "ComputeCluster"
