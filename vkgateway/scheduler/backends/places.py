"""Places in the queue of another scheduler: the order in which it starts waiting gangs as capacity becomes free (pure).

Each tenant of a pool has a queue, ordered by priority, then by age. Of the first gangs of all queues, those that stay
within the guarantee of their tenant start before those that borrow. This is the order of Kueue:
https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vkgateway.api.requests import MilliResources
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.attempt import Attempt
from vkgateway.scheduler.backends.guarantee import nominal_guarantees
from vkgateway.scheduler.core.snapshot import PoolKey, Snapshot

QueueKey = tuple[str, PoolKey]
"""A tenant, and a pool."""
_Head = tuple[bool, int, float, str, QueueKey]
"""Whether the first attempt of a queue borrows, its order, and its queue."""


@dataclass(slots=True)
class QueueUsage:
    """Use of a tenant's guarantee in a pool, in thousandths. The scheduler counts the resources of `guarantee` only."""

    guarantee: MilliResources
    used: MilliResources = field(default_factory=dict)

    def borrows(self, requests: MilliResources) -> bool:
        """Return whether pods with these requests need more than what is left of the guarantee."""
        return any(
            name in self.guarantee and self.used.get(name, 0) + amount > self.guarantee[name]
            for name, amount in requests.items()
        )

    def count(self, requests: MilliResources) -> None:
        """Count pods that start."""
        for name, amount in requests.items():
            self.used[name] = self.used.get(name, 0) + amount


def queue_usages(snapshot: Snapshot, specs: Mapping[PoolKey, PoolSpec]) -> dict[QueueKey, QueueUsage]:
    """Return the use of the guarantees of all tenants; queues of administrators have no known guarantees."""
    usages: dict[QueueKey, QueueUsage] = {}
    for pool in snapshot.pools:
        spec, quotas = specs[pool.key], [quota for quota in snapshot.quotas if quota.pool == pool.key]
        if spec.scheduling.has_guarantees:
            nominal = nominal_guarantees(pool, spec, quotas)
            usages |= {(tenant, pool.key): QueueUsage(guarantee) for tenant, guarantee in nominal.items()}
    for gang in snapshot.gangs:
        for pod in gang.pods:
            if pod.pool is not None and (usage := usages.get((gang.tenant, pod.pool))) is not None:
                usage.count(dict(pod.shape.requests))
    return usages


def queue_places(
    pending: Iterable[tuple[Attempt, MilliResources]], usages: Mapping[QueueKey, QueueUsage]
) -> dict[str, int]:
    """Return the place of each pending attempt in its pool, from 1, given the sum of its requests.

    A gang with a lower place counts as started. What running gangs free when they end is not foreseen. Of attempts that
    were created in the same second, Kueue starts those of one tenant by UID, and those of other tenants in any order.
    """
    queues: dict[QueueKey, list[tuple[Attempt, MilliResources]]] = {}
    for attempt, requests in pending:
        queues.setdefault((attempt.tenant, attempt.pool), []).append((attempt, requests))
    by_pool: dict[PoolKey, list[QueueKey]] = {}
    for key, queue in queues.items():
        queue.sort(key=lambda each: _order(each[0]), reverse=True)
        by_pool.setdefault(key[1], []).append(key)
    return {
        name: place
        for keys in by_pool.values()
        for place, name in enumerate(_merged({key: queues[key] for key in keys}, usages), start=1)
    }


def _order(attempt: Attempt) -> tuple[int, float, str]:
    return -attempt.priority, attempt.created, attempt.uid


def _merged(
    queues: Mapping[QueueKey, list[tuple[Attempt, MilliResources]]], usages: Mapping[QueueKey, QueueUsage]
) -> Iterator[str]:
    """Yield the names of the attempts of a pool; each queue ends with its first attempt, and is emptied."""
    usages = {key: _copied(usages.get(key)) for key in queues}

    def head(key: QueueKey) -> _Head:
        attempt, requests = queues[key][-1]
        return usages[key].borrows(requests), *_order(attempt), key

    heads = [head(key) for key in queues]
    heapq.heapify(heads)
    while heads:
        key = heads[0][-1]
        attempt, requests = queues[key].pop()
        usages[key].count(requests)
        yield attempt.name
        if queues[key]:
            heapq.heapreplace(heads, head(key))
        else:
            heapq.heappop(heads)


def _copied(usage: QueueUsage | None) -> QueueUsage:
    return QueueUsage({}, {}) if usage is None else QueueUsage(usage.guarantee, dict(usage.used))
