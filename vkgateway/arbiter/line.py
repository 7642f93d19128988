"""Who is next: the tenant with the lowest share over its guarantee, and within it band, priority and capped age."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

import numpy as np

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Band, Policy


def by_priority(ask: Ask) -> tuple[int, float, str]:
    """The order of a tenant's guaranteed gangs: priority, then age."""
    return -ask.gang.priority, ask.gang.created, ask.gang.id


def in_turn(asks: Iterable[Ask], share: Callable[[Ask], float], policy: Policy, now: float) -> Iterator[Ask]:
    """All of them, in the order of who is next (dominant resource fairness).

    `share` is asked again for a tenant each time after one of its gangs had its turn: whoever got something is later.
    Between equal shares the gang that was created first has its turn. A tenant's own gangs: its guaranteed band first,
    then by priority that grows with age, then by age.
    """
    queues = _queues(asks, policy, now)
    heap: list[tuple[float, float, str]] = []
    for queue in queues.values():
        heappush(heap, _key(queue[-1], share))
    while heap:
        _, _, tenant = heappop(heap)
        queue = queues[tenant]
        while True:
            yield queue.pop()
            if not queue:
                break
            key = _key(queue[-1], share)
            if heap and heap[0] < key:
                heappush(heap, key)
                break


def _queues(asks: Iterable[Ask], policy: Policy, now: float) -> dict[str, list[Ask]]:
    """By tenant, its next gang last."""
    found = sorted(asks, key=lambda ask: ask.gang.id)
    gangs = [ask.gang for ask in found]
    numbers: dict[str, int] = {}
    tenant = np.array([numbers.setdefault(gang.tenant, len(numbers)) for gang in gangs], dtype=np.int64)
    low = np.array([gang.band is not Band.GUARANTEED for gang in gangs], dtype=bool)
    priority = np.array([gang.priority for gang in gangs], dtype=np.float64)
    created = np.array([gang.created for gang in gangs], dtype=np.float64)
    age = np.minimum(np.maximum(0.0, now - created), policy.age_cap)
    # Stable: what is equal in all of these is in the order of names.
    order = np.lexsort((created, -(priority + age * policy.age_weight), low, tenant))
    queues: dict[str, list[Ask]] = {}
    for index in order[::-1].tolist():
        ask = found[index]
        queue = queues.get(ask.tenant)
        if queue is None:
            queue = queues[ask.tenant] = []
        queue.append(ask)
    return queues


def _key(ask: Ask, share: Callable[[Ask], float]) -> tuple[float, float, str]:
    return share(ask), ask.gang.created, ask.tenant
