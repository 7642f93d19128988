"""Reduction of cells that no longer fit after nodes failed.

The reduction keeps the loss even: the next cell comes from the tenant whose lost part of its guarantee, times its
weight, would then be the smallest; among equals, from the latest grant. No reduction is stored: with the nodes back,
all cells are counted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from vkgateway.scheduler.core.guarantees.bindability import CellSlack
from vkgateway.scheduler.core.guarantees.cell_sizes import CellCounts
from vkgateway.scheduler.core.snapshot import Quota

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
