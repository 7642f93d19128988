"""Queue order of pending gangs by dominant resource fairness."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Protocol

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import FloatArray, IntArray
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.pending_table import PendingTable
from vkgateway.scheduler.core.snapshot import Policy

_FEW_KEYS = 8
"""Up to this number, keys are computed one by one; numpy is faster for more."""


class ShareLookup(Protocol):
    """Shares that count for pending gangs."""

    def share_of(self, pending: PendingGang) -> float:
        """Return the share for one gang."""

    def shares_of(self, at: IntArray) -> FloatArray:
        """Return the shares for several gangs of one tenant with the same pools, as indices of the table."""


class QueueOrder:
    """Queue order, computed without a look at most gangs. The next tenant is the one whose first gang has the smallest
    key: share, then creation time. Within a tenant, short gangs (`Gang.short`) come first, and gangs are ordered
    by band, then by priority with capped age, then by age. Hence a gang comes next when the largest key from the head
    of its tenant's queue up to the gang is the smallest of all tenants. A start changes only later keys of the same
    tenant, and never lets a gang precede those already scheduled. So the final keys give the full order, and skipped
    classes need no look.
    """

    def __init__(self, waiting: PendingTable, among: IntArray, shares: ShareLookup, policy: Policy, now: float) -> None:
        age = np.maximum(0.0, now - waiting.created_times[among])
        rank = waiting.base_priorities[among] + np.minimum(age, policy.age_cap) * policy.age_weight
        columns = (waiting.is_low[among], ~waiting.is_short[among], waiting.tenant_numbers[among])
        order = np.lexsort((waiting.created_times[among], -rank, *columns))
        self.pending_table = waiting
        self._rows = among[order]
        self._times: FloatArray = waiting.created_times[self._rows]
        # Of one tenant and kind, and both old or both not.
        self._classes = (waiting.alike_numbers[self._rows] * 2 + (now - self._times >= policy.age_cap)).tolist()
        self._skipped = bytearray(2 * waiting.alike_count)
        self._shares: FloatArray = np.zeros(len(among))
        self._created: FloatArray = np.zeros(len(among))
        self._queues = self._build_queues(shares)
        self._heap = [entry for queue in self._queues if (entry := queue.next_entry(self._skipped)) is not None]
        heapify(self._heap)
        self._last_entry: tuple[tuple[float, float, str], _TenantQueue, int] | None = None

    def _build_queues(self, shares: ShareLookup) -> list[_TenantQueue]:
        tenant = self.pending_table.tenant_numbers[self._rows]
        bounds = [0, *(np.flatnonzero(tenant[1:] != tenant[:-1]) + 1).tolist(), len(tenant)] if len(tenant) else []
        return [_TenantQueue(self, number, start, end, shares) for number, (start, end) in enumerate(pairwise(bounds))]

    def next_gang(self, *, booked: bool) -> PendingGang | None:
        """Return the next gang; None: the queue is empty. `booked`: the last gang starts or has a plan, so its tenant's
        share has changed.
        """
        if self._last_entry is not None:
            (share, created, _), queue, _ = self._last_entry
            if booked:
                queue.restart_keys(share, created)
            self._push_queue(queue)
        if not self._heap:
            self._last_entry = None
            return None
        share, created, tenant, number, position = heappop(self._heap)
        queue = self._queues[number]
        self._last_entry = (share, created, tenant), queue, position
        queue.head = position + 1
        return self.pending_table.pending_gangs[self._rows.item(position)]

    def skip_class(self) -> None:
        """Skip the later gangs of the last gang's tenant and equivalence class."""
        assert self._last_entry is not None
        self._skipped[self._classes[self._last_entry[2]]] = 1

    def reset_skipped(self) -> None:
        """Skip none of the later gangs any more."""
        assert self._last_entry is not None
        self._skipped = bytearray(len(self._skipped))
        last, own, _ = self._last_entry
        self._heap = []
        for queue in self._queues:
            if queue is not own:
                queue.skip_passed(last)
                self._push_queue(queue)

    def _push_queue(self, queue: _TenantQueue) -> None:
        entry = queue.next_entry(self._skipped)
        if entry is not None:
            heappush(self._heap, entry)

    def full_order(self) -> IntArray:
        """Return all gangs in queue order, as indices of `pending_table`."""
        for queue in self._queues:
            queue.compute_keys(queue.end)
        names = {name: rank for rank, name in enumerate(sorted(queue.tenant for queue in self._queues))}
        tenant = np.zeros(len(self._rows), dtype=np.int64)
        for queue in self._queues:
            tenant[queue.start : queue.end] = names[queue.tenant]
        return self._rows[np.lexsort((tenant, self._created, self._shares))]


