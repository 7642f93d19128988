"""Test by counting whether nodes hold all cells at the same time.

For each cell size s, the slack is

    s x (sum over usable nodes of floor(free / s))  -  (units in cells of size s and larger)

where `free` are the free units of the node. The nodes hold all cells at the same time exactly if no slack is negative.

*Necessary.* Cells of size s and larger are multiples of s, so a node holds at most floor(free / s) x s units of them.

*Sufficient.* Place the cells one by one, the largest first, each on any node that fits it. Suppose that no node fits
one of size s. All cells placed before are multiples of s, so a node has less than s left only if exactly floor(free /
s) x s units of it are taken. All nodes together then hold the maximum of cells of size s and larger, and one more is
left to place: that slack was negative.

Nodes may have any number of free units; only the cell sizes must divide each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class CellSlack:
    """The slack of each level."""

    def __init__(self, levels: Sequence[int], free_units: Iterable[int]) -> None:
        self.levels, free_units = tuple(levels), list(free_units)
        self.slack = [size * sum(free // size for free in free_units) for size in self.levels]

    def add_cells(self, level: int, count: int) -> None:
        """Change the number of cells of a level."""
        for lower in range(level, len(self.levels)):
            self.slack[lower] -= count * self.levels[level]

    def short_level(self) -> int | None:
        """Return the largest level of which the nodes do not hold all cells; None: they hold all of all levels."""
        return next((level for level, slack in enumerate(self.slack) if slack < 0), None)
