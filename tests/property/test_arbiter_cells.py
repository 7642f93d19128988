"""Cells compared with brute force; no sequence of pods and nodes breaks the invariant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from vkgateway.arbiter.guarantees.bindability import CellSlack
from vkgateway.arbiter.guarantees.cell_sizes import (
    cell_sizes,
    count_cells,
    find_covers,
    list_sizes,
    smallest_cover,
    total_units,
)
from vkgateway.arbiter.guarantees.cells import PlacedAmount, PoolCells
from vkgateway.arbiter.guarantees.refusals import find_refusals
from vkgateway.arbiter.guarantees.usable_amounts import usable_amounts
from vkgateway.arbiter.snapshot import Node, Pool, Quota

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
    tally = CellSlack(levels, rooms, [True] * len(rooms))
    for level, number in enumerate(counts):
        tally.add_unused(level, number)

    assert tally.is_feasible() == fits_brute_force(list(list_sizes(counts, levels)), rooms)


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
        assert next(find_covers(available, levels, need)) == found


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


def check_sound(cells: PoolCells, pool: Pool, quotas: Sequence[Quota]) -> None:
    """Check that no node is overcommitted and that all unused cells can be bound."""
    rooms = {n.name: max(0, (n.allocatable[GPU] - n.used.get(GPU, 0)) // 1000) for n in pool.nodes if n.usable}
    unused: list[int] = []
    for quota in quotas:
        for name, bound in cells.bound_cells(quota.tenant).items():
            if name in rooms:
                rooms[name] -= sum(bound)
        for size, number in cells.unused_cells(quota.tenant).items():
            unused += [size] * number
    assert min(rooms.values(), default=0) >= 0
    assert fits_brute_force(sorted(unused, reverse=True), sorted(rooms.values()))


@patient
@given(st.data())
def test_unused_cells_stay_bindable_under_churn(data: st.DataObject) -> None:
    pool = pool_of(data.draw(nodes_of()))
    quotas = data.draw(quotas_of(pool))
    placed: list[PlacedAmount] = []
    for _ in range(data.draw(st.integers(1, 8))):
        cells = PoolCells(pool, quotas, placed)
        check_sound(cells, pool, quotas)
        assert cells.guarantee_losses == ()
        assert all(cells.excess_by_node(quota.tenant) == {} for quota in quotas)
        ends = data.draw(st.booleans())
        if placed and ends:
            placed.remove(data.draw(st.sampled_from(placed)))
        for _ in range(data.draw(st.integers(0, 5)) if quotas else 0):
            pod = (
                data.draw(st.sampled_from(quotas)).tenant,
                data.draw(st.sampled_from(pool.nodes)).name,
                data.draw(st.integers(1, 8)) * 1000,
            )
            if cells.allocate_cells(*pod):
                placed.append(pod)
            check_sound(cells, pool, quotas)


@st.composite
def full_pools(draw: st.DrawFn) -> tuple[Pool, list[Quota], list[PlacedAmount]]:
    """Return a pool with its quotas and guaranteed pods, as decisions leave them."""
    pool = pool_of(draw(nodes_of()))
    quotas = draw(quotas_of(pool))
    cells, placed = PoolCells(pool, quotas), []
    pods = st.tuples(st.integers(0, 3), st.integers(0, len(pool.nodes) - 1), st.integers(1, 8))
    for who, where, units in draw(st.lists(pods, max_size=8)):
        if who < len(quotas):
            pod = (quotas[who].tenant, pool.nodes[where].name, units * 1000)
            if cells.allocate_cells(*pod):
                placed.append(pod)
    return pool, quotas, placed


FullPool = tuple[Pool, list[Quota], list[PlacedAmount]]


def query_all(cells: PoolCells, quotas: Sequence[Quota], pool: Pool) -> object:
    """Return the results of all queries."""
    return [
        (
            cells.bound_cells(q.tenant),
            cells.unused_cells(q.tenant),
            cells.excess_by_node(q.tenant),
            cells.usable_amounts(q.tenant).tolist(),
            [cells.spare_amount(q.tenant, n.name) for n in pool.nodes],
        )
        for q in quotas
    ]


def can_bind(cells: PoolCells, tenant: str, size: int, name: str) -> bool:
    """Return whether an unused cell of the tenant can be bound to a usable node."""
    own, node, level = cells.bindings.cells_of(tenant), cells.bindings.node_number(name), cells.levels.index(size)
    counts = [count + (at == level) for at, count in enumerate(own.bound_cells(node))]
    return own.unused[level] > 0 and cells.bindings.can_rebind(own, node, counts)


@patient
@given(full_pools(), st.randoms(use_true_random=False))
def test_input_order_does_not_matter(full: FullPool, random: Random) -> None:
    pool, quotas, placed = full
    expected = query_all(PoolCells(pool, quotas, placed), quotas, pool)
    told_quotas, told = list(quotas), list(placed)
    random.shuffle(told)
    random.shuffle(told_quotas)

    assert query_all(PoolCells(pool, told_quotas, told), quotas, pool) == expected


@patient
@given(full_pools(), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 8)), max_size=8))
def test_undo_leaves_no_trace(full: FullPool, tries: list[tuple[int, int, int]]) -> None:
    pool, quotas, placed = full
    cells = PoolCells(pool, quotas, placed)
    before, mark = query_all(cells, quotas, pool), cells.bindings.mark()
    for who, where, units in tries:
        if who < len(quotas) and where < len(pool.nodes):
            tenant, name = quotas[who].tenant, pool.nodes[where].name
            if units and cells.allocate_cells(tenant, name, units * 1000):
                check_sound(cells, pool, quotas)
            elif placed:
                cells.release_cells(*placed.pop(units % len(placed)))
                check_sound(cells, pool, quotas)
            own, node = cells.bindings.cells_of(tenant), cells.bindings.node_number(name)
            if can_bind(cells, tenant, cells.levels[-1], name):
                counts = [*own.bound_cells(node)[:-1], own.bound_cells(node)[-1] + 1]
                cells.bindings.set_bound_cells(own, node, counts, own.used_by_node.get(node, 0))
    cells.bindings.undo(mark)

    assert query_all(cells, quotas, pool) == before


@patient
@given(full_pools(), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 8)), max_size=12))
def test_usable_amounts_follow_changes(full: FullPool, tries: list[tuple[int, int, int]]) -> None:
    pool, quotas, placed = full
    cells = PoolCells(pool, quotas, placed)
    marks = [cells.bindings.mark()]
    for who, where, units in tries if quotas and pool.nodes else ():
        tenant = quotas[who % len(quotas)].tenant
        if units > 6:
            back = marks[-1 - where % len(marks)]
            cells.bindings.undo(back)
            marks = [mark for mark in marks if mark <= back]
        else:
            marks.append(cells.bindings.mark())
            cells.allocate_cells(tenant, pool.nodes[where % len(pool.nodes)].name, units * 1000)
        for quota in quotas:
            holding = cells.bindings.cells_of(quota.tenant)
            assert cells.usable_amounts(quota.tenant).tolist() == usable_amounts(cells.bindings, holding).tolist()


@patient
@given(full_pools())
def test_usable_amounts_agree_with_allocation(full: FullPool) -> None:
    pool, quotas, placed = full
    cells = PoolCells(pool, quotas, placed)
    for quota in quotas:
        for name, most in zip((n.name for n in pool.nodes), cells.usable_amounts(quota.tenant).tolist(), strict=True):
            mark = cells.bindings.mark()
            assert most == 0 or cells.allocate_cells(quota.tenant, name, most)
            cells.bindings.undo(mark)
            assert not cells.allocate_cells(quota.tenant, name, most + 1)


@patient
@given(full_pools())
def test_can_bind_keeps_other_cells_bindable(full: FullPool) -> None:
    pool, quotas, placed = full
    cells = PoolCells(pool, quotas, placed)
    rooms = {n.name: max(0, (n.allocatable[GPU] - n.used[GPU]) // 1000) for n in pool.nodes}
    unused: list[int] = []
    for quota in quotas:
        unused += [size for size, number in cells.unused_cells(quota.tenant).items() for _ in range(number)]
        for name, bound in cells.bound_cells(quota.tenant).items():
            rooms[name] -= sum(bound)
    for quota, name, size in product(quotas, rooms, cells.levels):
        after = sorted(resources - (size if name == at else 0) for at, resources in rooms.items())
        rest = sorted(unused, reverse=True)
        mine = size in cells.unused_cells(quota.tenant)
        if mine:
            rest.remove(size)
        assert can_bind(cells, quota.tenant, size, name) == (mine and after[0] >= 0 and fits_brute_force(rest, after))


def pool_without(pool: Pool, gone: set[int]) -> Pool:
    return pool_of([replace(n, usable=at not in gone) for at, n in enumerate(pool.nodes)])


def unguaranteed_units(cells: PoolCells, pool: Pool, quotas: Sequence[Quota]) -> int:
    """Return the units of usable nodes that no cell holds."""
    usable = {n.name for n in pool.nodes if n.usable}
    resources = sum(
        (n.allocatable[GPU] - n.used[GPU]) // 1000 for n in pool.nodes if n.usable and n.used[GPU] < n.allocatable[GPU]
    )
    for quota in quotas:
        resources -= sum(size * number for size, number in cells.unused_cells(quota.tenant).items())
        resources -= sum(sum(sizes) for name, sizes in cells.bound_cells(quota.tenant).items() if name in usable)
    return resources


@patient
@given(full_pools(), st.sets(st.integers(0, 4)))
def test_node_loss_reduces_minimum_and_is_restored(full: FullPool, gone: set[int]) -> None:
    pool, quotas, placed = full
    left = pool_without(pool, gone)

    idle = PoolCells(left, quotas)
    check_sound(idle, left, quotas)
    asked = sum(sum(split_units(q.guarantee[GPU] // 1000, idle.levels)) for q in quotas)
    resources = sum(max(0, (n.allocatable[GPU] - n.used[GPU]) // 1000) for n in left.nodes if n.usable)
    assert sum(loss.units for loss in idle.guarantee_losses) == max(0, asked - resources)

    busy = PoolCells(left, quotas, placed)
    check_sound(busy, left, quotas)
    assert not any(loss.units for loss in busy.guarantee_losses) or unguaranteed_units(busy, left, quotas) == 0
    for loss in busy.guarantee_losses:
        quota = next(q for q in quotas if q.tenant == loss.tenant)
        held = sum(size * number for size, number in loss.held.items())
        assert held + loss.units == quota.guarantee[GPU] // 1000
        bound = [size for sizes in busy.bound_cells(loss.tenant).values() for size in sizes]
        assert sum(bound) + sum(s * n for s, n in busy.unused_cells(loss.tenant).items()) == held
    for tenant in {quota.tenant for quota in quotas}:
        for name, over in busy.excess_by_node(tenant).items():
            used = sum(amount for who, at, amount in placed if (who, at) == (tenant, name))
            assert over == used - 1000 * sum(busy.bound_cells(tenant).get(name, ()))
    assert PoolCells(pool, quotas, placed).guarantee_losses == ()


@patient
@given(st.data())
def test_refusals_and_largest_guarantee_are_exact(data: st.DataObject) -> None:
    pool = pool_of(data.draw(nodes_of()))
    taken = data.draw(quotas_of(pool))
    asked = data.draw(st.integers(1, 30))
    levels = PoolCells(pool, ()).levels
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
