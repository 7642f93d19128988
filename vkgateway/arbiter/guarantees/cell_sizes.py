"""How guarantees are cut into cells: sizes that divide each other, and the cells that hold an amount.

A node of 8 is halved to 4, 2 and 1, one of 12 gives 6, 3 and 1: each size divides all that are larger. Cells of such
sizes fit together like a ruler's marks, so that whether they fit is found by counting (see `tally`). Within this
package cells are counts by level: `[2, 0, 1, 0]` with levels 8, 4, 2, 1 is two cells of 8 and one of 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from vkgateway.arbiter.snapshot import Node, Pool, Quota

MILLI_PER_UNIT = 1000
"""Thousandths in a unit."""

CellCounts = list[int]
"""How many cells of each level."""


@lru_cache(maxsize=256)
def cell_sizes(size: int) -> tuple[int, ...]:
    """The cell sizes of a node, the largest first: divided by the smallest prime factor until 1 is reached."""
    sizes = [max(1, size)]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // _smallest_factor(sizes[-1]))
    return tuple(sizes)


def _smallest_factor(number: int) -> int:
    factor = 2
    while factor * factor <= number:
        if number % factor == 0:
            return factor
        factor += 1
    return number


def node_units(node: Node, unit: str) -> int:
    """Whole units of the node, whoever holds them."""
    return max(0, node.allocatable.get(unit, 0)) // MILLI_PER_UNIT


def units_for_cells(node: Node, unit: str) -> int:
    """Whole units of the node that unmanaged pods leave for cells; a unit held in part is held."""
    left = node.allocatable.get(unit, 0) // MILLI_PER_UNIT - round_up_units(node.used.get(unit, 0))
    return max(0, left)


def round_up_units(amount: int) -> int:
    """Whole units that hold an amount in thousandths."""
    return -(-max(0, amount) // MILLI_PER_UNIT)


def pool_levels(pool: Pool) -> tuple[int, ...]:
    """A pool's cell sizes: those of its largest node, be it usable now or not."""
    return cell_sizes(max((node_units(node, pool.unit_resource) for node in pool.nodes), default=0))


def split_guarantee(amount: int, levels: Sequence[int]) -> tuple[int, ...]:
    """Cut a guarantee, in whole units, into as large cells as there are; the largest comes first."""
    return tuple(list_sizes(count_cells(amount, levels), levels))


def count_cells(amount: int, levels: Sequence[int]) -> CellCounts:
    """Like `split_guarantee`, as counts by level: right for amounts of any size."""
    counts: CellCounts = []
    for size in levels:
        number, amount = divmod(max(0, amount), size)
        counts.append(number)
    return counts


def list_sizes(counts: Sequence[int], levels: Sequence[int]) -> Iterator[int]:
    """The sizes of cells one by one, the largest first."""
    for number, size in zip(counts, levels, strict=True):
        for _ in range(number):
            yield size


def total_units(counts: Sequence[int], levels: Sequence[int]) -> int:
    """Units in all these cells."""
    return sum(number * size for number, size in zip(counts, levels, strict=True))


def guaranteed_units(quota: Quota, unit: str) -> int:
    """Whole units that a quota promises: those of its written cells, or else of its guarantee."""
    if quota.cells:
        return sum(max(0, cell) for cell in quota.cells)
    return max(0, quota.guarantee.get(unit, 0)) // MILLI_PER_UNIT


def quota_cells(quota: Quota, unit: str, levels: Sequence[int]) -> CellCounts:
    """A quota's cells; a written one of a size that the pool does not have is cut into those that it has."""
    pieces = quota.cells or (guaranteed_units(quota, unit),)
    counts = [0] * len(levels)
    for piece in pieces:
        for level, number in enumerate(count_cells(piece, levels)):
            counts[level] += number
    return counts


def smallest_cover(available: Sequence[int], levels: Sequence[int], need: int) -> CellCounts | None:
    """The cells that hold `need` units with the fewest to spare; of equal ones, those of the largest cells.

    Taking what fits, from the largest, leaves a rest that is smaller than every cell not taken. If there is a rest,
    the smallest of those must be added, and it stands in for all smaller ones: together they are less than it is.
    None: all that is available is not enough.
    """
    taken, rest = _take_largest_first(available, levels, need)
    if rest <= 0:
        return taken
    for level in range(len(levels) - 1, -1, -1):
        if available[level] > taken[level]:
            held = total_units(taken[: level + 1], levels[: level + 1]) + levels[level]
            return _take_largest_first(available, levels, held)[0]
    return None


def _take_largest_first(available: Sequence[int], levels: Sequence[int], most: int) -> tuple[CellCounts, int]:
    """As many units as can be had without more than `most`, in the largest cells; and what is left of `most`."""
    taken = [0] * len(levels)
    for level, size in enumerate(levels):
        if most < size:
            continue
        taken[level] = min(most // size, available[level])
        most -= taken[level] * size
    return taken, most


def find_covers(available: Sequence[int], levels: Sequence[int], need: int) -> Iterator[CellCounts]:
    """Ways to hold `need` units, each with larger cells than the one before, the one with the fewest to spare first."""
    last: CellCounts | None = None
    for level in reversed(range(len(levels))):
        usable = [*available[: level + 1], *[0] * (len(levels) - level - 1)]
        found = smallest_cover(usable, levels, need)
        if found is None:
            return
        if found != last:
            yield found
        last = found
