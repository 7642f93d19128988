"""Runs of training jobs on hollow nodes. A job works only while all its pods run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from bench.flows import constant_place
from bench.jobs import Job, JobTimes
from bench.load import Place, delete_all
from bench.platform import Platform
from bench.pods import PodKind, running_status
from bench.timeline import Key, Timeline, now
from bench.watching import PlaceOf, watch_pods
from vkgateway.api import names, times
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS

_Awaited = Literal["ready", "ended"]
_POLL: Final = 0.02


async def _do_nothing(_place: Place, _job: Job) -> None:
    """Do nothing: most systems need only a job's pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVenue:
    """System that runs jobs, distributed over `places`.

    `kind` returns the pods of a job for a run. `prepare` is called before they are created, and `finish` when the job
    has ended or the run was aborted. `place_of` returns the place of a compute pod. With `tenants`, the places are
    tenants, whose pods run in their compute namespaces. Without it, they are namespaces of the compute cluster.
    """

    platform: Platform
    places: Sequence[Place]
    place_of: PlaceOf
    kind: Callable[[Job, str], PodKind]
    prepare: Callable[[Place, Job], Awaitable[None]] = _do_nothing
    finish: Callable[[Place, Job], Awaitable[None]] = _do_nothing
    tenants: bool = False


class JobRun:
    """One run of jobs in a venue. Each job works for `work` seconds, and the run is aborted after `limit` seconds."""

    def __init__(self, venue: JobVenue, jobs: Sequence[Job], *, run: str, work: float, limit: float) -> None:
        self._venue = venue
        self._jobs = [(job, venue.places[index % len(venue.places)]) for index, job in enumerate(jobs)]
        self._run = run
        self._work = work
        self._limit = limit
        self._tenant_timeline = Timeline()
        self._compute_timeline = Timeline() if venue.tenants else self._tenant_timeline
        self._deadline = 0.0

    async def run(self) -> tuple[list[JobTimes], float]:
        """Run the jobs, and return the times of each job and the end of the observation. All pods are deleted."""
        compute = (self._venue.platform.compute, self._venue.place_of)
        async with watch_pods([compute], run=self._run, timeline=self._compute_timeline):
            if not self._venue.tenants:
                return await self._run_jobs()
            tenant_watches = [(place.client, constant_place(place.name)) for place in self._venue.places]
            async with watch_pods(tenant_watches, run=self._run, timeline=self._tenant_timeline):
                return await self._run_jobs()

    async def _run_jobs(self) -> tuple[list[JobTimes], float]:
        self._deadline = now() + self._limit
        async with asyncio.TaskGroup() as group:
            for job, place in self._jobs:
                group.create_task(self._run_job(job, place))
        until = now()
        times = [self._job_times(job, place) for job, place in self._jobs]
        keys = [key for job, place in self._jobs for key in _pod_keys(job, place)]
        await delete_all(self._venue.places, keys)
        await self._tenant_timeline.wait_for("gone", keys)
        await self._compute_timeline.wait_for(
            "gone", [key for key in keys if key in self._compute_timeline.times_of("seen")]
        )
        return times, until

    async def _run_job(self, job: Job, place: Place) -> None:
        await self._venue.prepare(place, job)
        await self._work_job(job, place)
        await self._venue.finish(place, job)

    async def _work_job(self, job: Job, place: Place) -> None:
        """Act as the job's controller and program: create all pods one after the other, work, and end."""
        keys = _pod_keys(job, place)
        kind = self._venue.kind(job, self._run)
        for key in keys:
            self._tenant_timeline.mark("sent", key)
            await place.create_pod(key[1], kind)
        if not await self._wait_all(self._compute_timeline, "ready", keys):
            return
        await asyncio.sleep(
            max(0.0, max(self._compute_timeline.times_of("ready")[key] for key in keys) + self._work - now())
        )
        namespace = place.namespace
        if self._venue.tenants:
            namespace = names.compute_namespace(place.name, place.namespace)
        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(complete_pod(self._venue.platform.compute, namespace, key[1]))
        await self._wait_all(self._tenant_timeline, "ended", keys)

    async def _wait_all(self, timeline: Timeline, what: _Awaited, keys: Sequence[Key]) -> bool:
        """Wait until all pods have the mark. Return False if the run ends before."""
        while not timeline.times_of(what).keys() >= set(keys):
            if now() > self._deadline:
                return False
            await asyncio.sleep(_POLL)
        return True

    def _job_times(self, job: Job, place: Place) -> JobTimes:
        keys = _pod_keys(job, place)
        bound = self._compute_timeline.times_of("bound")
        return JobTimes(
            created=min(self._tenant_timeline.times_of("sent")[key] for key in keys),
            bound=tuple(bound[key] for key in keys if key in bound),
            whole=_last_mark(self._compute_timeline, "ready", keys),
            ended=_last_mark(self._compute_timeline, "ended", keys),
            reported=_last_mark(self._tenant_timeline, "ended", keys),
        )


def _pod_keys(job: Job, place: Place) -> list[Key]:
    return [(place.name, pod) for pod in job.pods]


def _last_mark(timeline: Timeline, what: _Awaited, keys: Sequence[Key]) -> float | None:
    """Return when the last of the pods got the mark, or None unless all have it."""
    marks = timeline.times_of(what)
    return max(marks[key] for key in keys) if all(key in marks for key in keys) else None


async def complete_pod(compute: Client, namespace: str, pod: str) -> None:
    """Set the pod's status to Succeeded, as its node would."""
    status = running_status(times.render_time(datetime.now(UTC)), ready=False) | {"phase": "Succeeded"}
    status["containerStatuses"][0]["state"]["terminated"] |= {"exitCode": 0, "reason": "Completed"}
    await compute.patch(PODS, pod, {"status": status}, namespace=namespace, subresource="status", timeout=120)