class _TenantQueue:
    """One tenant's gangs: from `start` to `end` in the arrays of the order; those before `head` were scheduled."""

    def __init__(self, order: QueueOrder, number: int, start: int, end: int, shares: ShareLookup) -> None:
        self.start, self.head, self.end = start, start, end
        self._order, self._number, self._shares = order, number, shares
        self._pending_table, at = order.pending_table, order._rows[start:end]
        self.tenant = self._pending_table.pending_gangs[at.item(0)].tenant
        pools = self._pending_table.pool_numbers[at]
        self._has_same_pools = bool((pools == pools[0]).all())
        self._known_until = start
        """Position up to which keys are known."""
        self._largest_key = -np.inf, -np.inf

    def restart_keys(self, share: float, created: float) -> None:
        """Discard the keys behind the head, which are no smaller than this one: the tenant's share has changed."""
        self._known_until, self._largest_key = self.head, (share, created)

    def next_entry(self, failed_classes: bytearray) -> tuple[float, float, str, int, int] | None:
        """Return key and position of the next gang whose class is not skipped."""
        order = self._order
        for position in range(self.head, self.end):
            if not failed_classes[order._classes[position]]:
                if position == self._known_until:
                    share, created = self._compute_key(position)
                else:
                    self.compute_keys(position + 1)
                    share, created = order._shares.item(position), order._created.item(position)
                return share, created, self.tenant, self._number, position
        return None

    def skip_passed(self, last: tuple[float, float, str]) -> None:
        """Skip gangs with smaller keys than this one: they were scheduled."""
        share, created, tenant = last
        self.compute_keys(self.end)
        shares, times = (column[self.head : self.end] for column in (self._order._shares, self._order._created))
        less = times <= created if self.tenant < tenant else times < created
        self.head += int(np.count_nonzero((shares < share) | ((shares == share) & less)))

    def compute_keys(self, until: int) -> None:
        """Compute the keys up to a position."""
        if until <= self._known_until:
            return
        if self._has_same_pools and until - self._known_until > _FEW_KEYS:
            self._compute_slice(slice(self._known_until, until))
        else:
            for position in range(self._known_until, until):
                self._compute_key(position)
        self._known_until = until

    def _compute_slice(self, span: slice) -> None:
        """Compute the keys of gangs with the same pools, and so mostly with the same share."""
        order, largest = self._order, self._largest_key
        shares = self._shares.shares_of(order._rows[span])
        share = shares.item(0)
        if (shares != share).any():
            order._shares[span], order._created[span] = _running_largest(shares, order._times[span], largest)
            self._largest_key = order._shares.item(span.stop - 1), order._created.item(span.stop - 1)
            return
        if share < largest[0]:
            order._shares[span], order._created[span] = largest
            return
        first = largest[1] if share == largest[0] else -np.inf
        times = np.maximum(np.maximum.accumulate(order._times[span]), first)
        order._shares[span], order._created[span] = share, times
        self._largest_key = share, times.item(-1)

    def _compute_key(self, position: int) -> tuple[float, float]:
        order = self._order
        key = (
            self._shares.share_of(self._pending_table.pending_gangs[order._rows.item(position)]),
            order._times.item(position),
        )
        self._largest_key = max(self._largest_key, key)
        order._shares[position], order._created[position] = self._largest_key
        self._known_until = position + 1
        return self._largest_key


def _running_largest(
    shares: FloatArray, times: FloatArray, first: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Return the largest pair of share and time, from `first` up to each of them."""
    shares, times = np.concatenate([[first[0]], shares]), np.concatenate([[first[1]], times])
    order = np.lexsort((times, shares))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    largest = order[np.maximum.accumulate(place)][1:]
    return shares[largest], times[largest]
