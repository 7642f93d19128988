"""What a virtual node is made from: a tenant's pool, and the compute nodes behind it as they are now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from vkgateway.gateway.pool_parts import WHOLE_POOL, PoolPart
from vkgateway.kubelet.routes import metrics_path
from vkgateway.model.api import Pool, TenantPool, TenantPoolStatus
from vkgateway.model.names import virtual_node_name
from vkgateway.model.objects import Object
from vkgateway.model.quantity import Quantity, cap_resources
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.translate import virtual_nodes as translation
from vkgateway.translate.context import PoolContext
from vkgateway.translate.pool_nodes import PoolNodes
from vkgateway.version import __version__

METRICS_PATH_ANNOTATION: Final = "metrics.k8s.io/resource-metrics-path"
"""Where metrics-server reads a node's figures, if not at /metrics/resource: all virtual nodes share an address."""
_TIMES = ("lastHeartbeatTime", "lastTransitionTime")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSource:
    """One virtual node of `tenant`, whose share of `pool` is `tenant_pool`; `address` and `port` are the kubelet
    endpoint's.

    It stands for `part` of the pool.

    `last_capacity` is what the node offered when it was seen last: it is shown while nothing is known of the compute
    nodes.
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
        """The name of the pool among those of all compute clusters."""
        return virtual_node_name(self.pool.name, self.link.name)

    def part_nodes(self) -> PoolNodes:
        """Return the compute nodes behind the virtual node, as seen last."""
        return self.link.nodes.pool_nodes(self.part.node_selector(self.pool), without_label=self.part.absent_label)

    def pool_nodes(self) -> PoolNodes:
        """Return all compute nodes of the pool, as seen last."""
        return self.link.nodes.pool_nodes(self.pool.node_selector)

    def pool_context(self) -> PoolContext:
        """Return the pool as translation needs it."""
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
        """Whether anything is known of the compute nodes."""
        return self.link.nodes.is_complete or bool(self.link.nodes.store)

    def node_capacity(self) -> dict[str, Quantity]:
        """Return what the node offers to its tenant; a retired one takes no more pods."""
        if not self.has_known_nodes:
            return dict(self.last_capacity)
        offered = self._offered_resources(self.part_nodes())
        return dict.fromkeys([*offered, "pods"], "0") if self.part.retired else offered

    def tenant_limit(self) -> dict[str, Quantity]:
        """Return what the tenant may use of the pool, over all its virtual nodes; nodes must be known."""
        return self._offered_resources(self.pool_nodes())

    def _offered_resources(self, members: PoolNodes) -> dict[str, Quantity]:
        allocatable = {**members.total_allocatable, **members.passthrough_resources(self.pool.passed_through)}
        return dict(cap_resources(allocatable, self.tenant_pool.limit))

    def pool_status(self, *, ready: bool = False) -> TenantPoolStatus:
        """Return how the virtual node is shown in its tenant's status."""
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
        """Return what `build_node` goes by beside what the source says itself: while it is the same, so is the node."""
        return self.part_nodes(), self.pool_nodes(), self.link.nodes.is_complete, self.link.is_reachable

    def build_node(self) -> Object:
        """Return the Node object as it should be now, its conditions without times."""
        link = self.link
        node = translation.virtual_node(
            self.pool_context(),
            nodes=self.part_nodes(),
            limit=self.tenant_pool.limit,
            address=self.address,
            port=self.port,
            version=__version__,
            connected=link.is_reachable,
            message="" if link.is_reachable else "the compute cluster does not answer",
            now=datetime.now(UTC),
        )
        node["metadata"]["annotations"] = {METRICS_PATH_ANNOTATION: metrics_path(self.tenant, self.name)}
        status = node["status"]
        status["capacity"] = status["allocatable"] = self.node_capacity()
        for condition in status["conditions"]:
            for time in _TIMES:
                condition.pop(time, None)
        return node
