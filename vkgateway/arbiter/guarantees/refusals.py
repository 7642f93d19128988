"""Guarantees that cannot be kept: what must be refused before a tenant is told that it has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from vkgateway.arbiter.guarantees.bindability import CellSlack
from vkgateway.arbiter.guarantees.cell_sizes import MILLI_PER_UNIT, pool_levels, quota_cells, units_for_cells
from vkgateway.arbiter.guarantees.cells import PlacedAmount, PoolCells
from vkgateway.arbiter.snapshot import Pool, Quota
from vkgateway.model.quantity import render_quantity


def find_refusals(pool: Pool, quotas: Iterable[Quota]) -> list[str]:
    """Why not all these guarantees can be kept on the nodes that are usable now; one sentence for each fault.

    Guarantees are granted in their order in time; one that does not fit takes nothing from those after it. Of each
    governed resource the sum must be there; of the pool's unit all cells must be bindable at once.
    """
    levels = pool_levels(pool)
    usable = [node for node in pool.nodes if node.usable]
    tally = CellSlack(levels, [units_for_cells(node, pool.unit_resource) for node in usable], [True] * len(usable))
    left = {
        name: sum(max(0, node.allocatable.get(name, 0) - node.used.get(name, 0)) for node in usable)
        for name in pool.governed
    }
    said: list[str] = []
    mine = (quota for quota in quotas if quota.pool == pool.key)
    for quota in sorted(mine, key=lambda quota: (quota.granted, quota.tenant)):
        faults = [*_input_faults(pool, quota, levels), *_sum_faults(pool, quota, left)]
        faults = faults or list(_cell_faults(pool, quota, tally))
        said += faults
        if not faults:
            _count_grant(pool, quota, tally, left)
    return said


def refusal_reasons(pool: Pool, others: Sequence[Quota], mine: Quota) -> list[str]:
    """Why a guarantee cannot be kept by cells that are bound at the same time as all others', in sentences.

    Whoever was accepted before comes first: also where nodes have died since and not even that can be kept.
    """
    before = find_refusals(pool, others)
    last = replace(mine, granted=max((quota.granted for quota in others), default=0.0) + 1.0)
    found = [sentence for sentence in find_refusals(pool, [*others, last]) if sentence not in before]
    strangers = sum(node.used.get(pool.unit_resource, 0) for node in pool.nodes if node.usable) // MILLI_PER_UNIT
    more = f"; {strangers} are held by pods that are not the gateway's" if strangers else ""
    if before and not found and any(mine.guarantee.get(name, 0) for name in pool.governed):
        found = [
            f"tenant {mine.tenant} asks for a guarantee in pool {'/'.join(pool.key)}, whose usable nodes do not hold "
            "what is guaranteed to others already; the largest that would fit is 0"
        ]
    return [f"{sentence}{more}" for sentence in found]


def deferral_reason(pool: Pool, others: Sequence[Quota], mine: Quota, placed: Sequence[PlacedAmount]) -> str:
    """Say that guaranteed pods stand where a guarantee's cells would be, though empty nodes would hold it; or ""."""
    if not mine.guarantee.get(pool.unit_resource, 0) or not displaces_pods(pool, others, mine, placed):
        return ""
    return (
        f"tenant {mine.tenant} asks for a guarantee that pool {'/'.join(pool.key)} could hold, but pods that run "
        "inside guarantees stand where its cells would be; it is accepted once enough of them have ended"
    )


def largest_free_guarantee(pool: Pool, quotas: Iterable[Quota]) -> int:
    """The most whole units that could be guaranteed to one more tenant on the nodes that are usable now."""
    levels = pool_levels(pool)
    usable = [node for node in pool.nodes if node.usable]
    tally = CellSlack(levels, [units_for_cells(node, pool.unit_resource) for node in usable], [True] * len(usable))
    left = dict.fromkeys(pool.governed, 0)
    for quota in quotas:
        if quota.pool == pool.key:
            _count_grant(pool, quota, tally, left)
    return largest_guarantee(tally)


