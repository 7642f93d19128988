"""The pool of a compute cluster that a virtual node represents."""

from __future__ import annotations

from dataclasses import dataclass

from vkgateway.arbiter.snapshot import PoolKey
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.translate.context import PoolContext


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNodeBinding:
    """Binding of a virtual node to a pool of a compute cluster, with the node's address."""

    pool: PoolContext
    link: ComputeLink
    node_ip: str

    @property
    def pool_key(self) -> PoolKey:
        """Key of the pool that the virtual node shows, wholly or in part."""
        return self.pool.compute_cluster, self.pool.name

    def has_compute_node(self, compute_node: str) -> bool:
        """Return whether a known compute node is behind the virtual node."""
        return compute_node in self.link.nodes.nodes_behind(self.pool).node_names
