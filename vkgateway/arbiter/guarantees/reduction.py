"""Cells when nodes have gone and all of them no longer fit: who loses how much, and what can be given back.

Reduced is what keeps the loss even: the next cell is taken from the tenant that has then lost the least part of its
guarantee, times its weight; among equals from the last granted. Whether pods run in a cell does not matter: promises
are what is reduced, and pods left without a cell are borrowing from then on. Nothing of it is kept: the next time
that cells are counted, with the nodes back, they are all there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from vkgateway.arbiter.guarantees.cell_bindings import CellBindings, TenantCells

_TINY = 1e-9
_STEPS_PER_SHARE = 16
"""A tenant loses, or gets back, at most this part of its even share at once: steps enough to be fair, few enough to be
quick."""


_BoundCell = tuple[int, int, str, int]
"""Its size, what is used of its node (thousandths), the node's name, the cell's level."""

_ClaimHeap = list[tuple[float, float, str]]
"""A heap of tenants: the pain of what comes next, when it was granted, the name."""


@dataclass(slots=True)
class GuaranteeClaim:
    """A tenant's standing where cells are reduced."""

    tenant: str
    units: int
    """What its cells held at first."""
    weight: float
    granted: float
    lost_units: int = 0
    bound_cells: dict[int, list[_BoundCell]] = field(default_factory=dict)
    """For a level: its bound cells that may make room there, the first to be taken last."""

    def weighted_loss(self, more: int) -> float:
        """The part of its guarantee that it will have lost, times its weight; a weight must be above zero to count."""
        weight = self.weight if self.weight > _TINY else _TINY
        return (self.lost_units + more) * weight / max(1, self.units)


def reduce_cells(bindings: CellBindings, claims: Mapping[str, GuaranteeClaim]) -> None:
    """Take cells away until the rest can all be bound; `restore_cells` then returns what has room in smaller pieces."""
    level = bindings.cell_slack.short_level()
    while level is not None:
        _reduce_at_level(bindings, claims, level)
        level = bindings.cell_slack.short_level()


def _reduce_at_level(bindings: CellBindings, claims: Mapping[str, GuaranteeClaim], level: int) -> None:
    """Take cells away until those of this level and above can all be bound.

    As long as they cannot, somebody has unused ones, so there is always one to take.
    """
    waiting: _ClaimHeap = []
    for tenant in sorted(claims):
        _enqueue_claim(bindings, claims[tenant], level, waiting)
    heapify(waiting)
    while bindings.cell_slack.slack[level] < 0:
        pain, _, tenant = heappop(waiting)
        claim = claims[tenant]
        found = _next_cell(bindings, claim, level)
        if found is not None and claim.weighted_loss(bindings.levels[found[0]]) <= pain:
            # Many at once only as long as that is far from anybody's even share.
            even = -bindings.cell_slack.slack[level] // (bindings.levels[found[0]] * _STEPS_PER_SHARE * len(claims))
            _take_cells(bindings, claim, *found, max(1, even))
        _enqueue_claim(bindings, claim, level, waiting)


def _enqueue_claim(bindings: CellBindings, claim: GuaranteeClaim, level: int, waiting: _ClaimHeap) -> None:
    found = _next_cell(bindings, claim, level)
    if found is not None:
        heappush(waiting, (claim.weighted_loss(bindings.levels[found[0]]), -claim.granted, claim.tenant))


def _next_cell(bindings: CellBindings, claim: GuaranteeClaim, level: int) -> tuple[int, int | None] | None:
    """The level of the cell that the tenant would lose, and its node where it is bound: unused ones first."""
    holding = bindings.cells_of(claim.tenant)
    for at in range(level, -1, -1):
        if holding.unused[at]:
            return at, None
    if level not in claim.bound_cells:
        claim.bound_cells[level] = sorted(_bound_cells(bindings, holding), reverse=True)
    waiting = claim.bound_cells[level]
    while waiting:
        _, _, name, at = waiting[-1]
        node = bindings.numbers[name]
        if bindings.bound_cells(holding, node)[at] and _frees_cell(bindings, node, at, level):
            return at, node
        waiting.pop()
    return None


def _bound_cells(bindings: CellBindings, holding: TenantCells) -> Iterator[_BoundCell]:
    """Bound cells whose nodes are usable; as they sort: small ones first, then those with the least use."""
    for node, counts in holding.bound_by_node.items():
        for at, number in enumerate(counts):
            if number and bindings.cell_slack.usable[node]:
                yield bindings.levels[at], holding.used_by_node.get(node, 0), bindings.names[node], at


def _frees_cell(bindings: CellBindings, node: int, at: int, level: int) -> bool:
    size, room = bindings.levels[level], bindings.cell_slack.free_units[node]
    return (room + bindings.levels[at]) // size > room // size


def _take_cells(bindings: CellBindings, claim: GuaranteeClaim, level: int, node: int | None, number: int) -> None:
    """Take unused cells of a level from the tenant, as many as there are up to a number, or the one bound to a node."""
    holding = bindings.cells_of(claim.tenant)
    if node is None:
        number = min(number, holding.unused[level])
    else:
        number = 1
        cells = list(bindings.bound_cells(holding, node))
        cells[level] -= 1
        bindings.set_bound_cells(holding, node, cells, holding.used_by_node.get(node, 0))
    bindings.add_unused(holding, level, -number)
    claim.lost_units += number * bindings.levels[level]


def restore_cells(bindings: CellBindings, claims: Mapping[str, GuaranteeClaim]) -> bool:
    """What was lost in large cells comes back in those that have room: the largest first, to whom it hurts most.

    Returns whether anything came back.
    """
    before = sum(claim.lost_units for claim in claims.values())
    for level, size in enumerate(bindings.levels):
        waiting = [
            (-claim.weighted_loss(0), claim.granted, claim.tenant)
            for claim in claims.values()
            if claim.lost_units >= size
        ]
        heapify(waiting)
        while waiting and (room := min(bindings.cell_slack.slack[level:]) // size) > 0:
            claim = claims[heappop(waiting)[2]]
            number = min(claim.lost_units // size, max(1, room // (_STEPS_PER_SHARE * len(claims))))
            bindings.add_unused(bindings.cells_of(claim.tenant), level, number)
            claim.lost_units -= number * size
            if claim.lost_units >= size:
                heappush(waiting, (-claim.weighted_loss(0), claim.granted, claim.tenant))
    return sum(claim.lost_units for claim in claims.values()) < before
