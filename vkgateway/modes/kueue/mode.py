"""Kueue as a scheduling mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkgateway.arbiter.snapshot import Gang, Pod, Pool, Quota
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.model.objects import Object
from vkgateway.model.scheduling import SchedulerMarks
from vkgateway.modes.attempt import Attempt
from vkgateway.modes.attempt_objects import spec_digest
from vkgateway.modes.gang_split import GangSplitter
from vkgateway.modes.kueue.names import TOPOLOGY_ANNOTATION
from vkgateway.modes.kueue.queues import pool_objects, topology_levels
from vkgateway.modes.kueue.workloads import MAX_POD_SETS, workload, workload_spec
from vkgateway.modes.mode import ModeInput, Request


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
