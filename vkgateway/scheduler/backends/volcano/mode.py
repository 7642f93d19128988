"""Volcano as a scheduling mode."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from vkgateway.api.objects import Object
from vkgateway.api.scheduling import SchedulerMarks
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.attempt import Attempt
from vkgateway.scheduler.backends.attempt_objects import spec_digest
from vkgateway.scheduler.backends.gang_split import GangSplitter
from vkgateway.scheduler.backends.mode import ModeInput, Request
from vkgateway.scheduler.backends.volcano.names import GROUP_ANNOTATION, priority_class_name
from vkgateway.scheduler.backends.volcano.pod_groups import pod_group, pod_group_spec
from vkgateway.scheduler.backends.volcano.priorities import volcano_priority
from vkgateway.scheduler.backends.volcano.queues import pool_objects
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
