"""Guarantees that do not fit a pool and must be refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from vkgateway.api.quantity import render_quantity
from vkgateway.scheduler.core.guarantees.cell_sizes import (
    MILLI_PER_UNIT,
    pool_levels,
    quota_cells,
    units_for_cells,
)
from vkgateway.scheduler.core.guarantees.counted_cells import CellSlack
from vkgateway.scheduler.core.guarantees.pool_guarantees import PlacedAmount, PoolGuarantees
from vkgateway.scheduler.core.snapshot import Pool, Quota


def find_refusals(pool: Pool, quotas: Iterable[Quota]) -> list[str]:
    """Return one sentence for each reason why the usable nodes do not hold all these guarantees.

    Guarantees count in the order of their grants; one that does not fit takes nothing from later ones. The sum of each
    governed resource must fit; for the pool's unit, the nodes must hold all cells at the same time.
    """
    levels = pool_levels(pool)
    usable = [node for node in pool.nodes if node.usable]
    cell_slack = CellSlack(levels, (units_for_cells(node, pool.unit_resource) for node in usable))
    left = {
        name: sum(max(0, node.allocatable.get(name, 0) - node.used.get(name, 0)) for node in usable)
        for name in pool.governed
    }
    refusals: list[str] = []
    in_pool = (quota for quota in quotas if quota.pool == pool.key)
    for quota in sorted(in_pool, key=lambda quota: (quota.granted, quota.tenant)):
        faults = [*_input_faults(pool, quota, levels), *_sum_faults(pool, quota, left)]
        faults = faults or list(_cell_faults(pool, quota, cell_slack))
        refusals += faults
        if not faults:
            _count_grant(pool, quota, cell_slack, left)
    return refusals


def refusal_reasons(pool: Pool, others: Sequence[Quota], new_quota: Quota) -> list[str]:
    """Return the sentences that say why a new guarantee does not fit next to all existing ones.

    Existing guarantees take precedence, also where nodes failed since and even those no longer fit.
    """
    before = find_refusals(pool, others)
    last = replace(new_quota, granted=max((quota.granted for quota in others), default=0.0) + 1.0)
    found = [sentence for sentence in find_refusals(pool, [*others, last]) if sentence not in before]
    unmanaged = sum(node.used.get(pool.unit_resource, 0) for node in pool.nodes if node.usable) // MILLI_PER_UNIT
    suffix = f"; {unmanaged} are used by unmanaged pods" if unmanaged else ""
    if before and not found and any(new_quota.guarantee.get(name, 0) for name in pool.governed):
        found = [
            f"tenant {new_quota.tenant} requests a guarantee in pool {'/'.join(pool.key)}, whose usable nodes do not "
            "hold the existing guarantees; the largest guarantee that fits is 0"
        ]
    return [f"{sentence}{suffix}" for sentence in found]


def deferral_reason(pool: Pool, others: Sequence[Quota], new_quota: Quota, placed: Sequence[PlacedAmount]) -> str:
    """Return why a guarantee that empty nodes would hold must wait for guaranteed pods; empty: no wait."""
    if not new_quota.guarantee.get(pool.unit_resource, 0) or not displaces_pods(pool, others, new_quota, placed):
        return ""
    return (
        f"tenant {new_quota.tenant} requests a guarantee that pool {'/'.join(pool.key)} could hold, but guaranteed "
        "pods run where its cells would be; it is accepted when enough of them have ended"
    )


def largest_free_guarantee(pool: Pool, quotas: Iterable[Quota]) -> int:
    """Return the most whole units that one more tenant can be guaranteed on the usable nodes."""
    levels = pool_levels(pool)
    usable = [node for node in pool.nodes if node.usable]
    cell_slack = CellSlack(levels, (units_for_cells(node, pool.unit_resource) for node in usable))
    left = dict.fromkeys(pool.governed, 0)
    for quota in quotas:
        if quota.pool == pool.key:
            _count_grant(pool, quota, cell_slack, left)
    return largest_guarantee(cell_slack)


def displaces_pods(pool: Pool, quotas: Sequence[Quota], new_quota: Quota, placed: Sequence[PlacedAmount]) -> bool:
    """Return whether a guarantee that fits empty nodes conflicts with the placed guaranteed pods.

    Guaranteed pods never move: the promises of some tenants could not be kept until enough of them have ended.
    """
    others = [each for each in placed if each[0] != new_quota.tenant]
    before = _find_conflicts(PoolGuarantees(pool, quotas, others))
    return not _find_conflicts(PoolGuarantees(pool, [*quotas, new_quota], placed)) <= before


def _find_conflicts(guarantees: PoolGuarantees) -> set[tuple[object, ...]]:
    """Return the conflicts: lost cells, pods beyond their tenants' guarantees, and promised nodes that are in use."""
    lost = {(loss.tenant, loss.units, tuple(sorted(loss.held.items()))) for loss in guarantees.losses}
    over = {(tenant, guarantees.units_left(tenant)) for tenant in guarantees.overused_tenants()}
    return lost | over | {("", number) for number in range(guarantees.broken_promises())}


