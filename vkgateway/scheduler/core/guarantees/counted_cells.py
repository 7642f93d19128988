"""Cells of all tenants in a pool, those that missing nodes leave, and what nodes they need. It does without numpy, as
an idle gateway does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from vkgateway.scheduler.core.decisions import GuaranteeLoss
from vkgateway.scheduler.core.guaranteed_nodes import Guarantees, pack_cells
from vkgateway.scheduler.core.guarantees.cell_sizes import (
    MILLI_PER_UNIT,
    CellCounts,
    counts_by_size,
    pool_levels,
    quota_cells,
    round_up_units,
    smallest_cover,
    total_units,
    units_for_cells,
)
from vkgateway.scheduler.core.snapshot import Pool, Quota


class CountedCells(NamedTuple):
    """Cells of a pool."""

    levels: tuple[int, ...]
    """Cell sizes, the largest first."""
    held: Mapping[str, CellCounts]
    """Cells of each tenant."""
    here: Mapping[str, CellCounts]
    """Those of them on nodes that accept pods: pods on other nodes use up the rest."""
    losses: tuple[GuaranteeLoss, ...]
    """Guarantees that were reduced, by tenant; empty while all cells fit."""


def count_pool_cells(pool: Pool, quotas: Iterable[Quota], away: Mapping[tuple[str, str], int]) -> CountedCells:
    """Return the cells of a pool. `away`: thousandths on nodes that accept no pods, by tenant and node."""
    unit, levels = pool.unit_resource, pool_levels(pool)
    pool_quotas = sorted(
        (quota for quota in quotas if quota.pool == pool.key), key=lambda quota: (quota.granted, quota.tenant)
    )
    asked = {quota.tenant: quota_cells(quota, unit, levels) for quota in pool_quotas}
    here = {tenant: list(cells) for tenant, cells in asked.items()}
    for (tenant, _), amount in sorted(away.items()):
        cells = here.get(tenant)
        taken = smallest_cover(cells, levels, round_up_units(amount)) if cells is not None else None
        if cells is not None:
            here[tenant] = [have - gone for have, gone in zip(cells, taken or cells, strict=True)]
    slack = CellSlack(levels, (units_for_cells(node, unit) for node in pool.nodes if node.usable))
    for cells in here.values():
        for level, count in enumerate(cells):
            slack.add_cells(level, count)
    if slack.short_level() is None:
        return CountedCells(levels, asked, here, ())
    before = {tenant: list(cells) for tenant, cells in here.items()}
    units = {tenant: total_units(cells, levels) for tenant, cells in asked.items()}
    lost = reduce_cells(slack, here, units, pool_quotas)
    held = {
        tenant: [count + now - then for count, now, then in zip(cells, here[tenant], before[tenant], strict=True)]
        for tenant, cells in asked.items()
    }
    losses = (
        GuaranteeLoss(
            pool=pool.key,
            tenant=tenant,
            units=lost[tenant],
            asked=counts_by_size(asked[tenant], levels),
            held=counts_by_size(held[tenant], levels),
        )
        for tenant in sorted(asked)
        if held[tenant] != asked[tenant]
    )
    return CountedCells(levels, held, here, tuple(losses))


def usable_size(pool: Pool, number: int) -> int:
    """Return the thousandths that a node of the pool has for guarantees."""
    return units_for_cells(pool.nodes[number], pool.unit_resource) * MILLI_PER_UNIT


def pack_counted(pool: Pool, counted: CountedCells) -> dict[int, Guarantees]:
    """Return what the tenants are guaranteed on nodes of each size, in thousandths."""
    cells = {
        tenant: {size * MILLI_PER_UNIT: count for size, count in counts_by_size(counts, counted.levels).items()}
        for tenant, counts in counted.here.items()
    }
    sizes = [usable_size(pool, number) for number, node in enumerate(pool.nodes) if node.usable]
    return pack_cells(cells, sizes)


def count_spare_nodes(pool: Pool, quotas: Iterable[Quota]) -> int:
    """Return the nodes beyond all guarantees, if every node that accepts no pods is empty."""
    packed = pack_counted(pool, count_pool_cells(pool, quotas, {}))
    return sum(node.usable for node in pool.nodes) - sum(guarantees.total for guarantees in packed.values())


# No reduction is stored: with the nodes back, all cells are counted again.
_TINY = 1e-9
_STEPS_PER_SHARE = 16
"""A tenant loses or regains at most this fraction of its even share per step: enough steps to be fair, few enough to be
fast."""


@dataclass(slots=True)
class _Claim:
    """State of a tenant's guarantee during a reduction."""

    tenant: str
    units: int
    """Units of its cells before the reduction."""
    weight: float
    granted: float
    cells: CellCounts
    """Its cells on usable nodes."""
    lost_units: int = 0

    def weighted_loss(self, more: int) -> float:
        """Return the weighted fraction of the guarantee that is lost after losing `more` units."""
        return (self.lost_units + more) * max(self.weight, _TINY) / max(1, self.units)

    def next_level(self, level: int) -> int | None:
        """Return the level of the next cell to remove, so that those of `level` fit; None: it has none."""
        return next((at for at in range(level, -1, -1) if self.cells[at]), None)


