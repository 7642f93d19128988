"""What translation must know of a tenant and of a pool; gathered by the callers, never changed here."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from vkgateway.model.api import Exposure, PodSecurity
from vkgateway.model.names import COMPUTE_CLUSTER_LABEL, POOL_LABEL, VIRTUAL_NODE_TYPE, virtual_node_name
from vkgateway.translate.plugins import tenant_only_plugins

INSTANCE_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
TYPE_LABEL: Final = "type"

POOL_WIDE_LABELS: Final = frozenset({POOL_LABEL, COMPUTE_CLUSTER_LABEL, INSTANCE_TYPE_LABEL, TYPE_LABEL})
"""Labels of a virtual node that tell pools apart; all nodes below one virtual node are one domain of them."""

VIRTUAL_NODE_LABELS: Final = POOL_WIDE_LABELS | {HOSTNAME_LABEL}
"""Labels that mean the virtual node itself. Terms on them are used up by the tenant's scheduler, and never go down."""

DEFAULT_EXCLUDED_PREFIXES: Final = ("kubectl.kubernetes.io/last-applied-configuration",)
"""Prefixes of labels and annotations that stay above unless the platform names others."""

SCHEDULER_PREFIXES: Final = (
    "kueue.x-k8s.io/",
    "scheduling.volcano.sh/",
    "volcano.sh/",
    "scheduling.k8s.io/group-name",
    "scheduling.x-k8s.io/",
    "pod-group.scheduling.sigs.k8s.io",
)
"""Prefixes of labels and annotations by which schedulers and queues know gangs. They are read above; below, a scheduler
or queue of the compute cluster would act on them, and wait for objects that are not there."""

ANY: Final = "*"
"""In an allow-list: every name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantContext:
    """A tenant's name, its policy, and where its API server is reached from compute pods.

    `api_host` is an IP address or a name that compute pods can resolve; `api_service`, if not empty, an address at
    which they reach the API server at port 443. `dns_servers` are addresses, reached from compute pods, that answer
    for the tenant's names. `service_range` is the range of its Services' addresses, if that is its own alone, so that
    compute clusters may have the same. `image_pull_secrets` allows every name if it holds `*`. Labels and annotations
    with one of `excluded_prefixes` are not copied down.
    """

    name: str
    api_host: str
    api_port: int
    pod_security: PodSecurity = "baseline"
    runtime_classes: tuple[str, ...] = ()
    runtime_class_names: Mapping[str, str] = field(default_factory=dict)
    """The names below of classes that are called otherwise there; all of them are allowed."""
    storage_classes: tuple[str, ...] = ()
    storage_class_names: Mapping[str, str] = field(default_factory=dict)
    """The same of storage classes."""
    default_storage_class: str = ""
    """What claims get that name none; empty: what they get in the compute clusters."""
    image_pull_secrets: tuple[str, ...] = (ANY,)
    user_namespaces: bool = False
    load_balancers: Exposure = "ClusterAddress"
    node_ports: Exposure = "ClusterAddress"
    cluster_domain: str = "cluster.local"
    dns_servers: tuple[str, ...] = ()
    api_service: str = ""
    service_range: str = ""
    plugin_annotations: tuple[str, ...] = ()
    """Beginnings of the annotations of plug-ins (`plugins.PLUGIN_PREFIXES`) that go down all the same."""
    excluded_prefixes: tuple[str, ...] = DEFAULT_EXCLUDED_PREFIXES

    @property
    def api_endpoint(self) -> tuple[str, int]:
        """Where its pods are told to find the API server: as in any cluster at the first address of its Services.

        Where that does not lead there, at its own: its certificate names no other.
        """
        if self.service_range and self.api_service == _first_address(self.service_range):
            return self.api_service, 443
        return self.api_host, self.api_port

    @property
    def tenant_only_prefixes(self) -> tuple[str, ...]:
        """Prefixes of labels and annotations that stay above: those of the platform and those of schedulers."""
        return _tenant_only_prefixes(self.excluded_prefixes)

    @property
    def tenant_only_annotations(self) -> tuple[str, ...]:
        """Prefixes of annotations that stay above: those of plug-ins, too."""
        allowed = (ANY,) if self.pod_security == "privileged" else self.plugin_annotations
        return _tenant_only_annotations(self.excluded_prefixes, allowed)


@lru_cache(maxsize=1024)
def _first_address(cidr: str) -> str:
    return str(ipaddress.ip_network(cidr)[1])


@lru_cache(maxsize=64)
def _tenant_only_prefixes(kept: tuple[str, ...]) -> tuple[str, ...]:
    return (*kept, *SCHEDULER_PREFIXES)


@lru_cache(maxsize=64)
def _tenant_only_annotations(kept: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    return (*_tenant_only_prefixes(kept), *tenant_only_plugins(allowed))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContext:
    """A virtual node, and the pool of a compute cluster that it stands for, or a part of that pool.

    `node_selector` chooses the compute nodes behind the virtual node, of which none carries the label `without_label`.
    `node_labels` are the labels that the virtual node carries. `carried_labels` are the label keys that any node of the
    pool carries (`nodes.carried_labels`); without them, the virtual node's own count, less those that are virtual.
    """

    name: str
    compute_cluster: str
    node_name: str
    node_selector: dict[str, str] = field(default_factory=dict)
    without_label: str = ""
    tolerations: tuple[dict[str, Any], ...] | list[dict[str, Any]] = ()
    node_labels: dict[str, str] = field(default_factory=dict)
    carried_labels: frozenset[str] = frozenset()

    def virtual_labels(self) -> dict[str, str]:
        """The virtual node's labels, those that mean itself included."""
        return {
            **self.node_labels,
            TYPE_LABEL: VIRTUAL_NODE_TYPE,
            POOL_LABEL: self.name,
            COMPUTE_CLUSTER_LABEL: self.compute_cluster,
            INSTANCE_TYPE_LABEL: self.name,
            HOSTNAME_LABEL: self.node_name,
        }

    @property
    def pool_name(self) -> str:
        """The name of the pool among those of all compute clusters."""
        return virtual_node_name(self.name, self.compute_cluster)

    def node_requirements(self) -> list[dict[str, Any]]:
        """Return node selector requirements that exactly the compute nodes behind the virtual node meet."""
        chosen = [{"key": key, "operator": "In", "values": [value]} for key, value in self.node_selector.items()]
        return [*chosen, *([{"key": self.without_label, "operator": "DoesNotExist"}] if self.without_label else [])]

    def has_label(self, key: str) -> bool:
        """Tell whether real nodes of the pool carry a label."""
        return key in self.carried_labels or (key in self.node_labels and key not in VIRTUAL_NODE_LABELS)
