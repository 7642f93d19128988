"""Kueue as a scheduling mode."""

from __future__ import annotations

from collections.abc import Sequence

from vkgateway.arbiter.snapshot import Pod, Pool, Quota
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.model.objects import Object
from vkgateway.modes.attempt import PodSet
from vkgateway.modes.kueue.queues import pool_objects, topology_levels
from vkgateway.modes.kueue.workloads import MAX_POD_SETS, count_pod_sets, pod_set_name, workload, workload_digest
from vkgateway.modes.mode import Request


class KueueMode:
    """Implementation of `SchedulingMode`."""

    max_pod_sets = MAX_POD_SETS

    def pod_sets(self, pods: Sequence[Pod]) -> list[PodSet]:
        """See `SchedulingMode`."""
        return count_pod_sets(pods)

    def pod_set_name(self, pod: Pod) -> str:
        """See `SchedulingMode`."""
        return pod_set_name(pod)

    def attempt_object(self, request: Request) -> Object:
        """See `SchedulingMode`."""
        return workload(request)

    def digest(self, request: Request) -> str:
        """See `SchedulingMode`."""
        return workload_digest(request)

    def levels(self, pool: Pool, spec: PoolSpec) -> tuple[str, ...]:
        """See `SchedulingMode`."""
        return topology_levels(pool, spec)

    def pool_objects(self, pool: Pool, spec: PoolSpec, quotas: Sequence[Quota]) -> list[Object]:
        """See `SchedulingMode`."""
        return pool_objects(pool, spec, quotas)
