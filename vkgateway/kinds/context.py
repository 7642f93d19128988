"""Facts about a tenant and a pool that translation needs. Callers collect them, translation never changes them."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, POOL_LABEL, VIRTUAL_NODE_TYPE, virtual_node_name
from vkgateway.api.types import Exposure, PodSecurity
from vkgateway.kinds.pods.policy.plugins import PLUGIN_LABEL_PREFIXES, PLUGIN_PREFIXES, tenant_only_plugins

INSTANCE_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
TYPE_LABEL: Final = "type"

POOL_WIDE_LABELS: Final = frozenset({POOL_LABEL, COMPUTE_CLUSTER_LABEL, INSTANCE_TYPE_LABEL, TYPE_LABEL})
"""Labels of a virtual node that distinguish pools. All compute nodes of one virtual node are one domain of each."""

VIRTUAL_NODE_LABELS: Final = POOL_WIDE_LABELS | {HOSTNAME_LABEL}
"""Labels that identify the virtual node.

The tenant's scheduler evaluates terms on them, so they are never forwarded.
"""

DEFAULT_EXCLUDED_PREFIXES: Final = ("kubectl.kubernetes.io/last-applied-configuration",)
"""Prefixes of labels and annotations that are not forwarded, unless the platform sets others."""

SCHEDULER_PREFIXES: Final = (
    "kueue.x-k8s.io/",
    "scheduling.volcano.sh/",
    "volcano.sh/",
    "scheduling.k8s.io/group-name",
    "scheduling.x-k8s.io/",
    "pod-group.scheduling.sigs.k8s.io",
    "kai.scheduler/",
    "runai/",
    "yunikorn.apache.org/",
    "koordinator.sh/",
    "scheduling.koordinator.sh/",
    "gang.scheduling.koordinator.sh/",
    "quota.scheduling.koordinator.sh/",
)
"""Prefixes of labels and annotations by which schedulers and queues identify gangs.

The gateway reads them in the tenant cluster. In the compute cluster, a scheduler or queue would act on them and wait
for objects that do not exist there.
"""

ANY: Final = "*"
"""Entry of an allow-list that matches every name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantContext:
    """Name and policy of a tenant, and how compute pods reach its API server and DNS.

    `api_host` is an IP address or a name that compute pods can resolve. `api_service`, if not empty, is an address at
    which they reach the API server at port 443. `dns_servers` are addresses that answer for the tenant's names and that
    compute pods can reach. `service_range` is the range of its Service addresses if no other tenant shares it, so that
    compute clusters can use the same addresses. `image_pull_secrets` allows every name if it contains `*`. Labels and
    annotations with one of `excluded_prefixes` are not forwarded.
    """

    name: str
    api_host: str
    api_port: int
    pod_security: PodSecurity = "baseline"
    runtime_classes: tuple[str, ...] = ()
    runtime_class_names: Mapping[str, str] = field(default_factory=dict)
    """Compute names of runtime classes that are renamed. All of them are allowed."""
    storage_classes: tuple[str, ...] = ()
    storage_class_names: Mapping[str, str] = field(default_factory=dict)
    """Compute names of storage classes that are renamed. All of them are allowed."""
    default_storage_class: str = ""
    """Class of claims that name none. Empty: the compute cluster's default."""
    image_pull_secrets: tuple[str, ...] = (ANY,)
    user_namespaces: bool = False
    load_balancers: Exposure = "ClusterAddress"
    node_ports: Exposure = "ClusterAddress"
    cluster_domain: str = "cluster.local"
    dns_servers: tuple[str, ...] = ()
    api_service: str = ""
    service_range: str = ""
    plugin_annotations: tuple[str, ...] = ()
    """Prefixes of plug-in annotations and labels (`plugins.PLUGIN_PREFIXES`) that are forwarded."""
    excluded_prefixes: tuple[str, ...] = DEFAULT_EXCLUDED_PREFIXES
    pool_keys: tuple[str, ...] = ()
    """Keys of labels and annotations that the tenant's pools set for their schedulers, with all longer keys."""

    @property
    def api_endpoint(self) -> tuple[str, int]:
        """Host and port of the API server in the pods' environment: the first address of the tenant's Service range.

        If compute pods cannot reach the API server there, its real host and port. Its certificate names no other.
        """
        if self.service_range and self.api_service == _first_address(self.service_range):
            return self.api_service, 443
        return self.api_host, self.api_port

    @property
    def tenant_only_prefixes(self) -> tuple[str, ...]:
        """Prefixes of labels that are not forwarded: those of the platform, of schedulers, and of plug-ins."""
        return _tenant_only_prefixes((*self.excluded_prefixes, *self.pool_keys), self._allowed, PLUGIN_LABEL_PREFIXES)

    @property
    def tenant_only_annotations(self) -> tuple[str, ...]:
        """Prefixes of annotations that are not forwarded."""
        return _tenant_only_prefixes((*self.excluded_prefixes, *self.pool_keys), self._allowed, PLUGIN_PREFIXES)

    @property
    def _allowed(self) -> tuple[str, ...]:
        return (ANY,) if self.pod_security == "privileged" else self.plugin_annotations


@lru_cache(maxsize=1024)
def _first_address(cidr: str) -> str:
    return str(ipaddress.ip_network(cidr)[1])


@lru_cache(maxsize=64)
def _tenant_only_prefixes(
    excluded: tuple[str, ...], allowed: tuple[str, ...], plugins: tuple[str, ...]
) -> tuple[str, ...]:
    return (*excluded, *SCHEDULER_PREFIXES, *tenant_only_plugins(allowed, plugins))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContext:
    """Virtual node, and the pool of a compute cluster, or the part of it, that it represents.

    `node_selector` selects the compute nodes behind the virtual node, without nodes that carry the label
    `without_label`. `node_labels` are the labels of the virtual node. `carried_labels` are the label keys that any node
    of the pool carries (`PoolNodes.carried_labels`). Without them, the virtual node's labels count, except those that
    identify it.
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
        """Return the virtual node's labels, including those that identify it."""
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
        """Name of the pool, unique among all compute clusters."""
        return virtual_node_name(self.name, self.compute_cluster)

    def node_requirements(self) -> list[dict[str, Any]]:
        """Return node selector requirements that exactly the compute nodes behind the virtual node meet."""
        chosen = [{"key": key, "operator": "In", "values": [value]} for key, value in self.node_selector.items()]
        return [*chosen, *([{"key": self.without_label, "operator": "DoesNotExist"}] if self.without_label else [])]

    def has_label(self, key: str) -> bool:
        """Return whether nodes of the pool carry a label."""
        return key in self.carried_labels or (key in self.node_labels and key not in VIRTUAL_NODE_LABELS)
