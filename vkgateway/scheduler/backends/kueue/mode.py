"""Kueue as a scheduling mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkgateway.api.objects import Object
from vkgateway.api.scheduling import SchedulerMarks
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.attempt import Attempt
from vkgateway.scheduler.backends.attempt_objects import spec_digest
from vkgateway.scheduler.backends.gang_split import GangSplitter
from vkgateway.scheduler.backends.kueue.names import TOPOLOGY_ANNOTATION
from vkgateway.scheduler.backends.kueue.queues import pool_objects, topology_levels
from vkgateway.scheduler.backends.kueue.workloads import MAX_POD_SETS, workload, workload_spec
from vkgateway.scheduler.backends.mode import ModeInput, Request
from vkgateway.scheduler.core.snapshot import Gang, Pod, Pool, Quota


class KueueMode:
    """Implementation of `SchedulingMode`."""

    max_pod_sets = MAX_POD_SETS
    retry_seconds = 0.0
    takes_slots_back = True

    def marks(self, _request: Request, _pod: Pod) -> SchedulerMarks:
        """See `SchedulingMode`. Without the annotation, Kueue would count each pod twice."""
        return SchedulerMarks(annotations={TOPOLOGY_ANNOTATION: "true"})

    def implied_attempts(self, _given: ModeInput, _splitter: GangSplitter) -> Mapping[str, Attempt]:
        """See `SchedulingMode`."""
        return {}

    def attempt_object(self, request: Request) -> Object:
        """See `SchedulingMode`."""
        return workload(request)

    def digest(self, request: Request) -> str:
        """See `SchedulingMode`."""
        return spec_digest(workload_spec(request))

    def levels(self, pool: Pool, spec: PoolSpec) -> tuple[str, ...]:
        """See `SchedulingMode`."""
        return topology_levels(pool, spec)

    def pool_objects(self, pool: Pool, spec: PoolSpec, quotas: Sequence[Quota], _gangs: Sequence[Gang]) -> list[Object]:
        """See `SchedulingMode`."""
        return pool_objects(pool, spec, quotas)