def reduce_cells(
    cell_slack: CellSlack, cells: Mapping[str, CellCounts], units: Mapping[str, int], quotas: Sequence[Quota]
) -> dict[str, int]:
    """Remove the cells that do not fit, and return the units that each tenant loses, by tenant.

    The loss is kept even: the next cell comes from the tenant whose lost part of its guarantee, times its weight, would
    then be the smallest; among equals, from the latest grant. No reduction is stored: with the nodes back, all cells
    are counted again.

    `cells`: the cells on usable nodes by tenant, which are changed. `units`: all units of each guarantee.
    """
    claims = [
        _Claim(quota.tenant, units[quota.tenant], quota.weight, quota.granted, cells[quota.tenant]) for quota in quotas
    ]
    while (level := cell_slack.short_level()) is not None:
        _reduce_at_level(cell_slack, claims, level)
    _restore_cells(cell_slack, claims)
    return {claim.tenant: claim.lost_units for claim in claims}


def _reduce_at_level(cell_slack: CellSlack, claims: Sequence[_Claim], level: int) -> None:
    """Remove cells until those of this level and above fit. While they do not, some tenant has one to remove."""
    waiting: list[tuple[float, float, str, int]] = []

    def enqueue(number: int) -> None:
        claim = claims[number]
        at = claim.next_level(level)
        if at is not None:
            loss = claim.weighted_loss(cell_slack.levels[at])
            heappush(waiting, (loss, -claim.granted, claim.tenant, number))

    for number in range(len(claims)):
        enqueue(number)
    while cell_slack.slack[level] < 0:
        number = heappop(waiting)[-1]
        claim = claims[number]
        at = claim.next_level(level)
        assert at is not None
        # Many cells per step only while the loss is far from every tenant's even share.
        even = -cell_slack.slack[level] // (cell_slack.levels[at] * _STEPS_PER_SHARE * len(claims))
        _change_cells(cell_slack, claim, at, -min(claim.cells[at], max(1, even)))
        enqueue(number)


def _restore_cells(cell_slack: CellSlack, claims: Sequence[_Claim]) -> None:
    """Restore lost units in cells that fit, the largest first, to the tenants with the highest weighted loss."""
    for level, size in enumerate(cell_slack.levels):
        waiting = [
            (-claim.weighted_loss(0), claim.granted, claim.tenant, number)
            for number, claim in enumerate(claims)
            if claim.lost_units >= size
        ]
        heapify(waiting)
        while waiting and (free := min(cell_slack.slack[level:]) // size) > 0:
            number = heappop(waiting)[-1]
            claim = claims[number]
            even = free // (_STEPS_PER_SHARE * len(claims))
            _change_cells(cell_slack, claim, level, min(claim.lost_units // size, max(1, even)))
            if claim.lost_units >= size:
                heappush(waiting, (-claim.weighted_loss(0), claim.granted, claim.tenant, number))


def _change_cells(cell_slack: CellSlack, claim: _Claim, level: int, count: int) -> None:
    claim.cells[level] += count
    claim.lost_units -= count * cell_slack.levels[level]
    cell_slack.add_cells(level, count)


class CellSlack:
    """Test by counting whether nodes hold all cells at the same time.

    For each cell size s, the slack is

        s x (sum over usable nodes of floor(free / s))  -  (units in cells of size s and larger)

    where `free` are the free units of the node. The nodes hold all cells at the same time exactly if no slack is
    negative.

    *Necessary.* Cells of size s and larger are multiples of s, so a node holds at most floor(free / s) x s units of
    them.

    *Sufficient.* Place the cells one by one, the largest first, each on any node that fits it. Suppose that no node
    fits one of size s. All cells placed before are multiples of s, so a node has less than s left only if exactly
    floor(free / s) x s units of it are taken. All nodes together then hold the maximum of cells of size s and larger,
    and one more is left to place: that slack was negative.

    Nodes may have any number of free units; only the cell sizes must divide each other.
    """

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
