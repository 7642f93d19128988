"""Step 2: gangs of the guaranteed band that fit their tenant's unused cells; who stands in their way is evicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.phases.cell_filling import fill_cell
from vkgateway.arbiter.phases.cell_reservations import reserve_cells
from vkgateway.arbiter.phases.feasibility import is_impossible
from vkgateway.arbiter.phases.multi_pool_gangs import place_parts, undecided_parts
from vkgateway.arbiter.phases.pool_choice import guaranteed_placements, pick_best, preemption_cost, start_in_best_pool
from vkgateway.arbiter.phases.preemption_plans import (
    adopt_plan,
    find_candidate_plan,
    place_borrowed,
    placement_in_guarantee,
)
from vkgateway.arbiter.phases.promotion import promotable_gangs, promote_pods
from vkgateway.arbiter.phases.tenant_preemption import yields_to_planned
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.order import priority_key
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import Gang

_MAX_REBINDINGS = 4
"""For so many gangs of a pool cells are bound anew in a cycle: more would take too long."""


def start_guaranteed_gangs(ledger: CycleState) -> None:
    """Start whoever can inside its tenant's cells, or tell who must go for it; tenants do not wait for each other.

    What runs already and borrows stands in the same line: it is inside from now on if cells hold it in its turn.
    """
    line = _build_queue(ledger)
    _promote_first(ledger, line)
    hopeless: set[tuple[str, int]] = set()
    for turn in line:
        ask = turn.pending_gang
        if ask is None:
            if turn.pool_state is not None:
                promote_pods(turn.pool_state, turn.gang)
        elif (ask.tenant, ask.equivalence_class) not in hopeless:
            (_schedule_gang if ask.gang.part_info is None else _schedule_parts)(ledger, ask, hopeless)


def _promote_first(ledger: CycleState, line: Sequence[_QueueEntry]) -> None:
    """Promote what runs and stands in its tenant's line before all that may take those cells from it.

    Before anybody makes room: else another tenant's guarantee, whose turn is before, calls in what is inside by now.
    """
    left = {turn.gang.tenant for turn in line if turn.pending_gang is None}
    for turn in line if left else ():
        tenant, ask = turn.gang.tenant, turn.pending_gang
        if tenant not in left:
            continue
        if ask is None:
            if turn.pool_state is not None:
                promote_pods(turn.pool_state, turn.gang)
        elif _may_take_cells(ledger, ask):
            left.discard(tenant)


def _may_take_cells(ledger: CycleState, ask: PendingGang) -> bool:
    """Whether cells go to a gang that waits, or are kept for it, before its tenant's later ones have them."""
    if ledger.has_aged(ask.gang):
        return True
    pools = (standing for standing in ledger.usable_pools(ask) if not is_impossible(standing, ask))
    return any(standing.has_guarantee_left(ask.gang, ask.min_members) for standing in pools)


class _QueueEntry(NamedTuple):
    """A gang that waits, or one that runs and borrows, and where it runs."""

    gang: Gang
    pending_gang: PendingGang | None = None
    pool_state: PoolState | None = None


def _build_queue(ledger: CycleState) -> list[_QueueEntry]:
    turns = [_QueueEntry(ask.gang, ask) for ask in ledger.guaranteed_gangs()]
    turns += [
        _QueueEntry(gang, None, standing)
        for standing in ledger.pool_states.values()
        for gang in promotable_gangs(standing)
    ]
    return sorted(turns, key=lambda turn: (turn.gang.tenant, priority_key(turn.gang), turn.pending_gang is not None))


