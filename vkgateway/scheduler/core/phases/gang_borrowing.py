"""Start, reclaim and reservation for one borrowing gang."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from vkgateway.scheduler.core.capacity.forecast import PoolForecast, Reservation
from vkgateway.scheduler.core.cycle_state import CycleState, late_pod_uids
from vkgateway.scheduler.core.phases.backfill import Placement, placement_rank, start_placed, take_placement
from vkgateway.scheduler.core.phases.feasibility import hide_reserved, is_impossible
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes
from vkgateway.scheduler.core.phases.idle_reserve import reserve_for
from vkgateway.scheduler.core.phases.limit_reservations import exceeds_reserved_limit
from vkgateway.scheduler.core.phases.plan_search import CandidatePlan, find_candidate_plan
from vkgateway.scheduler.core.phases.planned_starts import release_plan
from vkgateway.scheduler.core.phases.pool_choice import pick_best, plan_in_best_pool
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.preemption.victim_search import choose_victims
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Pod, PreemptionPlan, Shape


class GangBorrowing:
    """Scheduling of single gangs that borrow."""

    def __init__(self, state: CycleState, attempts: Attempts) -> None:
        self._state = state
        self._attempts = attempts
        self._feasible_cache: dict[tuple[str, int], list[PoolState]] = {}
        """By tenant and equivalence class, the pools in which the gang is not impossible."""

    def pools_within_limit(self, pending: PendingGang) -> Iterator[PoolState]:
        """Yield the pools in which neither a limit nor a used-up budget blocks the gang."""
        for pool_state in self.feasible_pools(pending):
            if not pool_state.tenant_usage.may_borrow(pending.tenant, pending.min_members):
                continue
            beyond = pool_state.tenant_usage.exceeded_limits(pending.tenant, pending.min_members)
            if not beyond and not exceeds_reserved_limit(self._state, pool_state, pending, pending.min_members):
                yield pool_state

    def feasible_pools(self, pending: PendingGang) -> list[PoolState]:
        """Return the usable pools in which the gang is not impossible."""
        equals = pending.tenant, pending.equivalence_class
        found = self._feasible_cache.get(equals)
        if found is None:
            found = [
                pool_state for pool_state in self._state.usable_pools(pending) if not is_impossible(pool_state, pending)
            ]
            self._feasible_cache[equals] = found
        return found

    def start_now(self, pools: Sequence[PoolState], pending: PendingGang) -> bool:
        """Start the gang where it fits best in free capacity; return whether it fits."""
        if len(pools) == 1:
            place = self._take_once(pools[0], pending)
            if place is not None:
                start_placed(self._state, pools[0], pending, pending.min_members, place)
            return place is not None
        places = list(self._find_placements(pools, pending))
        if places:
            self._start_at_best(places, pending)
        return bool(places)

    def _start_at_best(self, places: Sequence[tuple[PoolState, Placement]], pending: PendingGang) -> None:
        pool_state, place = pick_best(places, lambda each: placement_rank(each[0], pending, each[1]))
        pool_state.add_pods(pending.min_members, place.nodes)
        start_placed(self._state, pool_state, pending, pending.min_members, place)

    def _find_placements(
        self, pools: Iterable[PoolState], pending: PendingGang
    ) -> Iterator[tuple[PoolState, Placement]]:
        """Yield a placement in each pool that has one. Nothing is taken."""
        for pool_state in pools:
            with pool_state.trial() as trial:
                place = self._take_once(pool_state, pending)
                if place is None:
                    trial.commit()  # Nothing was taken, and what did not fit is remembered.
            if place is not None:
                yield pool_state, place

    def _take_once(self, pool_state: PoolState, pending: PendingGang) -> Placement | None:
        reservation = pool_state.reservations.nodes
        free = (
            reservation is None
            or reservation.can_backfill(pool_state.expected_ends, pending.gang, self._state.now)
            or reservation.can_lend_to(pending.gang, self._state.now)
        )
        return self._attempts.try_once(
            ("start", free),
            pool_state,
            pending,
            lambda: take_placement(self._state, pool_state, pending, pending.min_members),
        )

    def reclaim_capacity(self, pools: Sequence[PoolState], pending: PendingGang) -> bool:
        """Plan the gang where it reclaims surplus and backfilled pods, or waits for terminations, at the least loss."""
        return plan_in_best_pool(
            self._state, pools, pending, lambda pool_state: self._find_candidate_plan(pool_state, pending)
        )

    def _find_candidate_plan(self, pool_state: PoolState, pending: PendingGang) -> CandidatePlan | None:
        """Return a plan to reclaim capacity, without what is reserved for a gang that comes first."""
        reclaimable = pool_state.victims.reclaimable_for(pending.gang)
        if not (
            pool_state.terminating_pods
            or self._state.notified.for_gang(pending.gang.whole_id, pool_state)
            or len(reclaimable)
        ):
            return None
        return self._attempts.try_once(
            ("room",),
            pool_state,
            pending,
            lambda: self._search_unreserved(pool_state, pending, reclaimable),
        )

    def _search_unreserved(
        self, pool_state: PoolState, pending: PendingGang, reclaimable: PreemptionCandidates
    ) -> CandidatePlan | None:
        reservation = pool_state.reservations.nodes
        if reservation is None:
            return find_candidate_plan(self._state, pool_state, pending, reclaimable)
        if not len(reclaimable):
            return None  # What terminates anyway is for the gang ahead.
        with pool_state.trial():
            coming = pool_state.terminating_pods.values()
            hide_reserved(self._state, pool_state, reservation, reclaimable, coming)
            return find_candidate_plan(self._state, pool_state, pending, reclaimable)

    def make_reservation(self, pools: Sequence[PoolState], pending: PendingGang) -> bool:
        """Reserve nodes in the pool in which the gang can start first."""
        found = self.earliest_reservation(pending, pools)
        if found is None:
            return False
        pool_state, reservation = found
        pool_state.reservations.reserve_nodes(reservation)
        return True

    def _reservation_in(self, pool_state: PoolState, pending: PendingGang) -> Reservation | None:
        if pool_state.reservations.nodes is not None:
            return None
        question = "reserve", self._state.has_aged(pending.gang)
        return self._attempts.try_once(
            question, pool_state, pending, lambda: find_reservation(self._state, pool_state, pending)
        )

    def earliest_reservation(
        self, part: PendingGang, pools: Sequence[PoolState]
    ) -> tuple[PoolState, Reservation] | None:
        """Return the reservation of nodes with the earliest start; None: no pool has one."""
        found = [(each, reservation) for each in pools if (reservation := self._reservation_in(each, part)) is not None]
        return pick_best(found, _start_time) if found else None

    def start_in_other_pool(self, pending: PendingGang, plan: PreemptionPlan) -> bool:
        """Start a gang that has a plan in another pool with free capacity; return whether there is one."""
        pools = (pool_state for pool_state in self.pools_within_limit(pending) if pool_state.pool.key != plan.pool)
        places = [each for each in self._find_placements(pools, pending) if not each[1].reserved_for]
        if not places:
            return False
        release_plan(self._state.pool_states[plan.pool], pending, plan)
        self._state.remove_plan(pending)
        self._start_at_best(places, pending)
        return True


def _start_time(found: tuple[PoolState, Reservation]) -> float:
    start = found[1].start
    return math.inf if start is None else start


def find_reservation(state: CycleState, pool_state: PoolState, pending: PendingGang) -> Reservation | None:
    """Return a reservation at the earliest known start. Without a known start, only an aged gang reserves nodes."""
    gang = pending.gang
    reclaimable = tuple(
        pod
        for pod in pool_state.victims.reclaimable_for(gang).all_pods()
        if pod.node in pool_state.node_resources.nodes
    )
    with pool_state.trial():
        pool_state.remove_pods(reclaimable)
        leaves, allowed = reserve_for(pool_state, pending, pending.min_members), allowed_nodes(pool_state, pending)
        future = PoolForecast(pool_state.node_resources, pool_state.expected_ends, state.now, idle_reserve=leaves)
        start = future.earliest_start(pending.min_members, required_level=gang.required_level, among=allowed)
        places = None
        if start is not None:
            places = future.place_at(pending.min_members, start, required_level=gang.required_level, among=allowed)
    if places is not None:
        return _make_reservation(pool_state, pending, places, start, reclaimable)
    if not state.has_aged(gang):
        return None
    nodes = _nodes_after_eviction(state, pool_state, pending) or _nodes_after_eviction(
        state, pool_state, pending, also=_planned_borrowers(state, pool_state)
    )
    return _make_reservation(pool_state, pending, nodes, None, reclaimable) if nodes is not None else None


def _nodes_after_eviction(
    state: CycleState, pool_state: PoolState, pending: PendingGang, *, also: Iterable[tuple[str, Shape]] = ()
) -> Mapping[str, str] | None:
    """Return where the gang fits after the cheapest evictions, and after pods of shapes terminate on nodes (`also`)."""
    late = late_pod_uids(pool_state, state.now)
    with pool_state.trial():
        for node, shape in also:
            pool_state.node_resources.remove_pods(node, shape)
        choice = choose_victims(
            pool_state.node_resources,
            pool_state.victims.preemption_candidates,
            pending.gang,
            pending.min_members,
            now=state.now,
            excess=pool_state.tenant_usage.shares_by_tenant(),
            among=allowed_nodes(pool_state, pending),
            ending=[pod for uid, pod in pool_state.terminating_pods.items() if uid not in late],
            idle_reserve=reserve_for(pool_state, pending, pending.min_members),
        )
    return choice.nodes if choice is not None else None


def _planned_borrowers(state: CycleState, pool_state: PoolState) -> Iterator[tuple[str, Shape]]:
    """Yield nodes and shapes of the pods that borrowing gangs are planned to start: they end, too."""
    for name, plan in state.plans.items():
        if plan.pool == pool_state.pool.key and plan.borrowed:
            yield from ((plan.nodes[pod.uid], pod.shape) for pod in state.pending_gangs[name].min_members)


def _make_reservation(
    pool_state: PoolState,
    pending: PendingGang,
    nodes: Mapping[str, str],
    start: float | None,
    reclaimable: Iterable[Pod],
) -> Reservation:
    reservation = Reservation.for_gang(pending.gang, pending.min_members, nodes, start, ends=pool_state.expected_ends)
    for pod in reclaimable:
        end = pool_state.expected_ends.end_of(pod.uid)
        if start is None or end is None or end > start:
            reservation.count_as_freed(pod.node, pod.shape)
    return reservation


T = TypeVar("T")


class Attempts:
    """Failed attempts of a phase in which free capacity only shrinks, until `clear`."""

    def __init__(self, state: CycleState) -> None:
        self._state = state
        self._failed: set[Hashable] = set()

    def clear(self) -> None:
        """Drop all failures: more capacity is free."""
        self._failed.clear()

    def has_failed(self, key: Hashable) -> bool:
        """Return whether an attempt with this key has failed."""
        return key in self._failed

    def add_failed(self, key: Hashable) -> None:
        """Record a failed attempt."""
        self._failed.add(key)

    def try_once(
        self, question: Hashable, pool_state: PoolState, pending: PendingGang, attempt: Callable[[], T | None]
    ) -> T | None:
        """Return the result of an attempt, unless it failed for an equal gang. A unique gang has no equals."""
        if pending.gang.part_info is not None:
            return attempt()  # What is free for it may be another part's in the next attempt.
        key: Hashable = question, pool_state.pool.key, pending.equivalence_class
        if key in self._failed and not self._is_unique_in(pool_state, pending):
            return None
        found = attempt()
        if found is None and not self._is_unique_in(pool_state, pending):
            self._failed.add(key)
        return found

    def is_unique(self, pending: PendingGang) -> bool:
        """Return whether the gang has no equals, because some of its pods run or victims terminate for it."""
        return any(self._is_unique_in(pool_state, pending) for pool_state in self._state.usable_pools(pending))

    def _is_unique_in(self, pool_state: PoolState, pending: PendingGang) -> bool:
        name = pending.gang.whole_id
        return (
            bool(pending.placed_pods)
            or name in pool_state.victims.backfilled_gangs
            or bool(self._state.notified.for_gang(name, pool_state))
        )
