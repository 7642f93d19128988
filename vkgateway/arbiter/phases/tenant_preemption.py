"""Preemption within a tenant: a gang takes the room, the limit and the cells of gangs of its tenant of a lower rank.

It takes nothing of other tenants. Free room goes by queue order, so preemption comes after all gangs had their turn.
Room that is promised to the gang with the reservation is not the victims' to leave: a gang that preempts outside its
guarantee must do without it, or end before the reservation starts. The age of a gang, which raises its place in the
queue, gives it no right to preempt; but while a gang has waited for long, later ones of its rank preempt nothing, or
it would never have its room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from vkgateway.arbiter.capacity.forecast import Reservation
from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.guarantees.cell_placement import allocate_placed
from vkgateway.arbiter.phases.feasibility import is_feasible, is_impossible
from vkgateway.arbiter.phases.idle_reserve import reserve_for
from vkgateway.arbiter.phases.multi_pool_gangs import place_parts, undecided_parts
from vkgateway.arbiter.phases.own_reclaim import own_limit_victims
from vkgateway.arbiter.phases.pool_choice import pick_best, preemption_cost
from vkgateway.arbiter.phases.preemption_plans import CandidatePlan, allowed_nodes, evicted_pods
from vkgateway.arbiter.phases.quick_check import could_fit_without
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.preemption.candidates import PreemptionCandidates
from vkgateway.arbiter.preemption.victim_search import VictimChoice, choose_victims
from vkgateway.arbiter.queueing.order import is_ranked_after
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.queueing.tenant_usage import sum_requests
from vkgateway.arbiter.snapshot import GUARANTEED, LOW, PLACED, Gang, Pod
from vkgateway.model.requests import MilliResources

_MAX_SEARCHES = 32
"""Gangs for which a cycle searches victims at most: more would take too long."""


def preempt_within_tenants(ledger: CycleState) -> None:
    """Plan the starts of gangs that still wait after all had their turn, in the place of lower work of their tenants.

    A victim that is spared later in the cycle may go for another gang, so whatever is planned calls for another round.
    """
    for ask in _preempting_gangs(ledger)[:_MAX_SEARCHES]:
        if not ledger.is_decided(ask) and not _must_wait_for_aged(ledger, ask) and _preempt_for_gang(ledger, ask):
            ledger.has_freed_capacity = True
            for standing in ledger.pool_states.values():
                if standing.reservation is not None and standing.reservation.gang in ask.gang.part_ids:
                    standing.reservation = None


def _preempt_for_gang(ledger: CycleState, ask: PendingGang) -> bool:
    """Plan the start of a gang, or of all parts of one in several pools."""
    if ask.gang.part_info is None:
        pools = [standing for standing in ledger.usable_pools(ask) if _has_lower_gangs(standing, ask)]
        return _preempt_in_pools(ledger, pools, ask)
    parts = undecided_parts(ledger, ask)
    return place_parts(ledger, parts, lambda pools, part: _preempt_in_pools(ledger, pools, part)) is None


def _preempt_in_pools(ledger: CycleState, pools: Iterable[PoolState], ask: PendingGang) -> bool:
    possible = [standing for standing in pools if not is_impossible(standing, ask)]
    return _preempt_in_best(ledger, possible, ask)


def _preempting_gangs(ledger: CycleState) -> list[PendingGang]:
    """Gangs that wait and outrank something that runs, the first of each tenant's equals, in the order of rank."""
    needy = ledger.pending_table
    lowest = np.full((2, len(needy.tenants)), np.inf)
    for tenant, number in needy.tenants.items():
        for standing in ledger.pool_states.values():
            for is_low in (0, 1):
                found = standing.rank_index.lowest_priority(tenant, LOW if is_low else GUARANTEED)
                if found is not None:
                    lowest[is_low, number] = min(lowest[is_low, number], found)
    if not np.isfinite(lowest).any():
        return []
    lower_low, lower_guaranteed = lowest[1, needy.tenant_numbers], lowest[0, needy.tenant_numbers]
    outranks = np.where(
        needy.is_low,
        needy.base_priorities > lower_low,
        np.isfinite(lower_low) | (needy.base_priorities > lower_guaranteed),
    )
    left = np.flatnonzero(ledger.undecided_mask() & outranks)
    order = left[np.lexsort((needy.created_times[left], -needy.base_priorities[left], needy.is_low[left]))]
    _, firsts = np.unique(needy.alike_numbers[order], return_index=True)
    asks = (needy.pending_gangs[index] for index in order[np.sort(firsts)].tolist())
    return [ask for ask in asks if ask.gang.preempts and ask.gang.id not in ledger.excluded_gangs]