def displaces_pods(pool: Pool, quotas: Sequence[Quota], more: Quota, placed: Sequence[PlacedAmount]) -> bool:
    """Whether a guarantee that would fit empty nodes fits no more as guaranteed pods stand now.

    They are never moved. With it somebody's cells would have to be reduced, perhaps those that such pods run in.
    """
    before = {each for each in _find_conflicts(PoolCells(pool, quotas, placed), placed) if each[0] != more.tenant}
    return not _find_conflicts(PoolCells(pool, [*quotas, more], placed), placed) <= before


def _find_conflicts(cells: PoolCells, placed: Sequence[PlacedAmount]) -> set[tuple[object, ...]]:
    """What is wrong: cells that are lost, and pods that stand beyond those of their tenants."""
    lost = {(loss.tenant, loss.units, tuple(sorted(loss.held.items()))) for loss in cells.guarantee_losses()}
    tenants = {tenant for tenant, _, _ in placed}
    return lost | {(tenant, *each) for tenant in tenants for each in cells.excess_by_node(tenant).items()}


def _count_grant(pool: Pool, quota: Quota, tally: CellSlack, left: dict[str, int]) -> None:
    for level, number in enumerate(quota_cells(quota, pool.unit_resource, tally.levels)):
        tally.add_unused(level, number)
    for name in left:
        left[name] -= quota.guarantee.get(name, 0)


def _input_faults(pool: Pool, quota: Quota, levels: Sequence[int]) -> Iterator[str]:
    for name in pool.governed:
        if quota.guarantee.get(name, 0) < 0:
            yield f"{_request_text(pool, quota, name)}; a guarantee cannot be less than 0"
    asked, cells = quota.guarantee.get(pool.unit_resource, 0), sum(quota.cells)
    if asked > 0 and asked % MILLI_PER_UNIT:
        below, above = asked // MILLI_PER_UNIT, asked // MILLI_PER_UNIT + 1
        yield (
            f"{_request_text(pool, quota, pool.unit_resource)}; only whole units can be "
            f"guaranteed: ask for {below} or {above}"
        )
    odd = sorted(set(quota.cells).difference(levels), reverse=True)
    if odd:
        yield (
            f"{_request_text(pool, quota, pool.unit_resource)} in cells of {_join_sizes(odd)}; "
            f"the largest of the pool is {levels[0]}, its sizes are {_join_sizes(levels)}"
        )
    elif quota.cells and cells * MILLI_PER_UNIT != asked:
        yield (
            f"{_request_text(pool, quota, pool.unit_resource)}, and for cells of "
            f"{_join_sizes(quota.cells)}, which hold {cells}; the two "
            f"must be equal: ask for {cells} guaranteed, or leave the cells out"
        )


def _sum_faults(pool: Pool, quota: Quota, left: Mapping[str, int]) -> Iterator[str]:
    for name in pool.governed:
        if name != pool.unit_resource and quota.guarantee.get(name, 0) > left[name]:
            yield f"{_request_text(pool, quota, name)}; not guaranteed to others are {_amount_text(max(0, left[name]))}"


def _cell_faults(pool: Pool, quota: Quota, tally: CellSlack) -> Iterator[str]:
    wanted = 0
    for size, number, slack in zip(
        tally.levels, quota_cells(quota, pool.unit_resource, tally.levels), tally.slack, strict=True
    ):
        wanted += number * size
        if wanted > slack:
            yield (
                f"{_request_text(pool, quota, pool.unit_resource)}: {wanted} in cells of {size} or more, "
                f"of which {max(0, slack)} are left beside the guarantees of others; "
                f"the largest that would fit is {largest_guarantee(tally)}"
            )
            return


def largest_guarantee(tally: CellSlack) -> int:
    """The most whole units that could be guaranteed on top of the cells counted, cut as large as they can be.

    A guarantee of n asks for floor(n / s) x s units in cells of size s and larger, which never falls as n grows.
    """
    return max(0, min(slack // size * size + size - 1 for size, slack in zip(tally.levels, tally.slack, strict=True)))


def _request_text(pool: Pool, quota: Quota, resource: str) -> str:
    amount = _amount_text(quota.guarantee.get(resource, 0))
    return f"tenant {quota.tenant} asks for {amount} {resource} guaranteed in pool {'/'.join(pool.key)}"


def _amount_text(amount: int) -> str:
    return render_quantity(Decimal(amount) / MILLI_PER_UNIT)


def _join_sizes(sizes: Iterable[int]) -> str:
    return ", ".join(str(size) for size in sizes)
