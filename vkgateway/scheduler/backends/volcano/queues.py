"""Volcano's queues of a pool: one for each tenant. `deserved` is the guarantee, `capability` the limit.

A queue has no `guarantee`, which Volcano never lends. What a queue uses beyond `deserved` can be reclaimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkgateway.api.names import POOL_LABEL, TENANT_LABEL
from vkgateway.api.objects import Object
from vkgateway.api.scheduling import queue_name
from vkgateway.api.types import VOLCANO
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.amounts import pool_capacity, render_amount
from vkgateway.scheduler.backends.names import MODE_LABEL
from vkgateway.scheduler.backends.volcano.names import API_VERSION, ROOT_QUEUE
from vkgateway.scheduler.backends.volcano.priorities import priority_classes
from vkgateway.scheduler.core.snapshot import Gang, Pool, Quota


def pool_objects(pool: Pool, spec: PoolSpec, quotas: Sequence[Quota], gangs: Sequence[Gang]) -> list[Object]:
    """Return the priority classes of a pool's gangs and, unless the administrator manages them, the tenants' queues."""
    classes = priority_classes(gangs)
    if not spec.scheduling.manage_queues:
        return classes
    capacity = pool_capacity(pool, spec)
    return [*classes, *(_queue(spec, quota, capacity) for quota in quotas)]


def _queue(spec: PoolSpec, quota: Quota, capacity: Mapping[str, int]) -> Object:
    # Volcano counts the whole cluster: a queue without a limit could otherwise ask for the nodes of other pools.
    limit = {name: min(amount, quota.limit.get(name, amount)) for name, amount in capacity.items()}
    # No pod starts beyond the guarantee while a budget is used up. Volcano evicts none for a lower capability.
    limit |= {name: min(limit[name], max(0, quota.guarantee.get(name, 0))) for name in quota.stopped if name in limit}
    # Its webhook refuses more than the capability.
    deserved = {name: min(amount, limit[name]) for name, amount in quota.guarantee.items() if name in limit}
    labels = {MODE_LABEL: VOLCANO, POOL_LABEL: spec.name, TENANT_LABEL: quota.tenant}
    return {
        "apiVersion": API_VERSION,
        "kind": "Queue",
        "metadata": {
            "name": queue_name(spec.scheduling, tenant=quota.tenant, pool=spec.name),
            "labels": labels,
        },
        "spec": {
            "parent": ROOT_QUEUE,
            "weight": 1,
            "reclaimable": True,
            "deserved": {name: render_amount(amount) for name, amount in sorted(deserved.items()) if amount > 0},
            "capability": {name: render_amount(amount) for name, amount in sorted(limit.items())},
        },
    }
