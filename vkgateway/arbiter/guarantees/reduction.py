"""Reduction of cells that no longer fit after nodes failed, and restoration of what fits.

The reduction keeps the loss even: the next cell comes from the tenant whose lost part of its guarantee, times its
weight, would then be the smallest; among equals, from the latest grant. Whether pods run in a cell does not matter:
their pods borrow afterwards. No reduction is stored: the next derivation, with the nodes back, has all cells again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from vkgateway.arbiter.decisions import GuaranteeLoss
from vkgateway.arbiter.guarantees.cell_bindings import CellBindings, TenantCells
from vkgateway.arbiter.guarantees.cell_sizes import counts_by_size, total_units
from vkgateway.arbiter.guarantees.derived_bindings import bind_excess
from vkgateway.arbiter.snapshot import PoolKey, Quota

_TINY = 1e-9
_STEPS_PER_SHARE = 16
"""A tenant loses or regains at most this fraction of its even share per step: enough steps to be fair, few enough to be
fast."""


_BoundCell = tuple[int, int, str, int]
"""Size, used thousandths of the node, node name, and level of the cell."""

_ClaimHeap = list[tuple[float, float, str]]
"""Heap of tenants: weighted loss after the next step, time of the grant, name."""


@dataclass(slots=True)
class _GuaranteeClaim:
    """State of a tenant's guarantee during a reduction."""

    tenant: str
    units: int
    """Units of its cells before the reduction."""
    weight: float
    granted: float
    lost_units: int = 0
    bound_cells: dict[int, list[_BoundCell]] = field(default_factory=dict)
    """Bound cells by level that can free capacity there; the next to take is last."""

    def weighted_loss(self, more: int) -> float:
        """Return the weighted fraction of the guarantee that is lost after losing `more` units."""
        weight = self.weight if self.weight > _TINY else _TINY
        return (self.lost_units + more) * weight / max(1, self.units)


def reduce_guarantees(bindings: CellBindings, pool: PoolKey, quotas: Sequence[Quota]) -> tuple[GuaranteeLoss, ...]:
    """Remove the cells of the pool's quotas that do not fit, and return what the tenants lose, by tenant."""
    levels = bindings.levels
    before = {quota.tenant: bindings.cells_of(quota.tenant).all_cells() for quota in quotas}
    claims = {
        quota.tenant: _GuaranteeClaim(
            quota.tenant, total_units(before[quota.tenant], levels), quota.weight, quota.granted
        )
        for quota in quotas
    }
    _reduce_cells(bindings, claims)
    bind_excess(bindings)
    # A restored cell may hold pods on unusable nodes, which leaves capacity for more.
    while _restore_cells(bindings, claims):
        bind_excess(bindings)
    return tuple(
        GuaranteeLoss(
            pool=pool,
            tenant=tenant,
            units=claim.lost_units,
            asked=counts_by_size(before[tenant], levels),
            held=counts_by_size(held, levels),
        )
        for tenant, claim in sorted(claims.items())
        if (held := bindings.cells_of(tenant).all_cells()) != before[tenant]
    )


def _reduce_cells(bindings: CellBindings, claims: Mapping[str, _GuaranteeClaim]) -> None:
    """Remove cells until the rest can all be bound; `_restore_cells` then returns what fits in smaller cells."""
    level = bindings.cell_slack.short_level()
    while level is not None:
        _reduce_at_level(bindings, claims, level)
        level = bindings.cell_slack.short_level()


def _reduce_at_level(bindings: CellBindings, claims: Mapping[str, _GuaranteeClaim], level: int) -> None:
    """Remove cells until those of this level and above can all be bound.

    While they cannot, some tenant has unused cells, so there is always one to remove.
    """
    waiting: _ClaimHeap = []
    for tenant in sorted(claims):
        _enqueue_claim(bindings, claims[tenant], level, waiting)
    heapify(waiting)
    while bindings.cell_slack.slack[level] < 0:
        loss, _, tenant = heappop(waiting)
        claim = claims[tenant]
        found = _next_cell(bindings, claim, level)
        if found is not None and claim.weighted_loss(bindings.levels[found[0]]) <= loss:
            # Many cells per step only while the loss is far from every tenant's even share.
            even = -bindings.cell_slack.slack[level] // (bindings.levels[found[0]] * _STEPS_PER_SHARE * len(claims))
            _take_cells(bindings, claim, *found, max(1, even))
        _enqueue_claim(bindings, claim, level, waiting)


