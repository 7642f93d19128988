"""Preemption within a tenant: a gang takes capacity, limit and guarantee from gangs of its tenant with a lower rank. It
takes nothing from other tenants. Queue order decides on free capacity, so preemption follows the scheduling of all
gangs. Capacity that a reservation counts on is not the victims' to give: outside its guarantee, a preempting gang
does without it, or ends before the reservation starts. Age raises a gang in the queue, and gives it no right to
preempt. While an aged gang waits, later gangs of its rank preempt nothing, or it would never start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.capacity.forecast import Reservation
from vkgateway.scheduler.core.capacity.node_resources import take_idle_units
from vkgateway.scheduler.core.cycle_state import CycleState, late_pod_uids
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.guarantees.pool_guarantees import use_for_pods
from vkgateway.scheduler.core.phases.feasibility import (
    gangs_with_candidates,
    hide_reserved,
    is_feasible,
    is_impossible,
    placed_pods,
)
from vkgateway.scheduler.core.phases.idle_reserve import reserve_for
from vkgateway.scheduler.core.phases.multi_pool_gangs import place_parts, undecided_parts
from vkgateway.scheduler.core.phases.plan_search import CandidatePlan, PlanSearch, evicted_pods
from vkgateway.scheduler.core.phases.pool_choice import plan_in_best_pool
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.pools.victims import allows_preemption
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.preemption.victim_search import VictimChoice
from vkgateway.scheduler.core.queueing.gang_rank import is_ranked_after
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.tenant_usage import sum_requests
from vkgateway.scheduler.core.snapshot import GUARANTEED, LOW, Gang, Pod

_MAX_SEARCHES = 32
"""Gangs for which a round searches victims; more would take too long."""


def preempt_within_tenants(state: CycleState) -> None:
    """Plan the starts of gangs that still wait, in place of lower gangs of their tenants. A victim that is reprieved
    later in the cycle may be evicted for another gang, so a plan calls for another round.
    """
    for pending in _preempting_gangs(state)[:_MAX_SEARCHES]:
        if (
            not state.is_decided(pending.gang.id)
            and not _must_wait_for_aged(state, pending)
            and _preempt_for_gang(state, pending)
        ):
            state.note_freed_capacity()
            for pool_state in state.pool_states.values():
                pool_state.reservations.release_nodes(pending.gang.part_ids)


def _preempt_for_gang(state: CycleState, pending: PendingGang) -> bool:
    """Plan the start of a gang, or of all parts of one in several pools."""
    if pending.gang.part_info is None:
        pools = [pool_state for pool_state in state.usable_pools(pending) if _has_lower_gangs(pool_state, pending)]
        return _preempt_in_pools(state, pools, pending)
    parts = undecided_parts(state, pending)
    return place_parts(state, parts, lambda pools, part: _preempt_in_pools(state, pools, part)) is None


def _preempt_in_pools(state: CycleState, pools: Iterable[PoolState], pending: PendingGang) -> bool:
    possible = [pool_state for pool_state in pools if not is_impossible(pool_state, pending)]
    return plan_in_best_pool(
        state, possible, pending, lambda pool_state: _find_plan(state, pool_state, pending), adopt=_adopt_plan
    )


def _preempting_gangs(state: CycleState) -> list[PendingGang]:
    """Return pending gangs that outrank running gangs, the first of each tenant's equals, by rank."""
    table = state.pending_table
    lowest = np.full((2, len(table.tenants)), np.inf)
    for tenant, number in table.tenants.items():
        for pool_state in state.pool_states.values():
            for is_low in (0, 1):
                found = pool_state.gang_index.ranks.lowest_priority(tenant, LOW if is_low else GUARANTEED)
                if found is not None:
                    lowest[is_low, number] = min(lowest[is_low, number], found)
    if not np.isfinite(lowest).any():
        return []
    lower_low, lower_guaranteed = lowest[1, table.tenant_numbers], lowest[0, table.tenant_numbers]
    outranks = np.where(
        table.is_low,
        table.base_priorities > lower_low,
        np.isfinite(lower_low) | (table.base_priorities > lower_guaranteed),
    )
    left = np.flatnonzero(state.undecided_mask() & outranks)
    columns = (table.created_times, -table.base_priorities, table.is_low, ~table.is_short)
    order = left[np.lexsort(tuple(column[left] for column in columns))]
    _, firsts = np.unique(table.alike_numbers[order], return_index=True)
    pending_gangs = (table.pending_gangs[index] for index in order[np.sort(firsts)].tolist())
    return [
        pending for pending in pending_gangs if pending.gang.preempts and pending.gang.id not in state.excluded_gangs
    ]


