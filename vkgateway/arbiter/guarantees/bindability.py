"""Whether cells that are not bound yet can all be bound at once: by counting, without trying.

For each cell size s, the slack is

    s x (sum over usable nodes of floor(room / s))  -  (units in unused cells of size s and larger)

and the cells can all be bound at the same time exactly if no slack is negative.

*They cannot where one is.* Cells of size s and larger are multiples of s, so a node holds at most floor(room / s) x s
units of them.

*They can where none is.* Bind them one by one, the largest first, each to any node that has room for it. Suppose that
for one of size s no node has. What was bound before are multiples of s, so on each node less than s is left only if
exactly floor(room / s) x s units are bound there. All nodes together then hold as many units as they can in cells of
size s and larger, and there is still one more to bind: that slack was negative.

Rooms may be of any size, whatever the cell sizes are; only the cell sizes must divide each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class CellSlack:
    """Room of nodes, by number, and the slack of each level; both are kept up to date, never counted anew.

    A node that is not usable has no room that counts, and what is bound there takes none.
    """

    def __init__(self, levels: Sequence[int], rooms: Sequence[int], usable: Sequence[bool]) -> None:
        self.levels = tuple(levels)
        self.free_units = [room if open_ else 0 for room, open_ in zip(rooms, usable, strict=True)]
        self.usable = list(usable)
        self.slack = [size * sum(room // size for room in self.free_units) for size in self.levels]
        self.nodes_by_free_units = Counter(self.free_units)
        """How many nodes have so much room."""
        self._free_array = np.array(self.free_units, dtype=np.int64)

    @property
    def free_array(self) -> NDArray[np.int64]:
        """Units of room on each node that are not bound; not to be written to."""
        return self._free_array

    def add_node(self) -> int:
        """A node that the pool does not have (any more), where pods are left; returns its number."""
        self.free_units.append(0)
        self.nodes_by_free_units[0] += 1
        self.usable.append(False)
        return len(self.free_units) - 1

    def add_unused(self, level: int, number: int) -> None:
        """So many more cells are unused; fewer where the number is negative."""
        for at in range(level, len(self.levels)):
            self.slack[at] -= number * self.levels[level]

    def is_feasible(self) -> bool:
        """Whether all unused cells can be bound at once."""
        return min(self.slack) >= 0

    def short_level(self) -> int | None:
        """The largest level at which cells cannot all be bound; None where they can."""
        return next((level for level, slack in enumerate(self.slack) if slack < 0), None)

    def free_units_after(self, node: int, old: Sequence[int], new: Sequence[int]) -> int:
        """The node's room if unused cells `new` were bound there and `old` were unused instead; may be negative."""
        if not self.usable[node]:
            return 0
        room = self.free_units[node]
        for was, is_, size in zip(old, new, self.levels, strict=True):
            if was != is_:
                room += (was - is_) * size
        return room

    def slack_changes(self, room: int, after: int, old: Sequence[int], new: Sequence[int]) -> list[int]:
        """By how much each slack changes if a node's room becomes `after`, as `new` are bound there and not `old`."""
        changes, freed = [], 0
        for size, was, is_ in zip(self.levels, old, new, strict=True):
            freed += (was - is_) * size
            changes.append(size * (after // size - room // size) - freed)
        return changes

    def allows_change(self, room: int, after: int, old: Sequence[int], new: Sequence[int]) -> bool:
        """Whether there is room for such a change and all unused cells could still be bound after it."""
        if after < 0:
            return False
        changes = self.slack_changes(room, after, old, new)
        return all(slack + change >= 0 for slack, change in zip(self.slack, changes, strict=True))

    def rebind_node(self, node: int, old: Sequence[int], new: Sequence[int]) -> None:
        """Unused cells `new` are bound to a node from now on; `old`, which were bound there, are unused."""
        room, after = self.free_units[node], self.free_units_after(node, old, new)
        for level, change in enumerate(self.slack_changes(room, after, old, new)):
            self.slack[level] += change
        if after != room:
            self.free_units[node] = after
            self.nodes_by_free_units[after] += 1
            self.nodes_by_free_units[room] -= 1
            if not self.nodes_by_free_units[room]:
                del self.nodes_by_free_units[room]
            self._free_array[node] = after
