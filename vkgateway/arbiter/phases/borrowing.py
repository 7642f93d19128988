"""Steps 3 and 4: gangs that borrow, in turn; the first of a pool that does not fit gets a place in the future."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from vkgateway.arbiter.capacity.forecast import PoolForecast, Reservation
from vkgateway.arbiter.capacity.node_fit import IntArray
from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.phases.fair_shares import FairShares
from vkgateway.arbiter.phases.feasibility import is_impossible
from vkgateway.arbiter.phases.guaranteed_starts import start_within_guarantee
from vkgateway.arbiter.phases.idle_reserve import leaves_reserve, reserve_for
from vkgateway.arbiter.phases.limit_reservations import exceeds_reserved_limit, reserve_limit
from vkgateway.arbiter.phases.multi_pool_gangs import place_parts, undecided_parts
from vkgateway.arbiter.phases.pool_choice import fits_guarantee, measure_fit, pick_best, preemption_cost
from vkgateway.arbiter.phases.preemption_plans import (
    CandidatePlan,
    adopt_plan,
    allowed_nodes,
    find_candidate_plan,
    place_borrowed_last,
    release_plan,
)
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.preemption.victim_search import choose_victims
from vkgateway.arbiter.queueing.ordered_queue import QueueOrder
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import GUARANTEED, Gang, Pod, PreemptionPlan, Shape

T = TypeVar("T")


def start_borrowing_gangs(ledger: CycleState) -> IntArray:
    """Start whoever fits into what is free; returns all, as indices of `AcceptedSpecs.pending_table`, in their turn.

    Whoever has a plan has its turn, too, where another pool may have room for it first.
    """
    left = np.flatnonzero(ledger.undecided_mask() | ledger.movable_mask())
    turn = QueueOrder(ledger.pending_table, left, FairShares(ledger), ledger.policy, ledger.now)
    step, booked = _BorrowingStep(ledger, turn), ledger.decision_count
    while (ask := turn.next_gang(booked=ledger.decision_count != booked)) is not None:
        booked, plan = ledger.decision_count, ledger.plans.get(ask.gang.id)
        if ask.gang.id in ledger.excluded_gangs:
            continue
        if ask.gang.part_info is not None:
            step.schedule_parts(ask)
        elif plan is None:
            step.schedule_gang(ask)
        else:
            step.start_in_other_pool(ask, plan)
    return turn.full_order()


def is_overtaken(ledger: CycleState, turn: IntArray) -> bool:
    """Whether somebody who was refused for a kept place would be asked first, as shares are after all that started."""
    kept = [standing.reservation for standing in ledger.pool_states.values() if standing.reservation is not None]
    refused = {kind for each in kept for kind in each.refused_classes}
    if not refused:
        return False
    left = turn[ledger.undecided_mask()[turn]]
    needy = ledger.pending_table
    firsts = left[np.unique(needy.tenant_numbers[left], return_index=True)[1]]
    first = [needy.pending_gangs[index] for index in firsts.tolist()]
    shares = FairShares(ledger, _borrowing_starts(ledger))
    keys = {ask.tenant: (shares.share_of(ask), ask.gang.created, ask.tenant) for ask in first}
    behind = np.isin(
        needy.tenant_numbers[firsts],
        needy.tenant_numbers[left[np.isin(needy.equivalence_classes[left], list(refused))]],
    )
    tenants = {ask.tenant for ask, is_behind in zip(first, behind.tolist(), strict=True) if is_behind}
    holders = [ledger.pending_gangs[each.gang].tenant for each in kept]
    last = max(keys[tenant] for tenant in holders)
    return any(keys[tenant] < last for tenant in tenants if tenant not in holders)


def _borrowing_starts(ledger: CycleState) -> Iterator[tuple[Gang, Pod]]:
    """Pods that start in this cycle and borrow, with their gangs."""
    for admit in ledger.merged_admits():
        if admit.borrowed:
            gang = ledger.gangs[admit.gang]
            yield from ((gang, pod) for pod in gang.pods if pod.uid in admit.nodes)


class _BorrowingStep:
    """The step under way. In it room only shrinks: what did not fit for one gang is not tried for its equals."""

    def __init__(self, ledger: CycleState, turn: QueueOrder) -> None:
        self._cycle_state = ledger
        self._queue_order = turn
        self._failed_attempts: set[Hashable] = set()
        self._feasible_cache: dict[tuple[str, int], list[PoolState]] = {}
        """By tenant and kind the pools where it is not certain that they fit nowhere."""

    def schedule_gang(self, ask: PendingGang) -> None:
        """Start it, or make room for it, or keep a place for it."""
        pools = list(self._pools_within_limit(ask))
        if self.start_now(pools, ask):
            return
        if self.reclaim_room(pools, ask):
            self._reset_failures()
        elif not self.make_reservation(pools, ask):
            if not pools:
                reserve_limit(self._cycle_state, self._feasible_pools(ask), ask)
            if not self._is_unique(ask):
                self._queue_order.skip_class()

    def schedule_parts(self, ask: PendingGang) -> None:
        """Start or plan all parts of a gang, or reserve places for them; nothing, where another part was tried."""
        parts = undecided_parts(self._cycle_state, ask)
        equals = ask.tenant, tuple(part.equivalence_class for part in parts)
        if self._cycle_state.is_decided(ask) or not parts:
            return
        if equals not in self._failed_attempts:
            if self._start_together(parts):
                if any(part.gang.id in self._cycle_state.plans for part in parts):
                    # A part inside its guarantee counts on pods that leave; gangs whose turn has passed may, too.
                    self._cycle_state.has_freed_capacity = True
                    self._reset_failures()
                return
            self._failed_attempts.add(equals)
            self._reserve_parts(parts)
        if not any(self._is_unique(part) for part in parts):
            self._queue_order.skip_class()

    def _start_together(self, parts: Sequence[PendingGang]) -> bool:
        """Start or plan all parts, inside guarantees where that is possible; else beside what is left of them.

        The nodes on which one part is inside its guarantee may be the only ones for another part.
        """
        ways = (
            (self._start_guaranteed_or_borrow, self._start_borrowing)
            if parts[0].gang.band is GUARANTEED
            else (self._start_borrowing,)
        )
        return any(place_parts(self._cycle_state, parts, way) is None for way in ways)

    def _start_guaranteed_or_borrow(self, pools: Sequence[PoolState], ask: PendingGang) -> bool:
        return start_within_guarantee(self._cycle_state, pools, ask) or self._start_borrowing(pools, ask)

    def _start_borrowing(self, pools: Sequence[PoolState], ask: PendingGang) -> bool:
        there = {standing.pool.key for standing in pools}
        allowed = [standing for standing in self._pools_within_limit(ask) if standing.pool.key in there]
        return self.start_now(allowed, ask) or self.reclaim_room(allowed, ask)

    def _reserve_parts(self, parts: Sequence[PendingGang]) -> None:
        """Reserve a place for each part that does not fit, and for the others what they need when these can start."""
        pools = {part.gang.id: list(self._pools_within_limit(part)) for part in parts}
        for part in parts:
            if not pools[part.gang.id]:
                reserve_limit(self._cycle_state, self._feasible_pools(part), part)
        if not all(pools.values()):
            return
        free = {part.gang.id: self._find_free_nodes(part, pools[part.gang.id]) for part in parts}
        short = [part for part in parts if free[part.gang.id] is None]
        found = {part.gang.id: self._earliest_reservation(part, pools[part.gang.id]) for part in short}
        aged = self._cycle_state.has_aged(parts[0].gang)
        if not short or not (aged or all(found.values())):
            return
        starts = [each[1].start if each is not None else None for each in found.values()]
        known = [start for start in starts if start is not None]
        last = max(known) if len(known) == len(starts) else None
        for part in parts:
            place = free[part.gang.id]
            if place is not None:
                standing, nodes = place
                found[part.gang.id] = (
                    standing,
                    Reservation.for_gang(part.gang, part.min_members, nodes, last, ends=standing.expected_ends),
                )
        for each in found.values():
            if each is not None and each[0].reservation is None:
                each[0].reservation = each[1]

    def _find_free_nodes(
        self, part: PendingGang, pools: Sequence[PoolState]
    ) -> tuple[PoolState, dict[str, str]] | None:
        """Return where a part fits now, beside what is reserved."""
        for standing in pools:
            nodes = find_backfill(self._cycle_state, standing, part, part.min_members)
            if nodes is not None:
                return standing, nodes
        return None

    def _earliest_reservation(
        self, part: PendingGang, pools: Sequence[PoolState]
    ) -> tuple[PoolState, Reservation] | None:
        found = [(each, kept) for each in pools if (kept := self._reservation_in(each, part)) is not None]
        return pick_best(found, _start_time) if found else None

    def start_in_other_pool(self, ask: PendingGang, plan: PreemptionPlan) -> None:
        """Start whoever has a plan in another pool that has room for good; nobody goes for it then."""
        pools = (standing for standing in self._pools_within_limit(ask) if standing.pool.key != plan.pool)
        places = [each for each in self._find_placements(pools, ask) if not each[1].reserved_for]
        if not places:
            return
        release_plan(self._cycle_state.pool_states[plan.pool], ask, plan)
        self._cycle_state.remove_plan(ask)
        self._start_at_best(places, ask)
        self._reset_failures()

    def _reset_failures(self) -> None:
        """There is more room than before."""
        self._failed_attempts.clear()
        self._queue_order.reset_skipped()

    def _pools_within_limit(self, ask: PendingGang) -> Iterator[PoolState]:
        """Those of its pools where no limit holds it up."""
        for standing in self._feasible_pools(ask):
            beyond = standing.exceeded_limits(ask.tenant, ask.min_members)
            if not beyond and not exceeds_reserved_limit(self._cycle_state, standing, ask, ask.min_members):
                yield standing

    def _feasible_pools(self, ask: PendingGang) -> list[PoolState]:
        """The pools that it may use, without those where it fits nowhere, whoever goes."""
        equals = ask.tenant, ask.equivalence_class
        found = self._feasible_cache.get(equals)
        if found is None:
            found = [standing for standing in self._cycle_state.usable_pools(ask) if not is_impossible(standing, ask)]
            self._feasible_cache[equals] = found
        return found

    def _is_unique(self, ask: PendingGang) -> bool:
        """Whether it is like nobody else: some of it is there, or others go for it."""
        return any(self._is_unique_in(standing, ask) for standing in self._cycle_state.usable_pools(ask))

    def _is_unique_in(self, standing: PoolState, ask: PendingGang) -> bool:
        name = ask.gang.whole_id
        return (
            bool(ask.placed_pods)
            or name in standing.backfilled_gangs
            or bool(self._cycle_state.notified_for(name, standing))
        )

    def start_now(self, pools: Sequence[PoolState], ask: PendingGang) -> bool:
        """Where it fits best into what is free."""
        if len(pools) == 1:
            place = self._take_once(pools[0], ask)
            if place is not None:
                _start_placed(self._cycle_state, pools[0], ask, ask.min_members, place)
            return place is not None
        places = list(self._find_placements(pools, ask))
        if places:
            self._start_at_best(places, ask)
        return bool(places)

    def _start_at_best(self, places: Sequence[tuple[PoolState, Placement]], ask: PendingGang) -> None:
        standing, place = pick_best(places, lambda each: _placement_rank(each[0], ask, each[1]))
        standing.add_pods(ask.min_members, place.nodes)
        _start_placed(self._cycle_state, standing, ask, ask.min_members, place)

    def _find_placements(self, pools: Iterable[PoolState], ask: PendingGang) -> Iterator[tuple[PoolState, Placement]]:
        """A place in each pool that has one; all rooms are left as they were."""
        for standing in pools:
            mark = standing.node_resources.mark()
            place = self._take_once(standing, ask)
            if place is not None:
                standing.node_resources.undo(mark)
                yield standing, place

    def _take_once(self, standing: PoolState, ask: PendingGang) -> Placement | None:
        kept = standing.reservation
        free = (
            kept is None
            or kept.can_backfill(standing.expected_ends, ask.gang, self._cycle_state.now)
            or kept.can_lend_to(ask.gang, self._cycle_state.now)
        )
        return self._try_once(
            ("start", free), standing, ask, lambda: _take_placement(self._cycle_state, standing, ask, ask.min_members)
        )

    def reclaim_room(self, pools: Sequence[PoolState], ask: PendingGang) -> bool:
        """Call in surplus and what runs in its reserved place, or wait for what is leaving, where that costs least."""
        found = [
            (standing, making) for standing in pools if (making := self._find_candidate_plan(standing, ask)) is not None
        ]
        if not found:
            return False
        standing, making = pick_best(found, lambda each: preemption_cost(each[0], ask, each[1], self._cycle_state.now))
        adopt_plan(self._cycle_state, standing, ask, making)
        return True

    def _find_candidate_plan(self, standing: PoolState, ask: PendingGang) -> CandidatePlan | None:
        """Only where nothing is kept for somebody ahead."""
        if standing.reservation is not None:
            return None
        callable_ = standing.reclaimable_for(ask.gang.whole_id)
        if not (
            standing.terminating_pods or self._cycle_state.notified_for(ask.gang.whole_id, standing) or len(callable_)
        ):
            return None
        return self._try_once(
            ("room",), standing, ask, lambda: find_candidate_plan(self._cycle_state, standing, ask, callable_)
        )

    def make_reservation(self, pools: Sequence[PoolState], ask: PendingGang) -> bool:
        """Keep a place where it can start first."""
        found = self._earliest_reservation(ask, pools)
        if found is None:
            return False
        standing, kept = found
        standing.reservation = kept
        return True

    def _reservation_in(self, standing: PoolState, ask: PendingGang) -> Reservation | None:
        if standing.reservation is not None:
            return None
        what = "reserve", self._cycle_state.has_aged(ask.gang)
        return self._try_once(what, standing, ask, lambda: _find_reservation(self._cycle_state, standing, ask))

    def _try_once(
        self, what: Hashable, standing: PoolState, ask: PendingGang, attempt: Callable[[], T | None]
    ) -> T | None:
        """Try, if it was not tried in vain for an equal gang. Who has others go for it is like nobody else."""
        if ask.gang.part_info is not None:
            return attempt()  # What is free for it may be another part's in the next attempt.
        key: Hashable = what, standing.pool.key, ask.equivalence_class
        if key in self._failed_attempts and not self._is_unique_in(standing, ask):
            return None
        found = attempt()
        if found is None and not self._is_unique_in(standing, ask):
            self._failed_attempts.add(key)
        return found


def _start_time(found: tuple[PoolState, Reservation]) -> float:
    start = found[1].start
    return math.inf if start is None else start


class Placement(NamedTuple):
    """Where pods can start now, and the gang in whose reserved place that is, if it is in one."""

    nodes: dict[str, str]
    reserved_for: str = ""


def _take_placement(ledger: CycleState, standing: PoolState, ask: PendingGang, pods: Sequence[Pod]) -> Placement | None:
    """A place for all these pods in what is free and not kept for somebody else; it is taken."""
    nodes = _take_backfill(ledger, standing, ask, pods)
    if nodes is not None:
        return Placement(nodes)
    kept = standing.reservation
    if kept is not None and ask.gang.part_info is None and kept.can_lend_to(ask.gang, ledger.now):
        nodes = _take_nodes(standing, ask, pods)
        if nodes is not None:
            return Placement(nodes, ledger.gangs[kept.gang].whole_id)
    return None


def _start_placed(
    ledger: CycleState, standing: PoolState, ask: PendingGang, pods: Sequence[Pod], place: Placement
) -> None:
    """Start these pods where a place was taken."""
    nodes, guaranteed = place.nodes, ask.gang.band is GUARANTEED
    inside = guaranteed and standing.promote_pods(ask.gang, [(pod, nodes[pod.uid]) for pod in pods])
    ledger.start_pods(ask, standing, pods, nodes, inside=inside, behind=place.reserved_for)


def _placement_rank(standing: PoolState, ask: PendingGang, place: Placement) -> tuple[bool, bool, int, int]:
    """The smaller the better: inside its guarantee, not in a place from which it is sent away, and the best fit."""
    return (
        not fits_guarantee(standing, ask, place.nodes),
        bool(place.reserved_for),
        *measure_fit(standing.node_resources, ask.min_members, place.nodes),
    )


def find_backfill(
    ledger: CycleState, standing: PoolState, ask: PendingGang, pods: Sequence[Pod]
) -> dict[str, str] | None:
    """A place that takes nothing from the reservation; the room is left as it was."""
    mark = standing.node_resources.mark()
    nodes = _take_backfill(ledger, standing, ask, pods)
    standing.node_resources.undo(mark)
    return nodes


def _take_backfill(
    ledger: CycleState, standing: PoolState, ask: PendingGang, pods: Sequence[Pod]
) -> dict[str, str] | None:
    """The same, and it is taken."""
    mark, kept = standing.node_resources.mark(), standing.reservation
    nodes = _take_nodes(standing, ask, pods)
    # A part of a gang may have to wait for another part, and then does not end as soon.
    lets = kept is None or (
        ask.gang.part_info is None and kept.can_backfill(standing.expected_ends, ask.gang, ledger.now)
    )
    if nodes is not None and lets:
        return nodes
    standing.node_resources.undo(mark)
    if nodes is None or kept is None:
        return None
    kept.withhold_needed(standing.node_resources)
    nodes = _take_nodes(standing, ask, pods)
    standing.node_resources.undo(mark)
    if nodes is None:
        kept.refused_classes.add(ask.equivalence_class)
    else:
        standing.add_pods(pods, nodes)
    return nodes


def _take_nodes(standing: PoolState, ask: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Return a place in what is free beside the pool's reserve, or where the gang is inside its guarantee; take it.

    Room that a reservation needs, and that is taken for it meanwhile, is not idle: or later gangs would use up what
    the first one must leave, again and again.
    """
    mark = standing.node_resources.mark()
    nodes = place_borrowed_last(standing, ask, pods)
    if (
        nodes is None
        or leaves_reserve(standing, pods)
        or (pods is ask.min_members and fits_guarantee(standing, ask, nodes))
    ):
        return nodes
    standing.node_resources.undo(mark)
    return None


