"""Load of Kueue's scheduler performance test, and the waits of its workloads.

Numbers of https://github.com/kubernetes-sigs/kueue/tree/v0.17.0/test/performance/scheduler/configs/baseline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.timeline import now
from vkgateway.api.errors import UnavailableError
from vkgateway_platform.simulate.scenario import GPU, Job
from vkgateway_platform.simulate.traces.kueue import read_generator

COHORTS: Final = 5
QUEUES: Final = 6
"""Queues of a cohort."""
QUOTA: Final = 20
"""Nominal quota of a queue, in units."""
BORROWING: Final = 100
"""Borrowing limit of a queue, in units."""
_PER_QUEUE: Final = 500
LARGEST: Final = COHORTS * QUEUES * _PER_QUEUE
"""Workloads of the whole test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkClass:
    """Class of workloads: number in each queue, seconds between two of them, units, seconds of run time, priority."""

    name: str
    count: int
    interval: float
    units: int
    run: float
    priority: int


CLASSES: Final = (
    WorkClass(name="large", count=50, interval=1.2, units=20, run=1.0, priority=200),
    WorkClass(name="medium", count=100, interval=0.5, units=5, run=0.5, priority=100),
    WorkClass(name="small", count=350, interval=0.1, units=1, run=0.2, priority=50),
)
PUBLISHED_MAKESPAN: Final = 351.1
"""Seconds, the mean of five runs that Kueue's limits are derived from."""
PUBLISHED_WAITS: Final = {"large": 6.666, "medium": 76.768, "small": 215.468}
"""Mean seconds from creation to admission in these runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Workload: its queue, class, units, priority, seconds until its creation, and seconds of its run."""

    name: str
    queue: str
    kind: str
    units: int
    priority: int
    at: float
    run: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """Workloads in the order of their creation, and the cohort of each queue."""

    works: Sequence[Work]
    cohorts: Mapping[str, str]

    @property
    def series(self) -> Sequence[Sequence[Work]]:
        """Workloads of each queue and class, which are created one after the other."""
        found: dict[tuple[str, str], list[Work]] = {}
        for work in self.works:
            found.setdefault((work.queue, work.kind), []).append(work)
        return list(found.values())

    @property
    def ideal(self) -> float:
        """Seconds in which the works would end if no unit was ever idle."""
        used = sum(work.units * work.run for work in self.works)
        return used / (QUOTA * len(self.cohorts))


def make_load(workloads: int, *, cohorts: int = COHORTS) -> QueueLoad:
    """Return a load of about this many workloads in all, with the classes in the proportion of Kueue's test."""
    share = workloads / (cohorts * QUEUES * _PER_QUEUE)
    _, quotas, jobs = read_generator(_generator(share, cohorts))
    works = sorted(map(_work_of, jobs), key=lambda work: (work.at, work.queue, work.name))
    return QueueLoad(works=works, cohorts={quota.tenant: quota.pool[1] for quota in quotas})


def _generator(share: float, cohorts: int) -> dict[str, Any]:
    """Return the document that Kueue's load generator would read, with this share of the workloads."""
    sets = [
        {
            "count": max(1, round(each.count * share)),
            "creationIntervalMs": 1000 * each.interval,
            "workloads": [
                {
                    "className": each.name,
                    "runtimeMs": 1000 * each.run,
                    "priority": each.priority,
                    "request": each.units,
                }
            ],
        }
        for each in CLASSES
    ]
    queues = {"className": "queue", "count": QUEUES, "nominalQuota": QUOTA, "borrowingLimit": BORROWING}
    return {"cohorts": [{"className": "cohort", "count": cohorts, "queuesSets": [queues | {"workloadsSets": sets}]}]}


def _work_of(job: Job) -> Work:
    _, number, kind = job.id.rsplit("/", 2)
    return Work(
        name=f"{kind}-{number}",
        queue=job.tenant,
        kind=kind,
        units=job.shapes[0].amount_of(GPU) // 1000,
        priority=job.priority,
        at=job.submitted,
        run=job.run,
    )


@dataclass(slots=True)
class WorkTimes:
    """Times of a workload in seconds of one clock. `admitted` is the last admission. None: it has not happened."""

    created: float
    admitted: float | None = None
    ended: float | None = None
    evictions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """Summary of a run: seconds until the last end (None if not all ended), and mean seconds to admission by class.

    As in Kueue's test, the wait of an evicted workload lasts until its last admission.
    """

    ended: int
    makespan: float | None
    waits: Mapping[str, float]
    evictions: int


class WorkLog:
    """Times of all workloads of a run."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works
        self._times: dict[Work, WorkTimes] = {}
        self._left = len(works)
        self._last = now()

    def mark_created(self, work: Work) -> None:
        """Record the request that creates the workload."""
        self._last = now()
        self._times[work] = WorkTimes(created=self._last)

    def mark_admitted(self, work: Work, when: float) -> None:
        """Record an admission. It replaces an earlier one."""
        self._times[work].admitted = when
        self._last = when

    def mark_evicted(self, work: Work) -> None:
        """Record an eviction."""
        self._times[work].evictions += 1

    def mark_ended(self, work: Work, when: float) -> None:
        """Record the end of the run. Only the first one counts."""
        times = self._times[work]
        if times.ended is None:
            times.ended = when
            self._left -= 1

    @property
    def started(self) -> float:
        """Time of the first request; 0 if there was none."""
        return min((times.created for times in self._times.values()), default=0.0)

    @property
    def left(self) -> int:
        """Number of workloads that have not ended."""
        return self._left

    async def wait_ended(self, *, limit: float, stall: float) -> None:
        """Wait until all workloads have ended, at most `limit` seconds.

        Raises:
            UnavailableError: no workload was admitted for `stall` seconds.
        """
        deadline = now() + limit
        while self._left and now() < deadline:
            if now() - self._last > stall:
                raise UnavailableError(f"{self._left} workloads wait, and none was admitted for {stall:.0f} s")
            await asyncio.sleep(0.05)

    def summarize(self) -> QueueSummary:
        """Return the summary."""
        known = [times.ended for times in self._times.values() if times.ended is not None]
        return QueueSummary(
            ended=len(known),
            makespan=max(known) - self.started if known and not self._left else None,
            waits={each.name: _mean(self._class_waits(each.name)) for each in CLASSES},
            evictions=sum(times.evictions for times in self._times.values()),
        )

    def _class_waits(self, kind: str) -> list[float]:
        return [
            times.admitted - times.created
            for work, times in self._times.items()
            if work.kind == kind and times.admitted is not None
        ]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
