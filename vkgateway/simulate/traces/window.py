"""A part of a trace: jobs of some time, and those that ran when it began."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vkgateway.simulate.scenario import Job


def window(jobs: Iterable[Job], start: float, duration: float | None) -> tuple[Job, ...]:
    """Return the jobs of the window, with times relative to its start.

    A job that was submitted earlier, and would still run if it had not waited, is submitted at the start with the rest
    of its run. `duration` None: until the end of the trace.
    """
    found = []
    for job in jobs:
        at, rest = job.submitted - start, job.run
        if at < 0:
            at, rest = 0.0, job.run + at
        if rest > 0 and (duration is None or at < duration):
            found.append(replace(job, submitted=at, run=rest))
    return tuple(found)
