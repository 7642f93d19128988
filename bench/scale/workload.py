"""Synthetic trace in seconds of the platform, which begins with a full cluster."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from bench.platform import GPU_POOL, GPUS_PER_NODE
from bench.scale.settings import Scale
from vkgateway.api.types import DEFAULT_COMPUTE_CLUSTER
from vkgateway.scheduler.core.snapshot import LOW, PoolKey
from vkgateway_platform.simulate.scenario import Job
from vkgateway_platform.simulate.traces.adaptation import select_window
from vkgateway_platform.simulate.traces.synthetic import WorkloadParameters, generate_jobs

POOL_KEY: Final[PoolKey] = (DEFAULT_COMPUTE_CLUSTER, GPU_POOL)
NAMESPACE: Final = "default"
_LEAD: Final = 4 * 3600.0
"""Seconds of the trace before the played part. Gangs that run at its start come from there."""
_LONGEST: Final = _LEAD
_LOW: Final = 0.4
_MEDIAN: Final = 40 * 60.0
_SPREAD: Final = 1.0
"""Standard deviation of the logarithm of run times, whose median is `_MEDIAN` seconds.

There are few short gangs, since each pod costs the same CPU, however long it runs.
"""


def tenant_names(count: int) -> list[str]:
    """Return the names of the tenants."""
    return [f"scale-{number:02d}" for number in range(count)]


def make_workload(scale: Scale) -> tuple[tuple[Job, ...], float]:
    """Return the jobs of a run in the order of their submission, and the end of its warm-up.

    Gangs of the trace that ran at its start are submitted during the warm-up, evenly by pods. They run until the
    warm-up ends plus the rest of their run. Ids are those of the gateway: tenant, namespace and name of the Job.
    """
    length = scale.duration * scale.speed
    work = WorkloadParameters(
        gpus=scale.gpus,
        tenants=tuple(tenant_names(scale.tenants)),
        load=scale.load,
        duration=_LEAD + length,
        sizes=scale.sizes,
        per_pod=GPUS_PER_NODE,
        low=_LOW,
        log_run=math.log(_MEDIAN),
        spread=_SPREAD,
        longest=_LONGEST,
    )
    drawn = sorted(generate_jobs(work, random.Random(scale.seed)), key=lambda job: job.submitted)
    played = [_speed_up(job, scale.speed) for job in select_window(drawn, _LEAD, length)]
    before = [job for job in played if not job.submitted]
    warm_up = sum(len(job.shapes) for job in before) / scale.ramp
    jobs = [
        *_ramp_up(before, scale.ramp, warm_up),
        *(replace(job, submitted=job.submitted + warm_up) for job in played[len(before) :]),
    ]
    return tuple(_rename_job(job, number) for number, job in enumerate(jobs)), warm_up


def _speed_up(job: Job, speed: float) -> Job:
    run = float(max(1, round(job.run / speed)))
    return replace(job, submitted=job.submitted / speed, run=run, pools=(POOL_KEY,))


def _ramp_up(jobs: Sequence[Job], pods_per_second: float, end: float) -> Iterator[Job]:
    at = 0.0
    for job in jobs:
        yield replace(job, submitted=at, run=job.run + round(end - at))
        at += len(job.shapes) / pods_per_second


def _rename_job(job: Job, number: int) -> Job:
    """Return the job under a name whose last part is a number, so that gangs of one kind differ in nothing else."""
    band, gpus = "low" if job.band is LOW else "own", job_gpus(job)
    kind = f"{band}-g{gpus}"
    return replace(job, id=f"{job.tenant}/{NAMESPACE}/{kind}-{number:04d}", kind=f"{job.tenant}/{kind}")


def job_gpus(job: Job) -> int:
    """Return the GPUs that all pods of a job request."""
    return sum(amount for shape in job.shapes for _, amount in shape.requests) // 1000
