"""Cell sizes that divide each other, and the cells that hold an amount.

A node of 8 has the sizes 8, 4, 2 and 1; a node of 12 has 12, 6, 3 and 1: each size divides all larger ones. Whether
cells of such sizes fit is decided by counting (see `CellSlack`). In this package cells are counts by level: `[2, 0,
1, 0]` with the levels 8, 4, 2, 1 is two cells of 8 and one of 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from vkgateway.scheduler.core.snapshot import Node, Pool, Quota

MILLI_PER_UNIT = 1000
"""Thousandths in a unit."""

CellCounts = list[int]
"""Number of cells of each level."""


@lru_cache(maxsize=256)
def cell_sizes(size: int) -> tuple[int, ...]:
    """Return the cell sizes of a node, the largest first: divided by the smallest prime factor down to 1."""
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
    """Return the whole units of the node, used or not."""
    return max(0, node.allocatable.get(unit, 0)) // MILLI_PER_UNIT


def units_for_cells(node: Node, unit: str) -> int:
    """Return the whole units that unmanaged pods leave for cells; a partly used unit counts as used."""
    left = node.allocatable.get(unit, 0) // MILLI_PER_UNIT - round_up_units(node.used.get(unit, 0))
    return max(0, left)


def round_up_units(amount: int) -> int:
    """Return the number of whole units that hold an amount in thousandths."""
    return -(-max(0, amount) // MILLI_PER_UNIT)


def pool_levels(pool: Pool) -> tuple[int, ...]:
    """Return a pool's cell sizes: those of its largest node, usable or not."""
    return cell_sizes(max((node_units(node, pool.unit_resource) for node in pool.nodes), default=0))


def count_cells(amount: int, levels: Sequence[int]) -> CellCounts:
    """Split whole units into the largest possible cells."""
    counts: CellCounts = []
    for size in levels:
        number, amount = divmod(max(0, amount), size)
        counts.append(number)
    return counts


def list_sizes(counts: Sequence[int], levels: Sequence[int]) -> Iterator[int]:
    """Yield the sizes of cells one by one, the largest first."""
    for number, size in zip(counts, levels, strict=True):
        for _ in range(number):
            yield size


def counts_by_size(counts: Sequence[int], levels: Sequence[int]) -> dict[int, int]:
    """Return the number of cells by size, without sizes that have none."""
    return {size: number for size, number in zip(levels, counts, strict=True) if number}


def total_units(counts: Sequence[int], levels: Sequence[int]) -> int:
    """Return the units in all these cells."""
    return sum(number * size for number, size in zip(counts, levels, strict=True))


def guaranteed_units(quota: Quota, unit: str) -> int:
    """Return the whole units that a quota guarantees: those of its explicit cells, else of its guarantee."""
    if quota.cells:
        return sum(max(0, cell) for cell in quota.cells)
    return max(0, quota.guarantee.get(unit, 0)) // MILLI_PER_UNIT


def quota_cells(quota: Quota, unit: str, levels: Sequence[int]) -> CellCounts:
    """Return a quota's cells; explicit cells of a size that the pool lacks are split into its sizes."""
    pieces = quota.cells or (guaranteed_units(quota, unit),)
    counts = [0] * len(levels)
    for piece in pieces:
        for level, number in enumerate(count_cells(piece, levels)):
            counts[level] += number
    return counts


def smallest_cover(available: Sequence[int], levels: Sequence[int], need: int) -> CellCounts | None:
    """Return the cells that hold `need` units with the fewest spare units; of equal sets, the one of the largest cells.

    Taking what fits, from the largest, leaves a rest smaller than every cell not taken. The smallest of those cells
    must then be added, and it replaces all smaller ones: together they hold less than it does. None: the available
    cells do not hold `need` units.
    """
    taken, rest = _take_largest_first(available, levels, need)
    if rest <= 0:
        return taken
    for level in range(len(levels) - 1, -1, -1):
        if available[level] > taken[level]:
            needed = total_units(taken[: level + 1], levels[: level + 1]) + levels[level]
            return _take_largest_first(available, levels, needed)[0]
    return None


def _take_largest_first(available: Sequence[int], levels: Sequence[int], most: int) -> tuple[CellCounts, int]:
    """Return the largest cells that hold at most `most` units in total, and the rest of `most`."""
    taken = [0] * len(levels)
    for level, size in enumerate(levels):
        if most < size:
            continue
        taken[level] = min(most // size, available[level])
        most -= taken[level] * size
    return taken, most