def _has_lower_gangs(pool_state: PoolState, pending: PendingGang) -> bool:
    return pool_state.gang_index.ranks.has_preemptible(
        pending.gang, by_priority=allows_preemption(pool_state.tenant_usage, pending.tenant)
    )


def _must_wait_for_aged(state: CycleState, pending: PendingGang) -> bool:
    """Return whether the capacity of lower gangs is for an aged gang of the same tenant."""
    table = state.pending_table
    own = table.tenant_numbers == table.tenants[pending.tenant]
    aged = table.created_times <= min(state.now - state.policy.age_cap, pending.gang.created)
    return any(
        ahead.gang.preempts
        and is_ranked_after(pending.gang, ahead.gang)
        and _needs_same_capacity(state, pending, ahead)
        for ahead in table.select_gangs(state.undecided_mask() & own & aged)
    )


def _needs_same_capacity(state: CycleState, pending: PendingGang, ahead: PendingGang) -> bool:
    """Return whether an aged gang could start in a pool if it were empty, but could not preempt this gang there."""
    return any(
        pool_state.pool.key in pending.allowed_pools
        and not pool_state.victims.may_preempt(ahead.gang, pending.gang)
        and is_feasible(pool_state, ahead)
        and not pool_state.tenant_usage.excess_over_limit(
            ahead.tenant, ahead.min_members, [pool_state.tenant_usage.usage.get(ahead.tenant, {})]
        )
        for pool_state in state.usable_pools(ahead)
    )


def yields_to_planned(state: CycleState, pool_state: PoolState, pending: PendingGang) -> bool:
    """Return whether a gang waits for a gang of its tenant that may preempt it, and that is planned to borrow in this
    pool. Such plans are kept later in the round. Replacements of their victims do not use what the victims leave,
    the guarantee included.
    """
    return any(
        each.gang.plan is not None
        and each.gang.plan.pool == pool_state.pool.key
        and not state.is_decided(each.gang.id)
        and pool_state.victims.may_preempt(each.gang, pending.gang)
        for each in state.planned_borrowers.get(pending.tenant, ())
    )


def _find_plan(state: CycleState, pool_state: PoolState, pending: PendingGang) -> CandidatePlan | None:
    """Return the victims among the tenant's lower gangs, and the gang's nodes; None: the gang does not fit.

    A guaranteed gang waits neither for a reservation nor for the pool's reserve: it uses that capacity where its
    guarantee holds it there.
    """
    if not could_fit_without(pool_state, pending, _possible_victims(state, pool_state, pending)):
        return None
    lower = _lower_candidates(state, pool_state, pending)
    notified = list(_usable_notified(state, pool_state, pending))
    if not len(lower) and not notified and pending.gang.part_info is None:
        return None
    search = _TenantSearch(
        state,
        pool_state,
        pending,
        lower,
        notified,
        _terminating_pods(state, pool_state, notified),
        pool_state.tenant_usage.excess_over_limit(
            pending.tenant, pending.min_members, _released_usage(pool_state, pending, notified)
        ),
        promised=_blocking_reservation(state, pool_state, pending, lower),
        reserve=reserve_for(pool_state, pending, pending.min_members),
    )
    if not pool_state.tenant_usage.may_borrow(pending.tenant, pending.min_members):
        return _find_guaranteed_plan(search)
    plan = search.find_plan()
    is_free = search.promised is None and not search.reserve
    if plan is not None or is_free or pending.gang.band is not GUARANTEED:
        return plan
    plan = replace(search, promised=None, reserve=0).find_plan()
    return plan if plan is not None and _would_be_guaranteed(pool_state, pending, plan) else None


def _find_guaranteed_plan(search: _TenantSearch) -> CandidatePlan | None:
    """Return a plan in the victims' part of the guarantee, for a tenant that may not borrow. A gang waits for that part
    where it fits free nodes: a victim there would be reprieved, and then borrow.
    """
    pool_state, pending = search.pool_state, search.pending
    if pending.gang.band is not GUARANTEED:
        return None
    # Victims that borrow lose less, but leave nothing of the guarantee.
    lower = _lower_candidates(search.state, pool_state, pending, only_guaranteed=True)
    plan = replace(search, candidates=lower, promised=None, reserve=0).find_plan()
    return plan if plan is not None and _would_be_guaranteed(pool_state, pending, plan) else None


