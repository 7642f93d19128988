"""The line of all that wait, worked out in one go: who is asked, while those that are given up on are passed over."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Protocol

import numpy as np

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Policy
from vkgateway.arbiter.fitting import FloatArray, IntArray
from vkgateway.arbiter.waiting import Waiting

_FEW = 8
"""Of up to so many the keys are worked out one by one; numpy is quicker for more."""


class Shares(Protocol):
    """The share that counts for each of those that wait."""

    def of(self, ask: Ask) -> float:
        """That of one."""

    def of_all(self, at: IntArray) -> FloatArray:
        """Those of several of one tenant, for the same pools, as indices of all that wait."""


class Turn:
    """The order of `line.in_turn`, of whom most are never looked at.

    Among tenants the next is whose first gang has the smallest key: share, then time of creation. So a gang has its
    turn when the largest key from the head of its queue up to itself is the smallest of all tenants'. Whoever is given
    something changes its own keys from there on alone, and its turn cannot be in the past: the key of its last turn
    counts for those behind it, too. Hence all keys together tell the order at last, and on the way only those need be
    looked at who are not given up on.
    """

    def __init__(self, waiting: Waiting, among: IntArray, shares: Shares, policy: Policy, now: float) -> None:
        age = np.maximum(0.0, now - waiting.created[among])
        rank = waiting.priority[among] + np.minimum(age, policy.age_cap) * policy.age_weight
        order = np.lexsort((waiting.created[among], -rank, waiting.low[among], waiting.tenant[among]))
        self.waiting = waiting
        self._at = among[order]
        self._times: FloatArray = waiting.created[self._at]
        # Of one tenant and kind, and both old or both not.
        self._kinds = (waiting.alike[self._at] * 2 + (now - self._times >= policy.age_cap)).tolist()
        self._hopeless = bytearray(2 * waiting.numbers_alike)
        self._shares: FloatArray = np.zeros(len(among))
        self._created: FloatArray = np.zeros(len(among))
        self._queues = self._all_queues(shares)
        self._heap = [entry for queue in self._queues if (entry := queue.next(self._hopeless)) is not None]
        heapify(self._heap)
        self._last: tuple[tuple[float, float, str], _Queue, int] | None = None

    def _all_queues(self, shares: Shares) -> list[_Queue]:
        tenant = self.waiting.tenant[self._at]
        bounds = [0, *(np.flatnonzero(tenant[1:] != tenant[:-1]) + 1).tolist(), len(tenant)] if len(tenant) else []
        return [_Queue(self, number, start, end, shares) for number, (start, end) in enumerate(pairwise(bounds))]

    def next(self, *, booked: bool) -> Ask | None:
        """Who is next; None: all had their turn. `booked`: the last one was given something."""
        if self._last is not None:
            (share, created, _), queue, _ = self._last
            if booked:
                queue.restart(share, created)
            self._push(queue)
        if not self._heap:
            self._last = None
            return None
        share, created, tenant, number, position = heappop(self._heap)
        queue = self._queues[number]
        self._last = (share, created, tenant), queue, position
        queue.head = position + 1
        return self.waiting.asks[self._at.item(position)]

    def give_up(self) -> None:
        """The tenant's gangs of the last one's kind are passed over from now on."""
        assert self._last is not None
        self._hopeless[self._kinds[self._last[2]]] = 1

    def hope_again(self) -> None:
        """Nobody whose turn is still to come is passed over any more."""
        assert self._last is not None
        self._hopeless = bytearray(len(self._hopeless))
        last, own, _ = self._last
        self._heap = []
        for queue in self._queues:
            if queue is not own:
                queue.pass_by(last)
                self._push(queue)

    def _push(self, queue: _Queue) -> None:
        entry = queue.next(self._hopeless)
        if entry is not None:
            heappush(self._heap, entry)

    def order(self) -> IntArray:
        """All of them, as indices of `waiting`, in the order of their turns."""
        for queue in self._queues:
            queue.know(queue.end)
        names = {name: rank for rank, name in enumerate(sorted(queue.tenant for queue in self._queues))}
        tenant = np.zeros(len(self._at), dtype=np.int64)
        for queue in self._queues:
            tenant[queue.start : queue.end] = names[queue.tenant]
        return self._at[np.lexsort((tenant, self._created, self._shares))]


class _Queue:
    """One tenant's gangs: from `start` to `end` in the turn's arrays; those before `head` had their turn."""

    def __init__(self, turn: Turn, number: int, start: int, end: int, shares: Shares) -> None:
        self.start, self.head, self.end = start, start, end
        self._turn, self._number, self._shares = turn, number, shares
        self._waiting, at = turn.waiting, turn._at[start:end]
        self.tenant = self._waiting.asks[at.item(0)].tenant
        pools = self._waiting.pools[at]
        self._same = bool((pools == pools[0]).all())
        self._known = start
        """Up to here the keys are known."""
        self._largest = -np.inf, -np.inf

    def restart(self, share: float, created: float) -> None:
        """Its share has changed: the keys behind its head are others, but not less than this one."""
        self._known, self._largest = self.head, (share, created)

    def next(self, hopeless: bytearray) -> tuple[float, float, str, int, int] | None:
        """The key and place of the next that is not given up on."""
        turn = self._turn
        for position in range(self.head, self.end):
            if not hopeless[turn._kinds[position]]:
                if position == self._known:
                    share, created = self._know_one(position)
                else:
                    self.know(position + 1)
                    share, created = turn._shares.item(position), turn._created.item(position)
                return share, created, self.tenant, self._number, position
        return None

    def pass_by(self, last: tuple[float, float, str]) -> None:
        """Those with smaller keys than this one had their turn."""
        share, created, tenant = last
        self.know(self.end)
        shares, times = (column[self.head : self.end] for column in (self._turn._shares, self._turn._created))
        less = times <= created if self.tenant < tenant else times < created
        self.head += int(np.count_nonzero((shares < share) | ((shares == share) & less)))

    def know(self, until: int) -> None:
        """Work out the keys up to a position."""
        if until <= self._known:
            return
        if self._same and until - self._known > _FEW:
            self._know_all(slice(self._known, until))
        else:
            for position in range(self._known, until):
                self._know_one(position)
        self._known = until

    def _know_all(self, here: slice) -> None:
        """The same pools, so mostly the same share, for all of them."""
        turn, largest = self._turn, self._largest
        shares = self._shares.of_all(turn._at[here])
        share = shares.item(0)
        if (shares != share).any():
            turn._shares[here], turn._created[here] = _running_largest(shares, turn._times[here], largest)
            self._largest = turn._shares.item(here.stop - 1), turn._created.item(here.stop - 1)
            return
        if share < largest[0]:
            turn._shares[here], turn._created[here] = largest
            return
        first = largest[1] if share == largest[0] else -np.inf
        times = np.maximum(np.maximum.accumulate(turn._times[here]), first)
        turn._shares[here], turn._created[here] = share, times
        self._largest = share, times.item(-1)

    def _know_one(self, position: int) -> tuple[float, float]:
        turn = self._turn
        key = self._shares.of(self._waiting.asks[turn._at.item(position)]), turn._times.item(position)
        self._largest = max(self._largest, key)
        turn._shares[position], turn._created[position] = self._largest
        self._known = position + 1
        return self._largest


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
