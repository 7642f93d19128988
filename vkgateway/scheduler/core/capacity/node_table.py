"""Nodes of a pool in topology order, whatever runs on them: positions, masks and feasibility."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import ABSENT, BoolArray, IntArray, NodeFilter
from vkgateway.scheduler.core.peer_rules import VIRTUAL_NODE
from vkgateway.scheduler.core.snapshot import Node, Pool

AllowedNodes = Iterable[str] | BoolArray | None
"""Allowed nodes: names (those of other pools are ignored) or a mask by position; None: all."""


MAX_AMOUNT = 1 << 56
"""Upper bound of amounts, so that sums of a hundred fit 64 bits: 72 TB of memory in thousandths of a byte."""


class NodeTable:
    """Nodes in topology order: by the pool's levels, the widest first, then by name.

    A node's position is its index in this order, and all arrays follow it.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.ordered: tuple[Node, ...] = tuple(sorted(pool.nodes, key=lambda node: _topology_key(node, pool.levels)))
        self.names: tuple[str, ...] = tuple(node.name for node in self.ordered)
        self.positions: Mapping[str, int] = {name: index for index, name in enumerate(self.names)}
        """Position by name."""
        self.filter = NodeFilter(self.ordered)
        """Feasibility of nodes by labels and taints."""
        sizes = [node.allocatable.get(pool.unit_resource, 0) for node in self.ordered if node.usable]
        self.largest_units = min(max(sizes, default=0), MAX_AMOUNT)
        """Thousandths of the pool's unit on its largest usable node: a node with this amount free is whole."""

    def __contains__(self, name: object) -> bool:
        return name in self.positions

    def __len__(self) -> int:
        return len(self.ordered)

    @cached_property
    def pool_order(self) -> IntArray:
        """Index of each node in the pool's own order, by position."""
        index = {node.name: number for number, node in enumerate(self.pool.nodes)}
        return np.array([index[name] for name in self.names], dtype=np.int64)

    def mask_of(self, among: AllowedNodes) -> BoolArray:
        """Return the mask of the allowed nodes."""
        if isinstance(among, np.ndarray):
            return among
        if among is None:
            return np.ones(len(self.ordered), dtype=bool)
        mask = np.zeros(len(self.ordered), dtype=bool)
        mask[[self.positions[name] for name in among if name in self.positions]] = True
        return mask

    def avoided_last(self, among: AllowedNodes) -> Iterator[AllowedNodes]:
        """Yield the allowed nodes without those that are avoided, then all of them; at once if none is avoided."""
        if self.filter.has_avoided:
            mask = self.mask_of(among)
            if (mask & self.filter.avoided).any():
                yield mask & ~self.filter.avoided
        yield among

    def domains_of(self, key: str) -> IntArray:
        """Return the number of each node's domain of a topology key of `PeerRules`; ABSENT without the label."""
        if key != VIRTUAL_NODE:
            return self.filter.label_column(key).codes
        if not self.pool.virtual_nodes_by:
            return np.zeros(len(self.ordered), dtype=np.int64)
        return self.filter.label_column(self.pool.virtual_nodes_by).codes - ABSENT

    def other_peers(self) -> dict[str, dict[int, int]]:
        """Return the numbers of pods of `Node.peers` by selector and position."""
        found: dict[str, dict[int, int]] = {}
        for position, node in enumerate(self.ordered):
            for selector, count in node.peers.items():
                found.setdefault(selector, {})[position] = count
        return found

    def domain_mask(self, name: str, level: str) -> BoolArray:
        """Return the mask of nodes in the node's domain of a topology level; without the label, only the node itself.

        Raises KeyError for a node outside the pool.
        """
        codes = self.filter.label_column(level).codes
        code = codes[self.positions[name]]
        return codes == code if code != ABSENT else self.mask_of([name])


def _topology_key(node: Node, levels: Sequence[str]) -> tuple[tuple[tuple[bool, str], ...], str]:
    """Return the sort key of the topology order; nodes without a level's label come last."""
    return tuple((level not in node.labels, node.labels.get(level, "")) for level in levels), node.name