@dataclass(frozen=True, slots=True)
class _TenantSearch(PlanSearch):
    """Search for victims of the gang's tenant."""

    promised: Reservation | None = None
    """Reservation of another gang, whose capacity is not used."""
    reserve: int = 0
    """Thousandths of the unit that must be idle if the gang uses more than its victims free."""

    def find_plan(self) -> CandidatePlan | None:
        with self.pool_state.trial():
            if self.promised is not None:
                hide_reserved(self.state, self.pool_state, self.promised, self.candidates, self.terminating)
            return PlanSearch.find_plan(self)

    def find_plan_with(self, own: tuple[Evict, ...]) -> CandidatePlan | None:
        pool_state, mine = self.pool_state, [*evicted_pods(self.pool_state, own), *(pod for _, pod in self.notified)]
        for only_own in (False, True) if self.reserve else (False,):
            with pool_state.trial():
                if only_own:
                    take_idle_units(pool_state.node_resources)
                choice = self.choose_victims(own)
            if choice is None:
                return None
            before, after = _idle_before_after(pool_state, self.pending, choice, mine) if self.reserve else (0, 0)
            required = min(self.reserve, before)
            if after >= required:
                evicts = *_needed_limit_victims(pool_state, self.pending, own, choice, self.notified), *choice.evicts
                leaves = required if self.reserve and after >= before else None
                return CandidatePlan(choice, evicts, self.notified, None, leaves)
        return None


def _idle_before_after(
    pool_state: PoolState, pending: PendingGang, choice: VictimChoice, mine: Iterable[Pod]
) -> tuple[int, int]:
    """Return the idle thousandths after all terminations: without the gang and its victims, and with them. `mine`:
    other pods of its tenant that may terminate for it. They stay unless the gang uses their capacity.
    """
    with pool_state.trial():
        pool_state.remove_pods(pool_state.terminating_pods.values())
        before = pool_state.node_resources.free.idle_units
        pool_state.remove_pods(
            pod for pod in mine if pod.uid in choice.awaited_pods and pod.uid not in pool_state.terminating_pods
        )
        pool_state.remove_pods(evicted_pods(pool_state, choice.evicts))
        pool_state.add_pods(pending.min_members, choice.nodes)
        after = pool_state.node_resources.free.idle_units
    return before, after


def _terminating_pods(state: CycleState, pool_state: PoolState, notified: Iterable[tuple[Gang, Pod]]) -> list[Pod]:
    """Return the pods that terminate in time, and those that were notified for the gang before."""
    late = late_pod_uids(pool_state, state.now)
    return [pod for uid, pod in pool_state.terminating_pods.items() if uid not in late] + [pod for _, pod in notified]


def _usable_notified(state: CycleState, pool_state: PoolState, pending: PendingGang) -> Iterator[tuple[Gang, Pod]]:
    """Yield pods that were notified for the gang or that it may preempt, and that no other gang needs."""
    for gang, pod in state.notified.in_pool(pool_state):
        mine = gang.tenant == pending.tenant and pod.uid not in pool_state.terminating_pods
        if mine and (pod.evicted_for == pending.gang.whole_id or pool_state.victims.may_preempt(pending.gang, gang)):
            yield gang, pod


def _blocking_reservation(
    state: CycleState, pool_state: PoolState, pending: PendingGang, lower: PreemptionCandidates
) -> Reservation | None:
    """Return the reservation of another gang, unless this one ends before it starts."""
    reservation = pool_state.reservations.nodes
    if reservation is None or reservation.gang in pending.gang.part_ids:
        return None
    begins = state.now + max(
        (gang.notice + gang.grace for gang in gangs_with_candidates(pool_state, lower)), default=0.0
    )
    return (
        None
        if pending.gang.part_info is None and reservation.can_backfill(pool_state.expected_ends, pending.gang, begins)
        else reservation
    )


def _lower_candidates(
    state: CycleState, pool_state: PoolState, pending: PendingGang, *, only_guaranteed: bool = False
) -> PreemptionCandidates:
    """Return what the gang may preempt, or only gangs with guaranteed pods, without gangs that start in this cycle."""
    lower = PreemptionCandidates(pool_state.pool.key, pool_state.pool.unit_resource)
    for name in pool_state.gang_index.ranks.gang_ids(pending.tenant):
        gang = pool_state.gangs[name]
        if pool_state.victims.may_preempt(pending.gang, gang) and all(
            pod.since < state.now for pod in placed_pods(pool_state, gang)
        ):
            if only_guaranteed and not any(pool_state.guarantee.is_guaranteed(pod.uid) for pod in gang.pods):
                continue
            lower.update_gang(replace(gang, pods=tuple(replace(pod, borrowed=True) for pod in gang.pods)))
    return lower


