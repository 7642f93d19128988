"""What a virtual node is made from: a tenant's pool, and the compute nodes behind it as they are now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from vkgateway.kubelet.routes import metrics_path
from vkgateway.model.api import Pool, TenantPool
from vkgateway.model.objects import Object
from vkgateway.model.quantity import Quantity, least
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.translate import nodes as translation
from vkgateway.translate.context import PoolContext
from vkgateway.translate.poolnodes import PoolNodes
from vkgateway.version import __version__

METRICS_PATH_ANNOTATION: Final = "metrics.k8s.io/resource-metrics-path"
"""Where metrics-server reads a node's figures, if not at /metrics/resource: all virtual nodes share an address."""
_TIMES = ("lastHeartbeatTime", "lastTransitionTime")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSource:
    """One virtual node of `tenant`, whose share of `pool` is `wanted`; `address` and `port` are the kubelet endpoint's.

    `last_capacity` is what the node offered when it was seen last: it is shown while nothing is known of the compute
    nodes.
    """

    tenant: str
    name: str
    wanted: TenantPool
    pool: Pool
    link: ComputeLink
    address: str
    port: int
    last_capacity: Mapping[str, Quantity] = field(default_factory=dict)

    def members(self) -> PoolNodes:
        """Return the pool's compute nodes as seen last."""
        return self.link.nodes.pool(self.pool.node_selector)

    def context(self) -> PoolContext:
        """Return the pool as translation needs it."""
        return translation.pool_context(
            name=self.pool.name,
            compute_cluster=self.link.name,
            node_selector=self.pool.node_selector,
            tolerations=self.pool.tolerations,
            nodes=self.members(),
        )

    def capacity(self) -> dict[str, Quantity]:
        """Return what the node offers to its tenant."""
        if not self.link.nodes.complete and not self.link.nodes.items:
            return dict(self.last_capacity)
        return dict(least(self.members().allocatable, self.wanted.limit))

    def state(self) -> tuple[object, ...]:
        """Return what `build` goes by beside what the source says itself: while it is the same, so is the node."""
        return self.members(), self.link.nodes.complete, self.link.reachable

    def build(self) -> Object:
        """Return the Node object as it should be now, its conditions without times."""
        link = self.link
        node = translation.virtual_node(
            self.context(),
            nodes=self.members(),
            limit=self.wanted.limit,
            address=self.address,
            port=self.port,
            version=__version__,
            connected=link.reachable,
            message="" if link.reachable else "the compute cluster does not answer",
            now=datetime.now(UTC),
        )
        node["metadata"]["annotations"] = {METRICS_PATH_ANNOTATION: metrics_path(self.tenant, self.name)}
        status = node["status"]
        status["capacity"] = status["allocatable"] = self.capacity()
        for condition in status["conditions"]:
            for time in _TIMES:
                condition.pop(time, None)
        return node
