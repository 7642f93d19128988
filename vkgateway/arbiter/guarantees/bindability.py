"""Test by counting whether all unbound cells can be bound at the same time.

For each cell size s, the slack is

    s x (sum over usable nodes of floor(free / s))  -  (units in unused cells of size s and larger)

where `free` are the free units of the node. All cells can be bound at the same time exactly if no slack is negative.

*Necessary.* Cells of size s and larger are multiples of s, so a node holds at most floor(free / s) x s units of them.

*Sufficient.* Bind the cells one by one, the largest first, each to any node that fits it. Suppose that no node fits one
of size s. All cells bound before are multiples of s, so a node has less than s left only if exactly floor(free / s) x s
units are bound there. All nodes together then hold the maximum of cells of size s and larger, and one more is left to
bind: that slack was negative.

Nodes may have any number of free units; only the cell sizes must divide each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class CellSlack:
    """Free units of nodes, by number, and the slack of each level; both are updated incrementally.

    An unusable node has no free units, and cells bound there take none.
    """

    def __init__(self, levels: Sequence[int], free_units: Sequence[int], usable: Sequence[bool]) -> None:
        self.levels = tuple(levels)
        self.free_units = [free if is_usable else 0 for free, is_usable in zip(free_units, usable, strict=True)]
        self.usable = list(usable)
        self.slack = [size * sum(free // size for free in self.free_units) for size in self.levels]
        self.nodes_by_free_units = Counter(self.free_units)
        """Number of nodes by free units."""
        self._free_array = np.array(self.free_units, dtype=np.int64)

    @property
    def free_array(self) -> NDArray[np.int64]:
        """Unbound units of each node; read-only."""
        return self._free_array

    def add_node(self) -> int:
        """Add a node that left the pool but still runs pods; return its number."""
        self.free_units.append(0)
        self.nodes_by_free_units[0] += 1
        self.usable.append(False)
        return len(self.free_units) - 1

    def add_unused(self, level: int, count: int) -> None:
        """Change the number of unused cells of a level."""
        for lower in range(level, len(self.levels)):
            self.slack[lower] -= count * self.levels[level]

    def is_feasible(self) -> bool:
        """Return whether all unused cells can be bound at the same time."""
        return min(self.slack) >= 0

    def short_level(self) -> int | None:
        """Return the largest level at which cells cannot all be bound; None: all levels can."""
        return next((level for level, slack in enumerate(self.slack) if slack < 0), None)

    def free_units_after(self, node: int, old: Sequence[int], new: Sequence[int]) -> int:
        """Return the node's free units if unused cells `new` replaced the bound cells `old`; may be negative."""
        if not self.usable[node]:
            return 0
        free = self.free_units[node]
        for old_count, new_count, size in zip(old, new, self.levels, strict=True):
            if old_count != new_count:
                free += (old_count - new_count) * size
        return free

    def slack_changes(self, free: int, after: int, old: Sequence[int], new: Sequence[int]) -> list[int]:
        """Return the change of each slack if `new` replaces `old` and the node's free units become `after`."""
        changes, freed = [], 0
        for size, old_count, new_count in zip(self.levels, old, new, strict=True):
            freed += (old_count - new_count) * size
            changes.append(size * (after // size - free // size) - freed)
        return changes

    def allows_change(self, free: int, after: int, old: Sequence[int], new: Sequence[int]) -> bool:
        """Return whether the node holds the change and all unused cells can still be bound after it."""
        if after < 0:
            return False
        changes = self.slack_changes(free, after, old, new)
        return all(slack + change >= 0 for slack, change in zip(self.slack, changes, strict=True))

    def rebind_node(self, node: int, old: Sequence[int], new: Sequence[int]) -> None:
        """Bind unused cells `new` to a node in place of `old`, which become unused."""
        free, after = self.free_units[node], self.free_units_after(node, old, new)
        for level, change in enumerate(self.slack_changes(free, after, old, new)):
            self.slack[level] += change
        if after != free:
            self.free_units[node] = after
            self.nodes_by_free_units[after] += 1
            self.nodes_by_free_units[free] -= 1
            if not self.nodes_by_free_units[free]:
                del self.nodes_by_free_units[free]
            self._free_array[node] = after