def _has_lower_gangs(standing: PoolState, ask: PendingGang) -> bool:
    return standing.rank_index.has_preemptible(ask.gang, by_priority=standing.allows_preemption(ask.tenant))


def _must_wait_for_aged(ledger: CycleState, ask: PendingGang) -> bool:
    """Whether the room of lower work is for another gang of its tenant, which has waited for long."""
    needy = ledger.pending_table
    own = needy.tenant_numbers == needy.tenants[ask.tenant]
    aged = needy.created_times <= min(ledger.now - ledger.policy.age_cap, ask.gang.created)
    return any(
        ahead.gang.preempts and is_ranked_after(ask.gang, ahead.gang) and _needs_same_capacity(ledger, ask, ahead)
        for ahead in needy.select_gangs(ledger.undecided_mask() & own & aged)
    )


def _needs_same_capacity(ledger: CycleState, ask: PendingGang, ahead: PendingGang) -> bool:
    """Whether another gang could start in a pool if all else were gone, but could not preempt this one there."""
    return any(
        standing.pool.key in ask.allowed_pools
        and not standing.may_preempt(ahead.gang, ask.gang)
        and is_feasible(standing, ahead)
        and not standing.excess_over_limit(ahead.tenant, ahead.min_members, [standing.usage.get(ahead.tenant, {})])
        for standing in ledger.usable_pools(ahead)
    )


def yields_to_planned(ledger: CycleState, standing: PoolState, ask: PendingGang) -> bool:
    """Whether a gang waits for one of its tenant that may preempt it, and that is planned to borrow in this pool.

    Such plans are kept later in the cycle. What their victims leave, cells included, is not for the victims'
    replacements.
    """
    return any(
        each.gang.plan is not None
        and each.gang.plan.pool == standing.pool.key
        and not ledger.is_decided(each)
        and standing.may_preempt(each.gang, ask.gang)
        for each in ledger.planned_borrowers.get(ask.tenant, ())
    )


def _preempt_in_best(ledger: CycleState, pools: Sequence[PoolState], ask: PendingGang) -> bool:
    found = [(standing, making) for standing in pools if (making := _candidate_plan(ledger, standing, ask)) is not None]
    if not found:
        return False
    standing, making = pick_best(found, lambda each: preemption_cost(each[0], ask, each[1], ledger.now))
    _adopt_plan(ledger, standing, ask, making)
    return True


def _candidate_plan(ledger: CycleState, standing: PoolState, ask: PendingGang) -> CandidatePlan | None:
    """Return the victims among the tenant's lower work, and where the gang is placed then; None: it does not fit.

    A guarantee waits neither for a reservation nor for the pool's reserve: that room is used where the gang is inside
    its guarantee in it.
    """
    if not could_fit_without(standing, ask, _possible_victims(ledger, standing, ask)):
        return None
    lower = _lower_candidates(ledger, standing, ask)
    told = list(_usable_notified(ledger, standing, ask))
    if not len(lower) and not told and ask.gang.part_info is None:
        return None
    promised, reserve = _blocking_reservation(ledger, standing, ask, lower), reserve_for(standing, ask.min_members)
    making = _choose_victims(ledger, standing, ask, lower, told, promised=promised, reserve=reserve)
    if making is not None or (promised is None and not reserve) or ask.gang.band is not GUARANTEED:
        return making
    making = _choose_victims(ledger, standing, ask, lower, told, promised=None, reserve=0)
    return making if making is not None and _would_be_guaranteed(standing, ask, making) else None


def _choose_victims(
    ledger: CycleState,
    standing: PoolState,
    ask: PendingGang,
    lower: PreemptionCandidates,
    told: Sequence[tuple[Gang, Pod]],
    *,
    promised: Reservation | None,
    reserve: int,
) -> CandidatePlan | None:
    """Search victims for the limit and for the room, without using what is `promised`; see `_choose_with_reserve`."""
    mark, coming = standing.node_resources.mark(), _terminating_pods(ledger, standing, told)
    if promised is not None:
        _hide_reserved(ledger, standing, promised, lower, coming)
    missing = standing.excess_over_limit(ask.tenant, ask.min_members, _released_usage(standing, ask, told))
    making = None
    for own in own_limit_victims(standing, ask, missing, None, evictable=lower, coming=coming, now=ledger.now):
        found = _choose_with_reserve(
            ledger, standing, ask, lower=lower, own=own, coming=coming, told=told, reserve=reserve
        )
        if found is not None:
            choice, leaves = found
            evicts = *_needed_limit_victims(standing, ask, own, choice, told), *choice.evicts
            making = CandidatePlan(choice, evicts, told, None, leaves)
            break
    standing.node_resources.undo(mark)
    return making


