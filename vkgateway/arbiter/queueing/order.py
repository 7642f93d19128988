"""Who is next: the tenant with the lowest share over its guarantee, and within it band, priority and capped age."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

import numpy as np

from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import Band, Gang, Policy


def priority_key(gang: Gang) -> tuple[int, float, str]:
    """The order of a tenant's guaranteed gangs: priority, then age."""
    return -gang.priority, gang.created, gang.id


def is_ranked_after(other: Gang, gang: Gang) -> bool:
    """Whether it was created after the gang, and is no better."""
    if other.created <= gang.created:
        return False
    return (other.band is Band.LOW, -other.priority) >= (gang.band is Band.LOW, -gang.priority)


def queue_order(
    asks: Iterable[PendingGang], share: Callable[[PendingGang], float], policy: Policy, now: float
) -> Iterator[PendingGang]:
    """All of them, in the order of who is next (dominant resource fairness).

    `share` is asked again for a tenant each time after one of its gangs had its turn: whoever got something is later.
    Between equal shares the gang that was created first has its turn. A tenant's own gangs: its guaranteed band first,
    then by priority that grows with age, then by age; equals in the order in which they are given. `turn.QueueOrder` is
    the same for very many.
    """
    queues = _tenant_queues(asks, policy, now)
    heap = [(share(queue[-1]), queue[-1].gang.created, tenant) for tenant, queue in queues.items()]
    heapify(heap)
    while heap:
        _, _, tenant = heappop(heap)
        queue, other = queues[tenant], heap[0] if heap else None
        while True:
            yield queue.pop()
            if not queue:
                break
            mine = share(queue[-1]), queue[-1].gang.created, tenant
            if other is not None and other < mine:
                heappush(heap, mine)
                break


def _tenant_queues(asks: Iterable[PendingGang], policy: Policy, now: float) -> dict[str, list[PendingGang]]:
    """By tenant, its next gang last."""
    found = list(asks)
    gangs = [ask.gang for ask in found]
    numbers: dict[str, int] = {}
    tenant = np.array([numbers.setdefault(gang.tenant, len(numbers)) for gang in gangs], dtype=np.int64)
    low = np.array([gang.band is not Band.GUARANTEED for gang in gangs], dtype=bool)
    priority = np.array([gang.priority for gang in gangs], dtype=np.float64)
    created = np.array([gang.created for gang in gangs], dtype=np.float64)
    age = np.minimum(np.maximum(0.0, now - created), policy.age_cap)
    # Stable: what is equal in all of these stays in the order in which it was given.
    order = np.lexsort((created, -(priority + age * policy.age_weight), low, tenant))
    queues: dict[str, list[PendingGang]] = {}
    for index in order[::-1].tolist():
        ask = found[index]
        queue = queues.get(ask.tenant)
        if queue is None:
            queue = queues[ask.tenant] = []
        queue.append(ask)
    return queues
