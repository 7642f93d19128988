"""Facts about a pool that depend on its nodes alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.snapshot import Pool


class PoolFacts:
    """Facts about a pool's nodes, whatever runs on them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.feasibility: dict[tuple[str, int], int] = {}
        """Answers about gangs in the empty pool, by question and equivalence class; see `phases.feasibility`."""

    @cached_property
    def idle_reserve(self) -> int:
        """Thousandths of the unit that borrowing gangs leave idle."""
        return self._pool.idle_reserve

    @cached_property
    def empty_resources(self) -> NodeResources:
        """The pool's nodes as if all were empty and usable: a gang that does not fit there never fits."""
        nodes = (replace(node, used={}, usable=True) for node in self._pool.nodes)
        return NodeResources(replace(self._pool, nodes=tuple(nodes)))
