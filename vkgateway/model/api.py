"""The API types of vkgateway, group vkgateway.io, as the CRDs beside this file define them."""

from typing import Any, Final, Literal

import msgspec

from vkgateway.model.names import API_VERSION
from vkgateway.model.objects import Condition, Meta
from vkgateway.model.quantity import Resources

PodSecurity = Literal["privileged", "baseline", "restricted"]
"""Levels of Kubernetes' Pod Security Standards (https://kubernetes.io/docs/concepts/security/pod-security-standards/)."""

WithinTenant = Literal["LowerPriority", "Never"]

ACCEPTED: Final = "Accepted"
CONTROL_PLANE_READY: Final = "ControlPlaneReady"
VIRTUAL_NODES_READY: Final = "VirtualNodesReady"
READY: Final = "Ready"
GUARANTEE_KEPT: Final = "GuaranteeKept"
DATASTORE_WRITABLE: Final = "DatastoreWritable"
"""Neither is part of Ready: what runs goes on."""
CONNECTED: Final = "Connected"
POOLS_APART: Final = "PoolsApart"
"""Of a ComputeCluster, beside Ready: told only where it is not so."""

DEFAULT_KUBERNETES_VERSION: Final = "1.36.3"
DEFAULT_TEMPLATE: Final = "default"
DEFAULT_COMPUTE_CLUSTER: Final = "local"


class TenantPool(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """A pool that a tenant may use. Without a limit for a resource the pool itself is the limit.

    `weight` says how large a part of what is lent goes to the tenant. `cells` are the pieces in which the guarantee of
    the pool's scarce resource is held, in whole units of it; none: they are cut from the guarantee.
    """

    name: str
    compute_cluster: str = DEFAULT_COMPUTE_CLUSTER
    guarantee: Resources = {}
    limit: Resources = {}
    weight: float = 1.0
    cells: tuple[int, ...] = ()


Exposure = Literal["Refuse", "ClusterAddress", "Forward"]
"""What becomes of a Service that asks to be reached from outside of the cluster."""


class TenantPolicy(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """What a tenant's pods may do below. Lists name what is allowed, `*` all; an empty one allows none.

    `runtime_class_names` and `storage_class_names` give classes that are allowed, too, the names that they have in
    compute clusters. `default_storage_class` is what claims get that name none; empty: the compute cluster's default.
    `plugin_annotations` holds beginnings of annotations for plug-ins of the compute clusters. `user_namespaces` says
    that pods may ask for a user namespace (`hostUsers: false`): nodes without support never start such a pod.
    `load_balancers` and `node_ports` say what becomes of Services of these types.
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


class ApiServerAccess(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """How the tenant's API server is reached. Port 0 lets the platform choose one."""

    port: int = 0
    subject_alt_names: tuple[str, ...] = ()


class TenantSpec(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """What is wanted of a tenant."""

    template: str = DEFAULT_TEMPLATE
    kubernetes_version: str = DEFAULT_KUBERNETES_VERSION
    pools: tuple[TenantPool, ...] = ()
    policy: TenantPolicy = TenantPolicy()
    preemption: TenantPreemption = TenantPreemption()
    api_server: ApiServerAccess = ApiServerAccess()


class ApiServerStatus(msgspec.Struct, kw_only=True, frozen=True):
    """Where the tenant's API server listens, and its release."""

    url: str = ""
    port: int = 0
    version: str = ""


class TenantPoolStatus(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """A tenant's virtual node, and the capacity it shows.

    It stands for a pool or, where that is divided by a node label (`virtual_nodes_by`), for its nodes with one `value`
    of the label; an empty value means nodes without the label.
    """

    name: str
    compute_cluster: str
    node_name: str
    virtual_nodes_by: str = ""
    value: str = ""
    ready: bool = False
    capacity: Resources = {}


class TenantStatus(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """What is seen of a tenant. Encoded in full, so that a merge patch also takes fields back."""

    observed_generation: int = 0
    phase: Literal["Pending", "Provisioning", "Ready", "Degraded", "Deleting"] = "Pending"
    conditions: tuple[Condition, ...] = ()
    api_server: ApiServerStatus | None = None
    pools: tuple[TenantPoolStatus, ...] = ()


class Tenant(msgspec.Struct, kw_only=True, rename="camel"):
    """A team with a Kubernetes of its own; cluster-scoped."""

    metadata: Meta
    spec: TenantSpec = TenantSpec()
    status: TenantStatus = TenantStatus()
    api_version: str = API_VERSION
    kind: str = "Tenant"


class KubeconfigSecret(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """Where a kubeconfig is kept in the management cluster."""

    namespace: str
    name: str
    key: str = "kubeconfig"


class Connection(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """How to reach a compute cluster; without a Secret it is the management cluster itself."""

    kubeconfig_secret: KubeconfigSecret | None = None


class Pool(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """A set of compute nodes, and the tolerations that pods need to run there.

    `levels` are the labels of its nodes that tell their place in the network, the widest first. `cell_resource` is what
    guarantees' cells are pieces of; empty: the extended resource that most nodes offer. `notice_seconds` is the
    time between the notice of an eviction and the deletion, `grace_seconds` the most that an evicted pod may take to
    end; None: as the gateway's settings say. Pods that ran for less than `brief_run_seconds` get `brief_notice_seconds`
    instead of the notice, if that is shorter; None: the notice. `reserve` is what borrowing leaves idle of the cell
    resource: whole units, or a share of what usable nodes have, like `5%`.
    `virtual_nodes_by` is a label of its nodes: tenants see a virtual node
    per value of it; empty: one for the pool. `passed_through` are extended resources that no node offers and that go
    down with pods as they are.
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


class ComputeClusterSpec(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, frozen=True):
    """What is wanted of a compute cluster."""

    connection: Connection = Connection()
    pools: tuple[Pool, ...] = ()


class PoolStatus(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """What a pool holds: nodes, those of them that are Ready and schedulable, and the sums over those."""

    name: str
    nodes: int = 0
    usable_nodes: int = 0
    allocatable: Resources = {}
    guaranteed: Resources = {}


class ComputeClusterStatus(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """What is seen of a compute cluster."""

    observed_generation: int = 0
    version: str = ""
    conditions: tuple[Condition, ...] = ()
    pools: tuple[PoolStatus, ...] = ()


class ComputeCluster(msgspec.Struct, kw_only=True, rename="camel"):
    """A real cluster that runs pods; cluster-scoped."""

    metadata: Meta
    spec: ComputeClusterSpec = ComputeClusterSpec()
    status: ComputeClusterStatus = ComputeClusterStatus()
    api_version: str = API_VERSION
    kind: str = "ComputeCluster"
