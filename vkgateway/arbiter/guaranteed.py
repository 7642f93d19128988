"""Step 2: gangs of the guaranteed band that fit their tenant's unused cells; who stands in their way is evicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.bestpool import best, cost, places_inside, start_at_best
from vkgateway.arbiter.cellsline import keep_cells
from vkgateway.arbiter.facts import Gang
from vkgateway.arbiter.feasible import impossible
from vkgateway.arbiter.filling import fill_cell
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.line import by_priority
from vkgateway.arbiter.plans import carry_out, find_room, inside_of, place_now
from vkgateway.arbiter.preemption import yields
from vkgateway.arbiter.promotion import promotable, promote
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.together import try_together, undecided_parts

_MANY = 4
"""For so many gangs of a pool cells are bound anew in a cycle: more would take too long."""


def start_guaranteed(ledger: Ledger) -> None:
    """Start whoever can inside its tenant's cells, or tell who must go for it; tenants do not wait for each other.

    What runs already and borrows stands in the same line: it is inside from now on if cells hold it in its turn.
    """
    line = _line(ledger)
    _promote_firsts(ledger, line)
    hopeless: set[tuple[str, int]] = set()
    for turn in line:
        ask = turn.ask
        if ask is None:
            if turn.standing is not None:
                promote(turn.standing, turn.gang)
        elif (ask.tenant, ask.kind) not in hopeless:
            (_try if ask.gang.part is None else _try_parts)(ledger, ask, hopeless)


def _promote_firsts(ledger: Ledger, line: Sequence[_Turn]) -> None:
    """Promote what runs and stands in its tenant's line before all that may take those cells from it.

    Before anybody makes room: else another tenant's guarantee, whose turn is before, calls in what is inside by now.
    """
    left = {turn.gang.tenant for turn in line if turn.ask is None}
    for turn in line if left else ():
        tenant, ask = turn.gang.tenant, turn.ask
        if tenant not in left:
            continue
        if ask is None:
            if turn.standing is not None:
                promote(turn.standing, turn.gang)
        elif _may_take_cells(ledger, ask):
            left.discard(tenant)


def _may_take_cells(ledger: Ledger, ask: Ask) -> bool:
    """Whether cells go to a gang that waits, or are kept for it, before its tenant's later ones have them."""
    if ledger.has_aged(ask.gang):
        return True
    pools = (standing for standing in ledger.pools(ask) if not impossible(standing, ask))
    return any(standing.allows_beside(ask.gang, ask.core) for standing in pools)


class _Turn(NamedTuple):
    """A gang that waits, or one that runs and borrows, and where it runs."""

    gang: Gang
    ask: Ask | None = None
    standing: Standing | None = None


def _line(ledger: Ledger) -> list[_Turn]:
    turns = [_Turn(ask.gang, ask) for ask in ledger.guaranteed()]
    turns += [_Turn(gang, None, standing) for standing in ledger.standings.values() for gang in promotable(standing)]
    return sorted(turns, key=lambda turn: (turn.gang.tenant, by_priority(turn.gang), turn.ask is not None))


def _try(ledger: Ledger, ask: Ask, hopeless: set[tuple[str, int]]) -> None:
    possible = [standing for standing in ledger.pools(ask) if _is_possible(ledger, standing, ask)]
    pools = [standing for standing in possible if standing.allows_beside(ask.gang, ask.core)]
    evicts = len(ledger.evicts)
    if fill_cell(ledger, pools, ask) or _start(ledger, pools, ask) or _start_anew(ledger, pools, ask):
        if len(ledger.evicts) > evicts:
            hopeless.clear()
        return
    if _make_room(ledger, pools, ask):
        hopeless.clear()
    else:
        keep_cells(ledger, possible, ask)
        hopeless.add((ask.tenant, ask.kind))


def _try_parts(ledger: Ledger, ask: Ask, hopeless: set[tuple[str, int]]) -> None:
    """Start or plan all parts of a gang inside the guarantees of their pools."""
    parts = undecided_parts(ledger, ask)
    evicts = len(ledger.evicts)
    failed = try_together(ledger, parts, lambda pools, part: try_inside(ledger, pools, part)) if parts else None
    if failed is not None:
        keep_cells(ledger, [each for each in ledger.pools(failed) if not impossible(each, failed)], failed)
        hopeless.update((part.tenant, part.kind) for part in parts)
    elif len(ledger.evicts) > evicts:
        hopeless.clear()


def try_inside(ledger: Ledger, pools: Iterable[Standing], ask: Ask) -> bool:
    """Start a gang in one of these pools inside its tenant's guarantee, or plan that by evicting others."""
    possible = (standing for standing in pools if _is_possible(ledger, standing, ask))
    allowed = [standing for standing in possible if standing.allows_beside(ask.gang, ask.core)]
    return _start(ledger, allowed, ask) or _start_anew(ledger, allowed, ask) or _make_room(ledger, allowed, ask)


def _is_possible(ledger: Ledger, standing: Standing, ask: Ask) -> bool:
    return not impossible(standing, ask) and not yields(ledger, standing, ask)


def _start(ledger: Ledger, pools: Sequence[Standing], ask: Ask) -> bool:
    """Start it where it fits best into what is free."""
    places = list(places_inside(pools, ask))
    if places:
        start_at_best(ledger, ask, places)
    return bool(places)


def _start_anew(ledger: Ledger, pools: Sequence[Standing], ask: Ask) -> bool:
    """Start it in what is free where only the way in stands in its way in which cells are bound."""
    for standing in pools:
        if standing.bound_anew >= _MANY or standing.beyond_limit(ask.tenant, ask.core):
            continue
        if standing.reserved_before(ask.gang) is not None:
            continue
        mark, unit = standing.room.mark(), standing.pool.unit
        nodes = place_now(standing, ask, ask.core)
        if nodes is None:
            continue
        standing.bound_anew += 1
        amounts: dict[str, int] = {}
        for pod in ask.core:
            amounts[nodes[pod.uid]] = amounts.get(nodes[pod.uid], 0) + pod.shape.amount(unit)
        if standing.cells.hold_anew(ask.tenant, amounts):
            ledger.start(ask, standing, ask.core, nodes, inside=True)
            return True
        standing.room.undo(mark)
    return False


def _make_room(ledger: Ledger, pools: Sequence[Standing], ask: Ask) -> bool:
    """Tell those to go whose going costs least."""
    found = [
        (standing, making)
        for standing in pools
        if (making := find_room(ledger, standing, ask, standing.evictable, inside=inside_of(standing, ask, ask.core)))
    ]
    if not found:
        return False
    standing, making = best(found, lambda each: cost(each[0], ask, each[1], ledger.now))
    carry_out(ledger, standing, ask, making)
    return True
