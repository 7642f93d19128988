"""The pool of a compute cluster that a virtual node represents."""

from __future__ import annotations

from dataclasses import dataclass

from vkgateway.arbiter.snapshot import PoolKey
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.translate.context import PoolContext


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNodeBinding:
    """What a virtual node stands for: a pool of a compute cluster, and the address that the node shows."""

    pool: PoolContext
    link: ComputeLink
    node_ip: str

    @property
    def pool_key(self) -> PoolKey:
        """The pool that it stands for, or for a part of."""
        return self.pool.compute_cluster, self.pool.name

    def has_compute_node(self, compute_node: str) -> bool:
        """Tell whether a compute node is behind the virtual node, as far as nodes are known."""
        return compute_node in self.link.nodes.nodes_behind(self.pool).node_names
