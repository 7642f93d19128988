"""The line of all that wait, worked out in one go: who is asked, while those that are given up on are passed over."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Protocol

import numpy as np

from vkgateway.arbiter.capacity.node_fit import FloatArray, IntArray
from vkgateway.arbiter.queueing.pending_columns import PendingTable
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import Policy

_FEW_KEYS = 8
"""Of up to so many the keys are worked out one by one; numpy is quicker for more."""


class ShareLookup(Protocol):
    """The share that counts for each of those that wait."""

    def share_of(self, ask: PendingGang) -> float:
        """That of one."""

    def shares_of(self, at: IntArray) -> FloatArray:
        """Those of several of one tenant, for the same pools, as indices of all that wait."""


class QueueOrder:
    """The order of `line.queue_order`, of whom most are never looked at.

    Among tenants the next is whose first gang has the smallest key: share, then time of creation. So a gang has its
    turn when the largest key from the head of its queue up to itself is the smallest of all tenants'. Whoever is given
    something changes its own keys from there on alone, and its turn cannot be in the past: the key of its last turn
    counts for those behind it, too. Hence all keys together tell the order at last, and on the way only those need be
    looked at who are not given up on.
    """

    def __init__(self, waiting: PendingTable, among: IntArray, shares: ShareLookup, policy: Policy, now: float) -> None:
        age = np.maximum(0.0, now - waiting.created_times[among])
        rank = waiting.base_priorities[among] + np.minimum(age, policy.age_cap) * policy.age_weight
        order = np.lexsort((waiting.created_times[among], -rank, waiting.is_low[among], waiting.tenant_numbers[among]))
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
        """Who is next; None: all had their turn. `booked`: the last one was given something."""
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
        """The tenant's gangs of the last one's kind are passed over from now on."""
        assert self._last_entry is not None
        self._skipped[self._classes[self._last_entry[2]]] = 1

    def reset_skipped(self) -> None:
        """Nobody whose turn is still to come is passed over any more."""
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
        """All of them, as indices of `pending_table`, in the order of their turns."""
        for queue in self._queues:
            queue.compute_keys(queue.end)
        names = {name: rank for rank, name in enumerate(sorted(queue.tenant for queue in self._queues))}
        tenant = np.zeros(len(self._rows), dtype=np.int64)
        for queue in self._queues:
            tenant[queue.start : queue.end] = names[queue.tenant]
        return self._rows[np.lexsort((tenant, self._created, self._shares))]


class _TenantQueue:
    """One tenant's gangs: from `start` to `end` in the turn's arrays; those before `head` had their turn."""

    def __init__(self, turn: QueueOrder, number: int, start: int, end: int, shares: ShareLookup) -> None:
        self.start, self.head, self.end = start, start, end
        self._order, self._number, self._shares = turn, number, shares
        self._pending_table, at = turn.pending_table, turn._rows[start:end]
        self.tenant = self._pending_table.pending_gangs[at.item(0)].tenant
        pools = self._pending_table.pool_numbers[at]
        self._has_same_pools = bool((pools == pools[0]).all())
        self._known_until = start
        """Up to here the keys are known."""
        self._largest_key = -np.inf, -np.inf

    def restart_keys(self, share: float, created: float) -> None:
        """Its share has changed: the keys behind its head are others, but not less than this one."""
        self._known_until, self._largest_key = self.head, (share, created)

    def next_entry(self, hopeless: bytearray) -> tuple[float, float, str, int, int] | None:
        """The key and place of the next that is not given up on."""
        turn = self._order
        for position in range(self.head, self.end):
            if not hopeless[turn._classes[position]]:
                if position == self._known_until:
                    share, created = self._compute_key(position)
                else:
                    self.compute_keys(position + 1)
                    share, created = turn._shares.item(position), turn._created.item(position)
                return share, created, self.tenant, self._number, position
        return None

    def skip_passed(self, last: tuple[float, float, str]) -> None:
        """Those with smaller keys than this one had their turn."""
        share, created, tenant = last
        self.compute_keys(self.end)
        shares, times = (column[self.head : self.end] for column in (self._order._shares, self._order._created))
        less = times <= created if self.tenant < tenant else times < created
        self.head += int(np.count_nonzero((shares < share) | ((shares == share) & less)))

    def compute_keys(self, until: int) -> None:
        """Work out the keys up to a position."""
        if until <= self._known_until:
            return
        if self._has_same_pools and until - self._known_until > _FEW_KEYS:
            self._compute_slice(slice(self._known_until, until))
        else:
            for position in range(self._known_until, until):
                self._compute_key(position)
        self._known_until = until

    def _compute_slice(self, here: slice) -> None:
        """The same pools, so mostly the same share, for all of them."""
        turn, largest = self._order, self._largest_key
        shares = self._shares.shares_of(turn._rows[here])
        share = shares.item(0)
        if (shares != share).any():
            turn._shares[here], turn._created[here] = _running_largest(shares, turn._times[here], largest)
            self._largest_key = turn._shares.item(here.stop - 1), turn._created.item(here.stop - 1)
            return
        if share < largest[0]:
            turn._shares[here], turn._created[here] = largest
            return
        first = largest[1] if share == largest[0] else -np.inf
        times = np.maximum(np.maximum.accumulate(turn._times[here]), first)
        turn._shares[here], turn._created[here] = share, times
        self._largest_key = share, times.item(-1)

    def _compute_key(self, position: int) -> tuple[float, float]:
        turn = self._order
        key = (
            self._shares.share_of(self._pending_table.pending_gangs[turn._rows.item(position)]),
            turn._times.item(position),
        )
        self._largest_key = max(self._largest_key, key)
        turn._shares[position], turn._created[position] = self._largest_key
        self._known_until = position + 1
        return self._largest_key


def _running_largest(
    shares: FloatArray, times: FloatArray, first: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """The largest pair of share and time from `first` up to each of them."""
    shares, times = np.concatenate([[first[0]], shares]), np.concatenate([[first[1]], times])
    order = np.lexsort((times, shares))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    largest = order[np.maximum.accumulate(place)][1:]
    return shares[largest], times[largest]
