"""Borrowing gangs in queue order: start, reclaim or reserve. In each pool, the first gang that does not fit reserves
nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import BoolArray, IntArray
from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.phases.attempts import Attempts
from vkgateway.scheduler.core.phases.fair_shares import FairShares
from vkgateway.scheduler.core.phases.gang_borrowing import GangBorrowing
from vkgateway.scheduler.core.phases.limit_reservations import reserve_limit
from vkgateway.scheduler.core.phases.multi_pool_gangs import undecided_parts
from vkgateway.scheduler.core.phases.part_borrowing import PartBorrowing
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.queue_order import QueueOrder
from vkgateway.scheduler.core.snapshot import Gang, Pod, PreemptionPlan


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
