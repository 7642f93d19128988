"""Training jobs that do nothing unless all their pods run, and what a run of several of them comes to."""

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
    """A job by its name."""

    name: str

    @property
    def pods(self) -> tuple[str, ...]:
        """The names of its pods."""
        return tuple(f"{self.name}-{role}" for role in ROLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimes:
    """What happened to a job, in seconds of one clock; None where it has not happened.

    `created` is the first request for one of its pods, `bound` when each pod that has got a node got it, `whole` when
    all ran, `ended` when the last of them ended on its node, `told` when its user could read that.
    """

    created: float
    bound: tuple[float, ...] = ()
    whole: float | None = None
    ended: float | None = None
    told: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a run came to. `makespan` in seconds from the first request to the last job's end as its user reads it, None
    where some did not end; `held` and `idle` in GPU-seconds."""

    completed: int
    makespan: float | None
    held: float
    idle: float


def tally(jobs: Sequence[JobTimes], *, fit: int, until: float) -> Tally:
    """Sum up a run that was looked at `until` then, of jobs of which `fit` have room at a time."""
    told = [job.told for job in jobs if job.told is not None]
    all_told = len(told) == len(jobs)
    return Tally(
        completed=len(told),
        makespan=max(told) - min(job.created for job in jobs) if all_told else None,
        held=held(jobs, until=until),
        idle=idle(jobs, fit=fit, until=until),
    )


def held(jobs: Sequence[JobTimes], *, until: float) -> float:
    """GPU-seconds of pods that had a node while their job could not run, for want of the others."""
    return GPUS_PER_POD * sum(_before(job.whole, until) - bound for job in jobs for bound in job.bound if bound < until)


def idle(jobs: Sequence[JobTimes], *, fit: int, until: float) -> float:
    """GPU-seconds of room for whole jobs in which none ran, though one was there that had not run yet."""
    moments = sorted({until, *(moment for job in jobs for moment in _moments(job) if moment < until)})
    total = 0.0
    for start, end in pairwise(moments):
        there = sum(job.created <= start < _before(job.ended, until) for job in jobs)
        running = sum(_before(job.whole, until) <= start < _before(job.ended, until) for job in jobs)
        total += (min(fit, there) - running) * (end - start)
    return GPUS_PER_JOB * total


def _moments(job: JobTimes) -> list[float]:
    return [moment for moment in (job.created, job.whole, job.ended) if moment is not None]


def _before(moment: float | None, until: float) -> float:
    return until if moment is None else min(moment, until)
