"""A plain queue order, one gang after the other: what `QueueOrder` must agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

import numpy as np

from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Band, Policy


def queue_order(
    pending_gangs: Iterable[PendingGang], share: Callable[[PendingGang], float], policy: Policy, now: float
) -> Iterator[PendingGang]:
    """Yield all gangs by dominant resource fairness, with a look at each of them.

    `share` is read again after each gang of a tenant.
    """
    queues = _tenant_queues(pending_gangs, policy, now)
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


def _tenant_queues(pending_gangs: Iterable[PendingGang], policy: Policy, now: float) -> dict[str, list[PendingGang]]:
    """By tenant, its next gang last."""
    found = list(pending_gangs)
    gangs = [pending.gang for pending in found]
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
        pending = found[index]
        queue = queues.get(pending.tenant)
        if queue is None:
            queue = queues[pending.tenant] = []
        queue.append(pending)
    return queues
