"""Borrowing gangs in queue order: start, reclaim or reserve. In each pool, the first gang that does not fit reserves
nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vkgateway.scheduler.core.capacity.forecast import Reservation
from vkgateway.scheduler.core.capacity.node_fit import BoolArray, IntArray
from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.phases.backfill import find_backfill
from vkgateway.scheduler.core.phases.fair_shares import FairShares
from vkgateway.scheduler.core.phases.gang_borrowing import Attempts, GangBorrowing
from vkgateway.scheduler.core.phases.guaranteed_starts import start_within_guarantee
from vkgateway.scheduler.core.phases.limit_reservations import reserve_limit
from vkgateway.scheduler.core.phases.multi_pool_gangs import place_parts, undecided_parts
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.queue_order import QueueOrder
from vkgateway.scheduler.core.snapshot import GUARANTEED, Gang, Pod, PreemptionPlan


def start_borrowing_gangs(state: CycleState) -> None:
    """Start the gangs that fit in free capacity, in queue order, and record that order.

    A planned gang is scheduled, too, where another pool may have capacity for it earlier. Low gangs that yield come
    last: what they took would be reclaimed in the next cycle. An aged low gang keeps its place, and so its reservation.
    """
    left, last = state.undecided_mask() | _movable_mask(state), _yielding_mask(state)
    order = [_start_in_order(state, np.flatnonzero(left & part)) for part in (~last, last)]
    state.queue_order = np.concatenate(order)


def _start_in_order(state: CycleState, among: IntArray) -> IntArray:
    """Start the gangs of these indices of `pending_table` that fit; return them in queue order."""
    queue = QueueOrder(state.pending_table, among, FairShares(state), state.policy, state.now)
    step, booked = _BorrowingStep(state, queue), state.decision_count
    while (pending := queue.next_gang(booked=state.decision_count != booked)) is not None:
        booked, plan = state.decision_count, state.plans.get(pending.gang.id)
        if pending.gang.id in state.excluded_gangs:
            continue
        if pending.gang.part_info is not None:
            step.schedule_parts(pending)
        elif plan is None:
            step.schedule_gang(pending)
        else:
            step.start_in_other_pool(pending, plan)
    return queue.full_order()


def _yielding_mask(state: CycleState) -> BoolArray:
    """Return a mask of the low gangs of `pending_table` that come last: those that had a start withdrawn and, where low
    work yields in all pools, those that have not aged, nor lost members while they ran.
    """
    table = state.pending_table
    found: BoolArray = ~table.mask_without(state.deferred_gangs)
    if all(pool_state.pool.low_yields for pool_state in state.pool_states.values()):
        keeps_place = table.is_short | (state.now - table.created_times >= state.policy.age_cap)
        found |= table.is_low & ~keeps_place
    return found


def _movable_mask(state: CycleState) -> BoolArray:
    """Return a mask of the gangs of `pending_table` with a plan to borrow, and with other pools to start in."""
    plans = (name for name, plan in state.plans.items() if plan.borrowed and _can_move(state.pending_gangs[name]))
    return ~state.pending_table.mask_without(plans)


def _can_move(pending: PendingGang) -> bool:
    return len(pending.allowed_pools) > 1 and pending.gang.part_info is None


def is_overtaken(state: CycleState, queue: IntArray) -> bool:
    """Return whether a gang that a reservation refused now comes before the reserving gang, as shares are after all
    starts.
    """
    reservations = [
        pool_state.reservations.nodes
        for pool_state in state.pool_states.values()
        if pool_state.reservations.nodes is not None
    ]
    refused = {kind for each in reservations for kind in each.refused_classes}
    if not refused:
        return False
    left = queue[state.undecided_mask()[queue]]
    table = state.pending_table
    firsts = left[np.unique(table.tenant_numbers[left], return_index=True)[1]]
    first = [table.pending_gangs[index] for index in firsts.tolist()]
    shares = FairShares(state, _borrowing_starts(state))
    keys = {pending.tenant: (shares.share_of(pending), pending.gang.created, pending.tenant) for pending in first}
    behind = np.isin(
        table.tenant_numbers[firsts],
        table.tenant_numbers[left[np.isin(table.equivalence_classes[left], list(refused))]],
    )
    tenants = {pending.tenant for pending, is_behind in zip(first, behind.tolist(), strict=True) if is_behind}
    holders = [state.pending_gangs[each.gang].tenant for each in reservations]
    last = max(keys[tenant] for tenant in holders)
    return any(keys[tenant] < last for tenant in tenants if tenant not in holders)


def _borrowing_starts(state: CycleState) -> Iterator[tuple[Gang, Pod]]:
    """Yield the borrowing pods that start in this round, with their gangs."""
    for admit in state.merged_admits():
        if admit.borrowed:
            gang = state.gangs[admit.gang]
            yield from ((gang, pod) for pod in gang.pods if pod.uid in admit.nodes)


class _BorrowingStep:
    """The phase under way."""

    def __init__(self, state: CycleState, queue: QueueOrder) -> None:
        self._state = state
        self._queue = queue
        self._attempts = Attempts(state)
        self._gangs = GangBorrowing(state, self._attempts)
        self._parts = PartBorrowing(state, self._gangs)

    def schedule_gang(self, pending: PendingGang) -> None:
        """Start a gang, plan it by reclaiming, or reserve nodes for it."""
        pools = list(self._gangs.pools_within_limit(pending))
        if self._gangs.start_now(pools, pending):
            return
        if self._gangs.reclaim_capacity(pools, pending):
            self._reset_failures()
        elif not self._gangs.make_reservation(pools, pending):
            if not pools:
                reserve_limit(self._state, self._gangs.feasible_pools(pending), pending)
            if not self._attempts.is_unique(pending):
                self._queue.skip_class()

    def schedule_parts(self, pending: PendingGang) -> None:
        """Start or plan all parts of a gang, or reserve places for them; nothing, where another part was tried."""
        parts = undecided_parts(self._state, pending)
        equals = pending.tenant, tuple(part.equivalence_class for part in parts)
        if self._state.is_decided(pending.gang.id) or not parts:
            return
        if not self._attempts.has_failed(equals):
            if self._parts.start_together(parts):
                if any(part.gang.id in self._state.plans for part in parts):
                    # A part inside its guarantee counts on pods that leave; gangs whose turn has passed may, too.
                    self._state.note_freed_capacity()
                    self._reset_failures()
                return
            self._attempts.add_failed(equals)
            self._parts.reserve_parts(parts)
        if not any(self._attempts.is_unique(part) for part in parts):
            self._queue.skip_class()

    def start_in_other_pool(self, pending: PendingGang, plan: PreemptionPlan) -> None:
        """Start a gang that has a plan in another pool with free capacity."""
        if self._gangs.start_in_other_pool(pending, plan):
            self._reset_failures()

    def _reset_failures(self) -> None:
        """Retry gangs that failed before: more capacity is free."""
        self._attempts.clear()
        self._queue.reset_skipped()


class PartBorrowing:
    """Scheduling of all parts of a gang of which at least one borrows."""

    def __init__(self, state: CycleState, gangs: GangBorrowing) -> None:
        self._state = state
        self._gangs = gangs

    def start_together(self, parts: Sequence[PendingGang]) -> bool:
        """Start or plan all parts, inside guarantees where that is possible; else beside what is left of them.

        The nodes on which one part is inside its guarantee may be the only ones for another part.
        """
        ways = (
            (self._start_guaranteed_or_borrow, self._start_borrowing)
            if parts[0].gang.band is GUARANTEED
            else (self._start_borrowing,)
        )
        return any(place_parts(self._state, parts, way) is None for way in ways)

    def _start_guaranteed_or_borrow(self, pools: Sequence[PoolState], pending: PendingGang) -> bool:
        return start_within_guarantee(self._state, pools, pending) or self._start_borrowing(pools, pending)

    def _start_borrowing(self, pools: Sequence[PoolState], pending: PendingGang) -> bool:
        there = {pool_state.pool.key for pool_state in pools}
        allowed = [pool_state for pool_state in self._gangs.pools_within_limit(pending) if pool_state.pool.key in there]
        return self._gangs.start_now(allowed, pending) or self._gangs.reclaim_capacity(allowed, pending)

    def reserve_parts(self, parts: Sequence[PendingGang]) -> None:
        """Reserve nodes for each part that does not fit, and for the others what they need when these can start."""
        pools = {part.gang.id: list(self._gangs.pools_within_limit(part)) for part in parts}
        for part in parts:
            if not pools[part.gang.id]:
                reserve_limit(self._state, self._gangs.feasible_pools(part), part)
        if not all(pools.values()):
            return
        free = {part.gang.id: self._find_free_nodes(part, pools[part.gang.id]) for part in parts}
        short = [part for part in parts if free[part.gang.id] is None]
        found = {part.gang.id: self._gangs.earliest_reservation(part, pools[part.gang.id]) for part in short}
        aged = self._state.has_aged(parts[0].gang)
        if not short or not (aged or all(found.values())):
            return
        starts = [each[1].start if each is not None else None for each in found.values()]
        known = [start for start in starts if start is not None]
        last = max(known) if len(known) == len(starts) else None
        for part in parts:
            place = free[part.gang.id]
            if place is not None:
                pool_state, nodes = place
                found[part.gang.id] = (
                    pool_state,
                    Reservation.for_gang(part.gang, part.min_members, nodes, last, ends=pool_state.expected_ends),
                )
        for each in found.values():
            if each is not None and each[0].reservations.nodes is None:
                each[0].reservations.reserve_nodes(each[1])

    def _find_free_nodes(
        self, part: PendingGang, pools: Sequence[PoolState]
    ) -> tuple[PoolState, dict[str, str]] | None:
        """Return where a part fits now, beside what is reserved."""
        for pool_state in pools:
            nodes = find_backfill(self._state, pool_state, part, part.min_members)
            if nodes is not None:
                return pool_state, nodes
        return None
