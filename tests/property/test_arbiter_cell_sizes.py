"""Cell sizes, covers and refusals of guarantees compared with brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from vkgateway.scheduler.core.guarantees.cell_sizes import (
    cell_sizes,
    count_cells,
    list_sizes,
    smallest_cover,
    total_units,
)
from vkgateway.scheduler.core.guarantees.counted_cells import CellSlack
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees
from vkgateway.scheduler.core.guarantees.refusals import find_refusals
from vkgateway.scheduler.core.snapshot import Node, Pool, Quota

GPU = "nvidia.com/gpu"
KEY = ("c", "p")
quick = settings(max_examples=100, deadline=None)
patient = settings(max_examples=60, deadline=None)
sizes = st.sampled_from([8, 6, 12, 4])


def fits_brute_force(cells: Sequence[int], rooms: Sequence[int]) -> bool:
    """Return whether the cells fit, by trying every combination."""
    if not cells:
        return True
    first, rest = cells[0], cells[1:]
    tried = set()
    for at, resources in enumerate(rooms):
        if resources >= first and resources not in tried:
            tried.add(resources)
            if fits_brute_force(rest, [*rooms[:at], resources - first, *rooms[at + 1 :]]):
                return True
    return False


@st.composite
def cells_and_rooms(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int], list[int]]:
    levels = cell_sizes(draw(sizes))
    counts = [draw(st.integers(0, 3)) for _ in levels]
    rooms = draw(st.lists(st.integers(0, levels[0] + 3), min_size=1, max_size=4))
    return levels, counts, rooms


@quick
@given(cells_and_rooms())
def test_counting_agrees_with_brute_force(case: tuple[tuple[int, ...], list[int], list[int]]) -> None:
    levels, counts, rooms = case
    tally = CellSlack(levels, rooms)
    for level, number in enumerate(counts):
        tally.add_cells(level, number)

    assert (tally.short_level() is None) == fits_brute_force(list(list_sizes(counts, levels)), rooms)


def subsets(available: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return product(*(range(number + 1) for number in available))


@quick
@given(cells_and_rooms(), st.integers(0, 40))
def test_cover_has_fewest_spare_units(case: tuple[tuple[int, ...], list[int], list[int]], need: int) -> None:
    levels, available, _ = case
    sums = [total_units(counts, levels) for counts in subsets(available)]
    best = min((units for units in sums if units >= need), default=None)

    found = smallest_cover(available, levels, need)

    assert (None if found is None else total_units(found, levels)) == best
    if found is not None:
        equal = [counts for counts in subsets(available) if total_units(counts, levels) == best]
        assert sum(found) == min(map(sum, equal)), "of equal covers, the one of the largest cells"


def split_units(amount: int, levels: Sequence[int]) -> tuple[int, ...]:
    return tuple(list_sizes(count_cells(amount, levels), levels))


@quick
@given(sizes, st.integers(0, 100))
def test_split_is_complete_with_largest_cells(size: int, amount: int) -> None:
    levels = cell_sizes(size)
    cells = split_units(amount, levels)

    assert sum(cells) == amount
    assert list(cells) == sorted(cells, reverse=True)
    for smaller, larger in zip(levels[1:], levels, strict=False):
        assert cells.count(smaller) * smaller < larger


def pool_of(nodes: Sequence[Node]) -> Pool:
    return Pool(key=KEY, nodes=tuple(nodes), governed=(GPU,))


def make_node(name: str, size: int, used: int = 0, *, usable: bool = True) -> Node:
    return Node(name=name, allocatable={GPU: size * 1000}, used={GPU: used * 1000}, usable=usable)


@st.composite
def nodes_of(draw: st.DrawFn, most: int = 5) -> list[Node]:
    size = draw(sizes)
    count = draw(st.integers(1, most))
    return [
        make_node(
            f"n{at}",
            size if draw(st.integers(0, 3)) else draw(st.integers(1, size)),
            draw(st.sampled_from([0, 0, 0, 1, 4])),
        )
        for at in range(count)
    ]


@st.composite
def quotas_of(draw: st.DrawFn, pool: Pool) -> list[Quota]:
    """Return quotas that fit the pool, without those that would be refused."""
    asked = draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    found: list[Quota] = []
    for at, units in enumerate(asked):
        quota = Quota(
            tenant=f"t{at}",
            pool=KEY,
            guarantee={GPU: units * 1000},
            granted=float(draw(st.integers(0, 2))),
            weight=draw(st.sampled_from([1.0, 1.0, 2.0, 5.0])),
        )
        if not find_refusals(pool, [*found, quota]):
            found.append(quota)
    return found


@patient
@given(st.data())
def test_refusals_and_largest_guarantee_are_exact(data: st.DataObject) -> None:
    pool = pool_of(data.draw(nodes_of()))
    taken = data.draw(quotas_of(pool))
    asked = data.draw(st.integers(1, 30))
    levels = PoolGuarantees(pool, ()).levels
    rooms = sorted(max(0, (n.allocatable[GPU] - n.used[GPU]) // 1000) for n in pool.nodes)
    others = [size for q in taken for size in split_units(q.guarantee[GPU] // 1000, levels)]

    def fits(units: int) -> bool:
        return fits_brute_force(sorted([*others, *split_units(units, levels)], reverse=True), rooms)

    said = find_refusals(pool, [*taken, Quota(tenant="new", pool=KEY, guarantee={GPU: asked * 1000}, granted=9.0)])

    assert (said == []) == fits(asked)
    if said:
        largest = int(said[0].rpartition(" ")[2])
        assert fits(largest)
        assert not fits(largest + 1)
