"""Reader of the generator file of Kueue's scheduler performance test: cohorts of queues with their workloads.

https://github.com/kubernetes-sigs/kueue/tree/main/test/performance/scheduler. A queue is a tenant, and a cohort
is a pool of one node, as large as the cohort's quotas: Kueue counts sums there. A unit of quota is a GPU here.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from vkgateway.scheduler.core.snapshot import Node, Pool, PoolKey, Quota, Shape
from vkgateway_platform.simulate.scenario import GPU, Job
from vkgateway_platform.simulate.traces.errors import TraceError, parse_number


class _Workload(msgspec.Struct, rename="camel"):
    class_name: str
    runtime_ms: float
    request: int | str
    priority: int = 0
    pod_count: int = 1


class _WorkloadsSet(msgspec.Struct, rename="camel"):
    count: int
    creation_interval_ms: float
    workloads: list[_Workload]


class _QueuesSet(msgspec.Struct, rename="camel"):
    class_name: str
    count: int
    nominal_quota: int | str
    workloads_sets: list[_WorkloadsSet]
    borrowing_limit: int | str | None = None


class _CohortSet(msgspec.Struct, rename="camel"):
    class_name: str
    count: int
    queues_sets: list[_QueuesSet]


class _Config(msgspec.Struct):
    cohorts: list[_CohortSet]


def read_generator(document: object) -> tuple[tuple[Pool, ...], tuple[Quota, ...], tuple[Job, ...]]:
    """Return pools, quotas and jobs of a generator's document.

    Raises:
        TraceError: it is not such a document.
    """
    try:
        if isinstance(document, list):
            document = {"cohorts": document}
        config = msgspec.convert(document, _Config)
    except msgspec.ValidationError as error:
        raise TraceError(f"this is not a generator of Kueue's performance test: {error}") from error
    pools: list[Pool] = []
    quotas: list[Quota] = []
    jobs: list[Job] = []
    for cohorts in config.cohorts:
        for index in range(cohorts.count):
            name = f"{cohorts.class_name}-{index}"
            mine = list(_queue_quotas(cohorts, name))
            size = sum(quota.guarantee[GPU] for quota in mine)
            pools.append(Pool(key=("kueue", name), nodes=(Node(name=name, allocatable={GPU: size}),), governed=(GPU,)))
            quotas += mine
            jobs += _workload_jobs(cohorts, name)
    return tuple(pools), tuple(quotas), tuple(jobs)


def _queue_quotas(cohorts: _CohortSet, cohort: str) -> Iterator[Quota]:
    for queues in cohorts.queues_sets:
        nominal = _parse_units(queues.nominal_quota, "nominalQuota", cohort)
        borrowing = queues.borrowing_limit
        limit = (
            {GPU: nominal + _parse_units(borrowing, "borrowingLimit", cohort)} if borrowing not in (None, "") else {}
        )
        for number_ in range(queues.count):
            tenant = f"{cohort}-{queues.class_name}-{number_}"
            yield Quota(tenant=tenant, pool=("kueue", cohort), guarantee={GPU: nominal}, limit=limit)


def _workload_jobs(cohorts: _CohortSet, cohort: str) -> Iterator[Job]:
    pool: PoolKey = ("kueue", cohort)
    for queues in cohorts.queues_sets:
        for number_ in range(queues.count):
            tenant = f"{cohort}-{queues.class_name}-{number_}"
            for each in queues.workloads_sets:
                for index in range(each.count):
                    for workload in each.workloads:
                        yield _make_job(workload, index * each.creation_interval_ms, f"{tenant}/{index}", tenant, pool)


def _make_job(workload: _Workload, at: float, name: str, tenant: str, pool: PoolKey) -> Job:
    shape = Shape.from_requests({GPU: _parse_units(workload.request, "request", name)})
    return Job(
        id=f"{name}/{workload.class_name}",
        tenant=tenant,
        shapes=(shape,) * max(1, workload.pod_count),
        submitted=at / 1000,
        run=workload.runtime_ms / 1000,
        pools=(pool,),
        priority=workload.priority,
        kind=f"{tenant}/{workload.class_name}",
    )


def _parse_units(amount: object, field: str, where: str) -> int:
    return int(parse_number(amount, field=field, where=where) * 1000)