def _schedule_gang(ledger: CycleState, ask: PendingGang, hopeless: set[tuple[str, int]]) -> None:
    possible = [standing for standing in ledger.usable_pools(ask) if _is_possible(ledger, standing, ask)]
    pools = [standing for standing in possible if standing.has_guarantee_left(ask.gang, ask.min_members)]
    evicts = len(ledger.evicts)
    if fill_cell(ledger, pools, ask) or _start_now(ledger, pools, ask) or _start_with_rebinding(ledger, pools, ask):
        if len(ledger.evicts) > evicts:
            hopeless.clear()
        return
    if _evict_cheapest(ledger, pools, ask):
        hopeless.clear()
    else:
        reserve_cells(ledger, possible, ask)
        hopeless.add((ask.tenant, ask.equivalence_class))


def _schedule_parts(ledger: CycleState, ask: PendingGang, hopeless: set[tuple[str, int]]) -> None:
    """Start or plan all parts of a gang inside the guarantees of their pools."""
    parts = undecided_parts(ledger, ask)
    evicts = len(ledger.evicts)
    failed = (
        place_parts(ledger, parts, lambda pools, part: start_within_guarantee(ledger, pools, part)) if parts else None
    )
    if failed is not None:
        reserve_cells(ledger, [each for each in ledger.usable_pools(failed) if not is_impossible(each, failed)], failed)
        hopeless.update((part.tenant, part.equivalence_class) for part in parts)
    elif len(ledger.evicts) > evicts:
        hopeless.clear()


def start_within_guarantee(ledger: CycleState, pools: Iterable[PoolState], ask: PendingGang) -> bool:
    """Start a gang in one of these pools inside its tenant's guarantee, or plan that by evicting others."""
    possible = (standing for standing in pools if _is_possible(ledger, standing, ask))
    allowed = [standing for standing in possible if standing.has_guarantee_left(ask.gang, ask.min_members)]
    return (
        _start_now(ledger, allowed, ask)
        or _start_with_rebinding(ledger, allowed, ask)
        or _evict_cheapest(ledger, allowed, ask)
    )


def _is_possible(ledger: CycleState, standing: PoolState, ask: PendingGang) -> bool:
    return not is_impossible(standing, ask) and not yields_to_planned(ledger, standing, ask)


def _start_now(ledger: CycleState, pools: Sequence[PoolState], ask: PendingGang) -> bool:
    """Start it where it fits best into what is free."""
    places = list(guaranteed_placements(pools, ask))
    if places:
        start_in_best_pool(ledger, ask, places)
    return bool(places)


def _start_with_rebinding(ledger: CycleState, pools: Sequence[PoolState], ask: PendingGang) -> bool:
    """Start it in what is free where only the way in stands in its way in which cells are bound."""
    for standing in pools:
        if standing.rebind_count >= _MAX_REBINDINGS or standing.exceeded_limits(ask.tenant, ask.min_members):
            continue
        if standing.cells_reserved_ahead(ask.gang) is not None:
            continue
        mark, unit = standing.node_resources.mark(), standing.pool.unit_resource
        nodes = place_borrowed(standing, ask, ask.min_members)
        if nodes is None:
            continue
        standing.rebind_count += 1
        amounts: dict[str, int] = {}
        for pod in ask.min_members:
            amounts[nodes[pod.uid]] = amounts.get(nodes[pod.uid], 0) + pod.shape.amount_of(unit)
        if standing.cells.allocate_with_rebinding(ask.tenant, amounts):
            ledger.start_pods(ask, standing, ask.min_members, nodes, inside=True)
            return True
        standing.node_resources.undo(mark)
    return False


def _evict_cheapest(ledger: CycleState, pools: Sequence[PoolState], ask: PendingGang) -> bool:
    """Tell those to go whose going costs least."""
    found = [
        (standing, making)
        for standing in pools
        if (
            making := find_candidate_plan(
                ledger,
                standing,
                ask,
                standing.preemption_candidates,
                inside=placement_in_guarantee(standing, ask, ask.min_members),
            )
        )
    ]
    if not found:
        return False
    standing, making = pick_best(found, lambda each: preemption_cost(each[0], ask, each[1], ledger.now))
    adopt_plan(ledger, standing, ask, making)
    return True