def _possible_victims(state: CycleState, pool_state: PoolState, pending: PendingGang) -> Iterator[Pod]:
    """Yield all pods whose capacity the gang might use: preemptible and terminating ones. Some are yielded twice."""
    for name in pool_state.gang_index.ranks.gang_ids(pending.tenant):
        if pool_state.victims.may_preempt(pending.gang, gang := pool_state.gangs[name]):
            yield from (pod for pod in gang.pods if pool_state.gang_index.has_pod(pod))
    yield from pool_state.terminating_pods.values()
    yield from (pod for _, pod in _usable_notified(state, pool_state, pending))


def _released_usage(
    pool_state: PoolState, pending: PendingGang, notified: Iterable[tuple[Gang, Pod]]
) -> list[MilliResources]:
    return [pool_state.terminating_pods.usage_of(pending.tenant), sum_requests(pod for _, pod in notified)]


def _needed_limit_victims(
    pool_state: PoolState,
    pending: PendingGang,
    own: Sequence[Evict],
    choice: VictimChoice,
    notified: Sequence[tuple[Gang, Pod]],
) -> list[Evict]:
    """Return the victims for the limit that are needed besides those for capacity; the most expensive are spared."""
    left = list(own)
    for evict in sorted(own, key=lambda each: (-each.lost, each.gang)):
        if not {pod.uid for pod in evicted_pods(pool_state, [evict])}.isdisjoint(choice.awaited_pods):
            continue
        others = [each for each in left if each is not evict]
        leaves = sum_requests(evicted_pods(pool_state, [*others, *choice.evicts]))
        if not pool_state.tenant_usage.excess_over_limit(
            pending.tenant,
            pending.min_members,
            [*_released_usage(pool_state, pending, notified), leaves],
        ):
            left = others
    return left


def _adopt_plan(state: CycleState, pool_state: PoolState, pending: PendingGang, candidate: CandidatePlan) -> None:
    """Plan the gang's start: within its guarantee where that holds it, the part of its victims included."""
    guaranteed = _use_guarantee(pool_state, pending, candidate)
    pool_state.add_pods(pending.min_members, candidate.victim_choice.nodes)
    pool_state.terminating_pods.add_pods(pending.tenant, [pod for _, pod in candidate.notified])
    state.add_plan(
        pending,
        pool_state,
        candidate.victim_choice.nodes,
        guaranteed=guaranteed,
        created=state.next_plan_time(),
        evicts=candidate.evicts,
        leaves=None if guaranteed else candidate.leaves,
    )


def _would_be_guaranteed(pool_state: PoolState, pending: PendingGang, candidate: CandidatePlan) -> bool:
    """Return whether the gang would be within its guarantee."""
    with pool_state.trial():
        return _use_guarantee(pool_state, pending, candidate)


def _use_guarantee(pool_state: PoolState, pending: PendingGang, candidate: CandidatePlan) -> bool:
    """Release what the victims use of the guarantee and use it for the gang; return whether it holds the gang."""
    placed = [(pod, candidate.victim_choice.nodes[pod.uid]) for pod in pending.min_members]
    pool_state.guarantee.demote_pods(
        pending.tenant,
        [*(pod for _, pod in candidate.notified), *evicted_pods(pool_state, candidate.evicts)],
    )
    return (
        pending.gang.band is GUARANTEED
        and pool_state.guarantee.may_use_guarantee(pending.gang, pending.min_members)
        and use_for_pods(pool_state.guarantees, pending.tenant, pool_state.pool.unit_resource, placed)
    )


def could_fit_without(pool_state: PoolState, pending: PendingGang, pods: Iterable[Pod]) -> bool:
    """Return whether the gang's pods, each shape by itself, would fit without these pods. Nothing changes. False: no
    search finds a placement. True proves nothing. Counting ignores NUMA zones: True where there are any.
    """
    resources = pool_state.node_resources
    if resources.free.zones is not None:
        return True
    with resources.trial():
        resources.remove_many((pod.node, pod.shape) for pod in pods if pod.node in resources.nodes)
        counts = Counter(pod.shape for pod in pending.min_members)
        return all(resources.views[shape].total >= count for shape, count in counts.items())