def _choose_with_reserve(
    ledger: CycleState,
    standing: PoolState,
    ask: PendingGang,
    *,
    lower: PreemptionCandidates,
    own: Sequence[Evict],
    coming: Sequence[Pod],
    told: Sequence[tuple[Gang, Pod]],
    reserve: int,
) -> tuple[VictimChoice, int | None] | None:
    """Return the victims for the room, and what the gang's plan leaves idle (`PreemptionPlan.leaves`).

    If it takes more than its victims leave, the reserve (thousandths of the unit) must be idle beside it. `own`:
    victims for the limit.
    """
    victims = evicted_pods(standing, own)
    mark = standing.node_resources.mark()
    for only_own in (False, True) if reserve else (False,):
        if only_own:
            standing.node_resources.take_idle_units()
        choice = choose_victims(
            standing.node_resources,
            lower,
            ask.gang,
            ask.min_members,
            now=ledger.now,
            among=allowed_nodes(standing, ask),
            ending=[*coming, *victims],
            exempt={evict.gang for evict in own},
        )
        standing.node_resources.undo(mark)
        if choice is None:
            return None
        before, after = (
            _idle_before_after(standing, ask, choice, [*victims, *(pod for _, pod in told)]) if reserve else (0, 0)
        )
        if after >= min(reserve, before):
            return choice, min(reserve, before) if reserve and after >= before else None
    return None


def _idle_before_after(
    standing: PoolState, ask: PendingGang, choice: VictimChoice, mine: Iterable[Pod]
) -> tuple[int, int]:
    """Return what is idle, in thousandths, when all have gone who leave: without the gang and its victims, and with it.

    `mine`: pods of its tenant that may leave for it, besides those of the choice. Unless it uses their room, they stay.
    """
    mark = standing.node_resources.mark()
    standing.remove_pods(standing.terminating_pods.values())
    before = standing.node_resources.idle_units
    standing.remove_pods(
        pod for pod in mine if pod.uid in choice.awaited_pods and pod.uid not in standing.terminating_pods
    )
    standing.remove_pods(evicted_pods(standing, choice.evicts))
    standing.add_pods(ask.min_members, choice.nodes)
    after = standing.node_resources.idle_units
    standing.node_resources.undo(mark)
    return before, after


def _terminating_pods(ledger: CycleState, standing: PoolState, told: Iterable[tuple[Gang, Pod]]) -> list[Pod]:
    """Return the pods that leave in time, for whatever reason, and those that were notified for the gang before."""
    slow = ledger.late_pod_uids(standing)
    return [pod for uid, pod in standing.terminating_pods.items() if uid not in slow] + [pod for _, pod in told]


def _usable_notified(ledger: CycleState, standing: PoolState, ask: PendingGang) -> Iterator[tuple[Gang, Pod]]:
    """Yield pods that were notified for the gang, or may be preempted by it, and that no other gang counts on."""
    for gang, pod in ledger.notified_pods(standing):
        mine = gang.tenant == ask.tenant and pod.uid not in standing.terminating_pods
        if mine and (pod.evicted_for == ask.gang.whole_id or standing.may_preempt(ask.gang, gang)):
            yield gang, pod


def _blocking_reservation(
    ledger: CycleState, standing: PoolState, ask: PendingGang, lower: PreemptionCandidates
) -> Reservation | None:
    """Return the reservation of another gang, unless this one ends before it starts."""
    kept = standing.reservation
    if kept is None or kept.gang in ask.gang.part_ids:
        return None
    begins = ledger.now + max(
        (gang.notice + gang.grace for gang in _gangs_with_candidates(standing, lower)), default=0.0
    )
    return None if ask.gang.part_info is None and kept.can_backfill(standing.expected_ends, ask.gang, begins) else kept


def _gangs_with_candidates(standing: PoolState, lower: PreemptionCandidates) -> Iterator[Gang]:
    return (standing.gangs[name] for name in lower.gang_ids())


def _hide_reserved(
    ledger: CycleState, standing: PoolState, kept: Reservation, lower: PreemptionCandidates, coming: Iterable[Pod]
) -> None:
    """Take the room that a reservation needs: what is free, what becomes free, and what its start counts on as gone.

    To be undone. What `lower` leaves is counted on where it borrows the reserved place, is surplus, or ends before.
    """
    lent = {pod.uid for pod in standing.reclaimable_for(ledger.gangs[kept.gang].whole_id).all_pods()}
    leaves = {pod.uid: pod for pod in coming}
    counted = {pod.uid: pod for gang in _gangs_with_candidates(standing, lower) for pod in _placed_pods(standing, gang)}
    counted = {
        uid: pod for uid, pod in counted.items() if uid in lent or kept.starts_after(standing.expected_ends, uid)
    }
    counted |= {uid: pod for uid, pod in leaves.items() if kept.starts_after(standing.expected_ends, uid)}
    kept.withhold_needed(
        standing.node_resources,
        freed_pods=[(pod.node, pod.shape) for pod in counted.values()],
        terminating_pods=[(pod.node, pod.shape) for uid, pod in leaves.items() if uid not in counted],
    )


