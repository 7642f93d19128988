"""Source of a virtual node: a tenant's pool and the current compute nodes behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from vkgateway.api.names import virtual_node_name
from vkgateway.api.objects import Object
from vkgateway.api.quantity import Quantity, cap_resources
from vkgateway.api.types import Pool, TenantPool, TenantPoolStatus
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.pool_nodes import PoolNodes
from vkgateway.clusters.pools import WHOLE_POOL, PoolPart
from vkgateway.clusters.tenant_owners import name_taken
from vkgateway.kinds.context import PoolContext
from vkgateway.nodes import virtual_nodes as translation
from vkgateway.nodes.routes import metrics_path
from vkgateway.version import __version__

METRICS_PATH_ANNOTATION: Final = "metrics.k8s.io/resource-metrics-path"
"""Path at which metrics-server reads a node's metrics; needed because all virtual nodes share an address."""
_TIMES = ("lastHeartbeatTime", "lastTransitionTime")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSource:
    """Source of one virtual node of `tenant`, which represents `part` of `pool`.

    `tenant_pool` is the tenant's share of the pool. `address` and `port` are the kubelet endpoint's. `last_capacity` is
    the node's last known capacity, shown while the compute nodes are unknown.
    """

    tenant: str
    name: str
    tenant_pool: TenantPool
    pool: Pool
    link: ComputeLink
    address: str
    port: int
    part: PoolPart = WHOLE_POOL
    last_capacity: Mapping[str, Quantity] = field(default_factory=dict)

    @property
    def pool_name(self) -> str:
        """The name of the pool, unique across compute clusters."""
        return virtual_node_name(self.pool.name, self.link.name)

    def part_nodes(self) -> PoolNodes:
        """Return the last known compute nodes behind the virtual node."""
        return self.link.nodes.pool_nodes(self.part.node_selector(self.pool), without_label=self.part.absent_label)

    def pool_nodes(self) -> PoolNodes:
        """Return all last known compute nodes of the pool."""
        return self.link.nodes.pool_nodes(self.pool.node_selector)

    def pool_context(self) -> PoolContext:
        """Return the pool as input of the translation."""
        return translation.pool_context(
            name=self.pool.name,
            compute_cluster=self.link.name,
            node_selector=self.part.node_selector(self.pool),
            tolerations=self.pool.tolerations,
            nodes=self.part_nodes(),
            value=self.part.value,
            without_label=self.part.absent_label,
        )

    @property
    def has_known_nodes(self) -> bool:
        """Whether any compute nodes are known."""
        return self.link.nodes.is_complete or bool(self.link.nodes.store)

    @property
    def is_connected(self) -> bool:
        """Whether pods on the virtual node can run: its compute cluster answers and may be used by the tenant."""
        return self.link.is_reachable and not self.link.owners.is_foreign(self.tenant)

    def node_capacity(self) -> dict[str, Quantity]:
        """Return the node's capacity; a retired node has none, so that it accepts no more pods."""
        if not self.has_known_nodes:
            return dict(self.last_capacity)
        offered = self._offered_resources(self.part_nodes())
        return dict.fromkeys([*offered, "pods"], "0") if self.part.retired else offered

    def tenant_limit(self) -> dict[str, Quantity]:
        """Return the tenant's limit in the pool over all its virtual nodes; nodes must be known."""
        return self._offered_resources(self.pool_nodes())

    def _offered_resources(self, nodes: PoolNodes) -> dict[str, Quantity]:
        allocatable = {**nodes.total_allocatable, **nodes.passthrough_resources(self.pool.passed_through)}
        return dict(cap_resources(allocatable, self.tenant_pool.limit))

    def pool_status(self, *, ready: bool = False) -> TenantPoolStatus:
        """Return the virtual node's entry in the status of its tenant."""
        return TenantPoolStatus(
            name=self.tenant_pool.name,
            compute_cluster=self.tenant_pool.compute_cluster,
            node_name=self.name,
            virtual_nodes_by=self.part.label,
            value=self.part.value,
            ready=ready,
            capacity=self.node_capacity(),
        )

    def build_inputs(self) -> tuple[object, ...]:
        """Return the inputs of `build_node` outside the source itself; equal inputs give an equal node."""
        return self.part_nodes(), self.pool_nodes(), self.link.nodes.is_complete, self.is_connected

    def build_node(self) -> Object:
        """Return the desired Node object, its conditions without timestamps."""
        node = translation.virtual_node(
            self.pool_context(),
            nodes=self.part_nodes(),
            limit=self.tenant_pool.limit,
            address=self.address,
            port=self.port,
            version=__version__,
            connected=self.is_connected,
            message="" if self.is_connected else _disconnected_message(self),
            now=datetime.now(UTC),
        )
        node["metadata"]["annotations"] = {METRICS_PATH_ANNOTATION: metrics_path(self.tenant, self.name)}
        status = node["status"]
        status["capacity"] = status["allocatable"] = self.node_capacity()
        for condition in status["conditions"]:
            for time in _TIMES:
                condition.pop(time, None)
        return node


def _disconnected_message(source: NodeSource) -> str:
    if source.link.is_reachable:
        return str(name_taken(source.tenant, source.link.name))
    return "the compute cluster is unreachable"