def _count_grant(pool: Pool, quota: Quota, cell_slack: CellSlack, left: dict[str, int]) -> None:
    for level, number in enumerate(quota_cells(quota, pool.unit_resource, cell_slack.levels)):
        cell_slack.add_cells(level, number)
    for name in left:
        left[name] -= quota.guarantee.get(name, 0)


def _input_faults(pool: Pool, quota: Quota, levels: Sequence[int]) -> Iterator[str]:
    for name in pool.governed:
        if quota.guarantee.get(name, 0) < 0:
            yield f"{_request_text(pool, quota, name)}; a guarantee cannot be less than 0"
    requested, cells = quota.guarantee.get(pool.unit_resource, 0), sum(quota.cells)
    if requested > 0 and requested % MILLI_PER_UNIT:
        lower, upper = requested // MILLI_PER_UNIT, requested // MILLI_PER_UNIT + 1
        yield (
            f"{_request_text(pool, quota, pool.unit_resource)}; only whole units can be "
            f"guaranteed: request {lower} or {upper}"
        )
    unknown_sizes = sorted(set(quota.cells).difference(levels), reverse=True)
    if unknown_sizes:
        yield (
            f"{_request_text(pool, quota, pool.unit_resource)} in cells of {_join_sizes(unknown_sizes)}; "
            f"the cell sizes of the pool are {_join_sizes(levels)}"
        )
    elif quota.cells and cells * MILLI_PER_UNIT != requested:
        yield (
            f"{_request_text(pool, quota, pool.unit_resource)}, but its cells "
            f"of {_join_sizes(quota.cells)} hold {cells}; the two "
            f"must be equal: request a guarantee of {cells}, or omit the cells"
        )


def _sum_faults(pool: Pool, quota: Quota, left: Mapping[str, int]) -> Iterator[str]:
    for name in pool.governed:
        if name != pool.unit_resource and quota.guarantee.get(name, 0) > left[name]:
            yield f"{_request_text(pool, quota, name)}; other guarantees leave {_amount_text(max(0, left[name]))}"


def _cell_faults(pool: Pool, quota: Quota, cell_slack: CellSlack) -> Iterator[str]:
    wanted = 0
    for size, number, slack in zip(
        cell_slack.levels, quota_cells(quota, pool.unit_resource, cell_slack.levels), cell_slack.slack, strict=True
    ):
        wanted += number * size
        if wanted > slack:
            yield (
                f"{_request_text(pool, quota, pool.unit_resource)}: {wanted} in cells of {size} or more, "
                f"of which other guarantees leave {max(0, slack)}; "
                f"the largest guarantee that fits is {largest_guarantee(cell_slack)}"
            )
            return


def largest_guarantee(cell_slack: CellSlack) -> int:
    """Return the most whole units that can be guaranteed in addition, in the largest possible cells.

    A guarantee of n needs floor(n / s) x s units in cells of size s and larger, which never falls as n grows.
    """
    return max(
        0, min(slack // size * size + size - 1 for size, slack in zip(cell_slack.levels, cell_slack.slack, strict=True))
    )


def _request_text(pool: Pool, quota: Quota, resource: str) -> str:
    amount = _amount_text(quota.guarantee.get(resource, 0))
    return f"tenant {quota.tenant} requests a guarantee of {amount} {resource} in pool {'/'.join(pool.key)}"


def _amount_text(amount: int) -> str:
    return render_quantity(Decimal(amount) / MILLI_PER_UNIT)


def _join_sizes(sizes: Iterable[int]) -> str:
    return ", ".join(str(size) for size in sizes)