def _enqueue_claim(bindings: CellBindings, claim: _GuaranteeClaim, level: int, waiting: _ClaimHeap) -> None:
    found = _next_cell(bindings, claim, level)
    if found is not None:
        heappush(waiting, (claim.weighted_loss(bindings.levels[found[0]]), -claim.granted, claim.tenant))


def _next_cell(bindings: CellBindings, claim: _GuaranteeClaim, level: int) -> tuple[int, int | None] | None:
    """Return the level of the tenant's next cell to remove, unused ones first, and the node of a bound one."""
    tenant_cells = bindings.cells_of(claim.tenant)
    for at in range(level, -1, -1):
        if tenant_cells.unused[at]:
            return at, None
    if level not in claim.bound_cells:
        claim.bound_cells[level] = sorted(_bound_cells(bindings, tenant_cells), reverse=True)
    waiting = claim.bound_cells[level]
    while waiting:
        _, _, name, at = waiting[-1]
        node = bindings.numbers[name]
        if tenant_cells.bound_cells(node)[at] and _frees_cell(bindings, node, at, level):
            return at, node
        waiting.pop()
    return None


def _bound_cells(bindings: CellBindings, tenant_cells: TenantCells) -> Iterator[_BoundCell]:
    """Yield the bound cells on usable nodes; they sort by size, then by usage."""
    for node, counts in tenant_cells.bound_by_node.items():
        for at, number in enumerate(counts):
            if number and bindings.cell_slack.usable[node]:
                yield bindings.levels[at], tenant_cells.used_by_node.get(node, 0), bindings.names[node], at


def _frees_cell(bindings: CellBindings, node: int, at: int, level: int) -> bool:
    size, free = bindings.levels[level], bindings.cell_slack.free_units[node]
    return (free + bindings.levels[at]) // size > free // size


def _take_cells(bindings: CellBindings, claim: _GuaranteeClaim, level: int, node: int | None, number: int) -> None:
    """Remove up to `count` unused cells of a level, or the cell bound to a node."""
    tenant_cells = bindings.cells_of(claim.tenant)
    if node is None:
        number = min(number, tenant_cells.unused[level])
    else:
        number = 1
        cells = list(tenant_cells.bound_cells(node))
        cells[level] -= 1
        bindings.set_bound_cells(tenant_cells, node, cells, tenant_cells.used_by_node.get(node, 0))
    bindings.add_unused(tenant_cells, level, -number)
    claim.lost_units += number * bindings.levels[level]


def _restore_cells(bindings: CellBindings, claims: Mapping[str, _GuaranteeClaim]) -> bool:
    """Restore lost units in cells that fit, the largest first, to the tenants with the highest weighted loss.

    Return whether any cell was restored.
    """
    before = sum(claim.lost_units for claim in claims.values())
    for level, size in enumerate(bindings.levels):
        waiting = [
            (-claim.weighted_loss(0), claim.granted, claim.tenant)
            for claim in claims.values()
            if claim.lost_units >= size
        ]
        heapify(waiting)
        while waiting and (free := min(bindings.cell_slack.slack[level:]) // size) > 0:
            claim = claims[heappop(waiting)[2]]
            number = min(claim.lost_units // size, max(1, free // (_STEPS_PER_SHARE * len(claims))))
            bindings.add_unused(bindings.cells_of(claim.tenant), level, number)
            claim.lost_units -= number * size
            if claim.lost_units >= size:
                heappush(waiting, (-claim.weighted_loss(0), claim.granted, claim.tenant))
    return sum(claim.lost_units for claim in claims.values()) < before