def _lower_candidates(ledger: CycleState, standing: PoolState, ask: PendingGang) -> PreemptionCandidates:
    """What the gang may preempt, pods inside their cells among it. What starts in this very cycle is left alone."""
    lower = PreemptionCandidates(standing.pool.key, standing.pool.unit_resource)
    for name in standing.rank_index.gang_ids(ask.tenant):
        gang = standing.gangs[name]
        if standing.may_preempt(ask.gang, gang) and all(pod.since < ledger.now for pod in _placed_pods(standing, gang)):
            lower.update_gang(replace(gang, pods=tuple(replace(pod, borrowed=True) for pod in gang.pods)))
    return lower


def _possible_victims(ledger: CycleState, standing: PoolState, ask: PendingGang) -> Iterator[Pod]:
    """Yield all pods whose room the gang might use: what it may preempt, and whatever leaves; some of them twice."""
    for name in standing.rank_index.gang_ids(ask.tenant):
        if standing.may_preempt(ask.gang, gang := standing.gangs[name]):
            yield from (pod for pod in gang.pods if standing.has_pod(pod))
    yield from standing.terminating_pods.values()
    yield from (pod for _, pod in _usable_notified(ledger, standing, ask))


def _placed_pods(standing: PoolState, gang: Gang) -> Iterator[Pod]:
    return (pod for pod in gang.pods if pod.state is PLACED and standing.has_pod(pod))


def _released_usage(standing: PoolState, ask: PendingGang, told: Iterable[tuple[Gang, Pod]]) -> list[MilliResources]:
    return [standing.terminating_pods.usage_of(ask.tenant), sum_requests(pod for _, pod in told)]


def _needed_limit_victims(
    standing: PoolState, ask: PendingGang, own: Sequence[Evict], choice: VictimChoice, told: Sequence[tuple[Gang, Pod]]
) -> list[Evict]:
    """Return the victims for the limit that are needed beside those for the room; the dearest stay."""
    left = list(own)
    for evict in sorted(own, key=lambda each: (-each.lost, each.gang)):
        if not {pod.uid for pod in evicted_pods(standing, [evict])}.isdisjoint(choice.awaited_pods):
            continue
        others = [each for each in left if each is not evict]
        leaves = sum_requests(evicted_pods(standing, [*others, *choice.evicts]))
        if not standing.excess_over_limit(ask.tenant, ask.min_members, [*_released_usage(standing, ask, told), leaves]):
            left = others
    return left


def _adopt_plan(ledger: CycleState, standing: PoolState, ask: PendingGang, making: CandidatePlan) -> None:
    """Plan the gang's start there: inside its guarantee where cells hold it, those of its victims included."""
    inside = _allocate_cells(standing, ask, making)
    standing.add_pods(ask.min_members, making.victim_choice.nodes)
    standing.terminating_pods.add_pods(ask.tenant, [pod for _, pod in making.notified])
    ledger.add_plan(
        ask,
        standing,
        making.victim_choice.nodes,
        inside=inside,
        made=ledger.next_plan_time(),
        evicts=making.evicts,
        leaves=None if inside else making.leaves,
    )


def _would_be_guaranteed(standing: PoolState, ask: PendingGang, making: CandidatePlan) -> bool:
    """Return whether the gang would be inside its guarantee; the pool is left as it was."""
    before = standing.take_checkpoint()
    inside = _allocate_cells(standing, ask, making)
    standing.restore_checkpoint(before)
    return inside


def _allocate_cells(standing: PoolState, ask: PendingGang, making: CandidatePlan) -> bool:
    """Release the victims' cells, and hold the gang's where it would be placed; return whether cells hold it."""
    placed = [(pod, making.victim_choice.nodes[pod.uid]) for pod in ask.min_members]
    standing.demote_pods(ask.tenant, [*(pod for _, pod in making.notified), *evicted_pods(standing, making.evicts)])
    return (
        ask.gang.band is GUARANTEED
        and standing.may_use_guarantee(ask.gang, ask.min_members)
        and allocate_placed(standing.cells, ask.tenant, standing.pool.unit_resource, placed)
    )
