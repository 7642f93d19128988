"""Training jobs that make progress only while all their pods run, and the summary of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

ROLES: Final = ("ps-0", "ps-1", "worker-0", "worker-1", "worker-2", "worker-3")
"""Two parameter servers and four workers."""
GPUS_PER_POD: Final = 8
GPUS_PER_JOB: Final = GPUS_PER_POD * len(ROLES)


@dataclass(frozen=True, slots=True)
class Job:
    """Job with its name."""

    name: str

    @property
    def pods(self) -> tuple[str, ...]:
        """Names of the job's pods."""
        return tuple(f"{self.name}-{role}" for role in ROLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimes:
    """Times of a job in seconds of one clock.

    None: it has not happened.

    `created` is the first request for one of its pods. `bound` holds when each pod got a node. `whole` is when all pods
    ran, `ended` when the last of them ended on its node, and `reported` when the job's user could see that.
    """

    created: float
    bound: tuple[float, ...] = ()
    whole: float | None = None
    ended: float | None = None
    reported: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Summary of a run.

    `makespan` is in seconds from the first request to the last job's end as shown to its user, None if some jobs did
    not end. `held` and `idle` are in GPU-seconds.
    """

    completed: int
    makespan: float | None
    held: float
    idle: float


def summarize_run(jobs: Sequence[JobTimes], *, fit: int, until: float) -> RunSummary:
    """Return the summary of a run observed until `until`, with capacity for `fit` jobs at a time."""
    reported_times = [job.reported for job in jobs if job.reported is not None]
    all_reported = len(reported_times) == len(jobs)
    return RunSummary(
        completed=len(reported_times),
        makespan=max(reported_times) - min(job.created for job in jobs) if all_reported else None,
        held=blocked_seconds(jobs, until=until),
        idle=idle_seconds(jobs, fit=fit, until=until),
    )


def blocked_seconds(jobs: Sequence[JobTimes], *, until: float) -> float:
    """Return the GPU-seconds of pods that had a node while their job waited for other pods."""
    return GPUS_PER_POD * sum(
        _happened_before(job.whole, until) - bound for job in jobs for bound in job.bound if bound < until
    )


def idle_seconds(jobs: Sequence[JobTimes], *, fit: int, until: float) -> float:
    """Return the GPU-seconds of unused capacity for whole jobs while a job waited for its first start."""
    moments = sorted({until, *(moment for job in jobs for moment in _event_times(job) if moment < until)})
    total = 0.0
    for start, end in pairwise(moments):
        there = sum(job.created <= start < _happened_before(job.ended, until) for job in jobs)
        running = sum(_happened_before(job.whole, until) <= start < _happened_before(job.ended, until) for job in jobs)
        total += (min(fit, there) - running) * (end - start)
    return GPUS_PER_JOB * total


def _event_times(job: JobTimes) -> list[float]:
    return [moment for moment in (job.created, job.whole, job.ended) if moment is not None]


def _happened_before(moment: float | None, until: float) -> float:
    return until if moment is None else min(moment, until)
