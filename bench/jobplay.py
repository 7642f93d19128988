"""Playing training jobs on hollow nodes: they work only while all their pods run, whoever brings these to nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from bench.flows import always
from bench.jobs import Job, JobTimes
from bench.load import Place, delete_all
from bench.platform import Platform
from bench.pods import PodKind, running_status
from bench.timeline import Key, Timeline, now
from bench.watching import Where, watching
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS
from vkgateway.model import names, times

_Awaited = Literal["ready", "ended"]
_POLL: Final = 0.02


async def _nothing(_place: Place, _job: Job) -> None:
    """Most systems need nothing said of a job beside its pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Venue:
    """Where jobs go, by turns over `places`: `kind` makes a job's pods for a run, `prepare` comes before them, `finish`
    when the job has ended or the run is broken off.

    `where` names the place of a compute pod. `tenants` is whether the places are tenants, whose pods run in namespaces
    of the compute cluster that are made for them; otherwise they are such namespaces themselves.
    """

    platform: Platform
    places: Sequence[Place]
    where: Where
    kind: Callable[[Job, str], PodKind]
    prepare: Callable[[Place, Job], Awaitable[None]] = _nothing
    finish: Callable[[Place, Job], Awaitable[None]] = _nothing
    tenants: bool = False


class Play:
    """One run of some jobs in a venue: each works for `work` seconds; after `limit` seconds the run is broken off."""

    def __init__(self, venue: Venue, jobs: Sequence[Job], *, run: str, work: float, limit: float) -> None:
        self._venue = venue
        self._jobs = [(job, venue.places[index % len(venue.places)]) for index, job in enumerate(jobs)]
        self._run = run
        self._work = work
        self._limit = limit
        self._above = Timeline()
        self._below = Timeline() if venue.tenants else self._above
        self._deadline = 0.0

    async def run(self) -> tuple[list[JobTimes], float]:
        """What happened to each job, and the time until which it was looked at; their pods are gone again."""
        compute = (self._venue.platform.compute, self._venue.where)
        async with watching([compute], run=self._run, timeline=self._below):
            if not self._venue.tenants:
                return await self._watched()
            above = [(place.client, always(place.name)) for place in self._venue.places]
            async with watching(above, run=self._run, timeline=self._above):
                return await self._watched()

    async def _watched(self) -> tuple[list[JobTimes], float]:
        self._deadline = now() + self._limit
        async with asyncio.TaskGroup() as group:
            for job, place in self._jobs:
                group.create_task(self._job(job, place))
        until = now()
        times = [self._times(job, place) for job, place in self._jobs]
        keys = [key for job, place in self._jobs for key in _keys(job, place)]
        await delete_all(self._venue.places, keys)
        await self._above.until("gone", keys)
        await self._below.until("gone", [key for key in keys if key in self._below.of("seen")])
        return times, until

    async def _job(self, job: Job, place: Place) -> None:
        await self._venue.prepare(place, job)
        await self._work_through(job, place)
        await self._venue.finish(place, job)

    async def _work_through(self, job: Job, place: Place) -> None:
        """As a job's controller and the job itself: all pods, one after the other; work; the end."""
        keys = _keys(job, place)
        kind = self._venue.kind(job, self._run)
        for key in keys:
            self._above.mark("sent", key)
            await place.create(key[1], kind)
        if not await self._all(self._below, "ready", keys):
            return
        await asyncio.sleep(max(0.0, max(self._below.of("ready")[key] for key in keys) + self._work - now()))
        namespace = place.namespace
        if self._venue.tenants:
            namespace = names.compute_namespace(place.name, place.namespace)
        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(_end(self._venue.platform.compute, namespace, key[1]))
        await self._all(self._above, "ended", keys)

    async def _all(self, timeline: Timeline, what: _Awaited, keys: Sequence[Key]) -> bool:
        """Wait until all pods have the mark; False where the run is over before that."""
        while not timeline.of(what).keys() >= set(keys):
            if now() > self._deadline:
                return False
            await asyncio.sleep(_POLL)
        return True

    def _times(self, job: Job, place: Place) -> JobTimes:
        keys = _keys(job, place)
        bound = self._below.of("bound")
        return JobTimes(
            created=min(self._above.of("sent")[key] for key in keys),
            bound=tuple(bound[key] for key in keys if key in bound),
            whole=_last(self._below, "ready", keys),
            ended=_last(self._below, "ended", keys),
            told=_last(self._above, "ended", keys),
        )


def _keys(job: Job, place: Place) -> list[Key]:
    return [(place.name, pod) for pod in job.pods]


def _last(timeline: Timeline, what: _Awaited, keys: Sequence[Key]) -> float | None:
    """When the last of the pods got the mark; None unless all have it."""
    marks = timeline.of(what)
    return max(marks[key] for key in keys) if all(key in marks for key in keys) else None


async def _end(compute: Client, namespace: str, pod: str) -> None:
    """As its node would: the pod's program has done its work."""
    status = running_status(times.render_time(datetime.now(UTC)), ready=False) | {"phase": "Succeeded"}
    status["containerStatuses"][0]["state"]["terminated"] |= {"exitCode": 0, "reason": "Completed"}
    await compute.patch(PODS, pod, {"status": status}, namespace=namespace, subresource="status", timeout=120)
