"""Volcano as a scheduling mode."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from vkgateway.api.names import POOL_LABEL, TENANT_LABEL
from vkgateway.api.objects import Object
from vkgateway.api.scheduling import SchedulerMarks, queue_name
from vkgateway.api.types import VOLCANO
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.amounts import pool_capacity, render_amount
from vkgateway.scheduler.backends.attempt import Attempt
from vkgateway.scheduler.backends.attempt_objects import spec_digest
from vkgateway.scheduler.backends.gang_split import GangSplitter
from vkgateway.scheduler.backends.mode import ModeInput, Request
from vkgateway.scheduler.backends.names import MODE_LABEL
from vkgateway.scheduler.backends.volcano.names import API_VERSION, GROUP_ANNOTATION, ROOT_QUEUE, priority_class_name
from vkgateway.scheduler.backends.volcano.pod_groups import pod_group, pod_group_spec
from vkgateway.scheduler.backends.volcano.priorities import priority_classes, volcano_priority
from vkgateway.scheduler.core.snapshot import Gang, Pod, Pool, Quota


class VolcanoMode:
    """Implementation of `SchedulingMode`."""

    max_pod_sets = sys.maxsize
    retry_seconds = 10.0
    takes_slots_back = False

    def marks(self, request: Request, _pod: Pod) -> SchedulerMarks:
        """See `SchedulingMode`. Volcano gives no notice, and pods end within the grace that they were created with."""
        return SchedulerMarks(
            scheduler_name=request.spec.scheduling.scheduler_name or "volcano",
            priority_class=priority_class_name(volcano_priority(request.gang, is_surplus=request.is_surplus)),
            annotations={GROUP_ANNOTATION: request.name},
            grace=int(request.gang.grace),
        )

    def implied_attempts(self, _given: ModeInput, _splitter: GangSplitter) -> Mapping[str, Attempt]:
        """See `SchedulingMode`."""
        return {}

    def attempt_object(self, request: Request) -> Object:
        """See `SchedulingMode`."""
        return pod_group(request)

    def digest(self, request: Request) -> str:
        """See `SchedulingMode`."""
        return spec_digest(pod_group_spec(request))

    def levels(self, _pool: Pool, _spec: PoolSpec) -> tuple[str, ...]:
        """See `SchedulingMode`. Volcano does not preempt for gangs with a network topology."""
        return ()

    def pool_objects(self, pool: Pool, spec: PoolSpec, quotas: Sequence[Quota], gangs: Sequence[Gang]) -> list[Object]:
        """See `SchedulingMode`."""
        return pool_objects(pool, spec, quotas, gangs)


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