def _find_reservation(ledger: CycleState, standing: PoolState, ask: PendingGang) -> Reservation | None:
    """A place at the earliest time that is known; without any, only for those who have waited for long."""
    gang = ask.gang
    lent = tuple(
        pod for pod in standing.reclaimable_for(gang.whole_id).all_pods() if pod.node in standing.node_resources
    )
    mark = standing.node_resources.mark()
    standing.remove_pods(lent)
    leaves, near = reserve_for(standing, ask.min_members), allowed_nodes(standing, ask)
    future = PoolForecast(standing.node_resources, standing.expected_ends, ledger.now, idle_reserve=leaves)
    start = future.earliest_start(ask.min_members, required_level=gang.required_level, among=near)
    places = None
    if start is not None:
        places = future.place_at(ask.min_members, start, required_level=gang.required_level, among=near)
    standing.node_resources.undo(mark)
    if places is not None:
        return _make_reservation(standing, ask, places, start, lent)
    if not ledger.has_aged(gang):
        return None
    nodes = _nodes_after_eviction(ledger, standing, ask) or _nodes_after_eviction(
        ledger, standing, ask, also=_planned_borrowers(ledger, standing)
    )
    return _make_reservation(standing, ask, nodes, None, lent) if nodes is not None else None


def _nodes_after_eviction(
    ledger: CycleState, standing: PoolState, ask: PendingGang, *, also: Iterable[tuple[str, Shape]] = ()
) -> Mapping[str, str] | None:
    """Return where the gang fits once the cheapest of what may be evicted, and `also` nodes and shapes, have gone."""
    mark, slow = standing.node_resources.mark(), ledger.late_pod_uids(standing)
    for node, shape in also:
        standing.node_resources.remove_pods(node, shape)
    choice = choose_victims(
        standing.node_resources,
        standing.preemption_candidates,
        ask.gang,
        ask.min_members,
        now=ledger.now,
        excess=standing.shares_by_tenant(),
        among=allowed_nodes(standing, ask),
        ending=[pod for uid, pod in standing.terminating_pods.items() if uid not in slow],
        idle_reserve=reserve_for(standing, ask.min_members),
    )
    standing.node_resources.undo(mark)
    return choice.nodes if choice is not None else None


def _planned_borrowers(ledger: CycleState, standing: PoolState) -> Iterator[tuple[str, Shape]]:
    """Yield where gangs are to start that borrow: they will end, too."""
    for name, plan in ledger.plans.items():
        if plan.pool == standing.pool.key and plan.borrowed:
            yield from ((plan.nodes[pod.uid], pod.shape) for pod in ledger.pending_gangs[name].min_members)


def _make_reservation(
    standing: PoolState, ask: PendingGang, nodes: Mapping[str, str], start: float | None, lent: Iterable[Pod]
) -> Reservation:
    reservation = Reservation.for_gang(ask.gang, ask.min_members, nodes, start, ends=standing.expected_ends)
    for pod in lent:
        end = standing.expected_ends.end_of(pod.uid)
        if start is None or end is None or end > start:
            reservation.count_as_freed(pod.node, pod.shape)
    return reservation
