"""Playback of a trace on a platform: Jobs are created in their tenants at their times, and all pods are watched."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from bench import flows, load
from bench.flows import POOL_LABEL, constant_place
from bench.load import Place
from bench.platform import GPU_POOL, Platform
from bench.pods import GPU, RUN_LABEL, PodKind
from bench.scale.lives import Life, gpu_seconds, job_lives
from bench.scale.manifests import RUN, job_manifest
from bench.scale.meters import MeterFigures, Meters
from bench.scale.settings import Scale
from bench.scale.workload import NAMESPACE, tenant_names
from bench.timeline import Timeline, now
from bench.watching import decode, watch_pods
from vkgateway.kube.resources import JOBS, NODES, PODS
from vkgateway.scheduler.core.snapshot import Pool
from vkgateway_platform.simulate.scenario import Job
from vkgateway_platform.simulate.traces.kubernetes import read_nodes

TAIL: Final = 15.0
"""Seconds after the last submission for which pods are watched, to see the effect of the last decisions."""
_STALL: Final = 120.0
"""Seconds without the end of any pod after which the remaining pods are abandoned."""
_POLL: Final = 1.0
_TIMEOUT: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformRun:
    """Figures of a run on the platform."""

    pool: Pool
    lives: Mapping[str, Life]
    metered: MeterFigures
    allocation: float
    """Mean share of GPUs with running pods after the warm-up."""
    late: Sequence[float]
    """Seconds by which each request for a Job was sent late, a measure of the load generator."""
    restarted: bool
    """The gateway's process is not the one at the start."""
    drained: float
    """Seconds from the deletion of all Jobs until the last of their pods was removed from the compute cluster."""
    left: Sequence[str]
    """Pods that still existed two minutes after the last removal."""


async def play_jobs(platform: Platform, scale: Scale, jobs: Sequence[Job], *, warm_up: float) -> PlatformRun:
    """Create the tenants, play the jobs, and delete the tenants."""
    await platform.start_gateway(notice_seconds=scale.notice, age_cap_seconds=scale.age_cap)
    places = await _create_tenants(platform, scale)
    pool = await _read_pool(platform)
    pid = await platform.gateway_pid()
    meters = Meters(platform)
    timeline = Timeline()
    watches = [(place.client, constant_place(place.name)) for place in places]
    async with watch_pods(watches, run=RUN, timeline=timeline):
        origin = now()
        late, metered = await _submit_jobs(platform, scale, jobs, places, meters=meters, warm_up=warm_up, origin=origin)
    lives = job_lives(jobs, timeline, origin=origin)
    start, end = origin + warm_up, origin + warm_up + scale.duration
    allocation = gpu_seconds(timeline, start=start, end=end) / (scale.gpus * scale.duration)
    restarted = await platform.gateway_pid() != pid
    platform.report("deleting all Jobs")
    drained, left = await _delete_jobs(platform, places)
    return PlatformRun(
        pool=pool,
        lives=lives,
        metered=metered,
        allocation=allocation,
        late=late,
        restarted=restarted,
        drained=drained,
        left=left,
    )


async def _create_tenants(platform: Platform, scale: Scale) -> list[Place]:
    names = tenant_names(scale.tenants)
    pool = {"name": GPU_POOL, "guarantee": {GPU: str(scale.guarantee)}}

    async def make(name: str) -> None:
        await platform.create_tenant(name, pool)
        await platform.wait_node_usable(name, GPU_POOL)

    platform.report(f"creating {len(names)} tenants")
    await load.for_each(names, make, in_flight=2)
    places = [Place(name, platform.tenants[name], NAMESPACE) for name in names]
    await _warm_up(places)
    platform.report.done(f"{len(names)} tenants: ready")
    return places


async def _warm_up(places: Sequence[Place]) -> None:
    """Create and delete one pod of each tenant, so that one-time costs are not part of the run."""
    kind = PodKind(run="scale-warm", gpus=1, restart="Never")
    timeline = Timeline()
    async with watch_pods(
        [(place.client, constant_place(place.name)) for place in places], run=kind.run, timeline=timeline
    ):
        await flows.warm_up(places, kind, timeline=timeline)


async def _read_pool(platform: Platform) -> Pool:
    """Return the pool as the gateway sees it: nodes by name, and topology levels."""
    page = await platform.compute.list_all(NODES, label_selector=f"{POOL_LABEL}={GPU_POOL}")
    (pool,) = read_nodes({"items": [msgspec.json.decode(item) for item in page.items]})
    nodes = tuple(sorted(pool.nodes, key=lambda node: node.name))
    return replace(pool, nodes=nodes)


async def _submit_jobs(
    platform: Platform,
    scale: Scale,
    jobs: Sequence[Job],
    places: Sequence[Place],
    *,
    meters: Meters,
    warm_up: float,
    origin: float,
) -> tuple[list[float], MeterFigures]:
    by_name = {place.name: place for place in places}
    late: list[float] = []

    async def create(job: Job) -> None:
        place = by_name[job.tenant]
        await place.client.create(JOBS, job_manifest(job, grace=scale.grace), namespace=NAMESPACE, timeout=_TIMEOUT)

    async def measure() -> MeterFigures:
        await asyncio.sleep(warm_up)
        await meters.begin()
        sampling = asyncio.create_task(meters.sample())
        await asyncio.sleep(origin + warm_up + scale.duration - now())
        sampling.cancel()
        return await meters.finish()

    async with asyncio.TaskGroup() as group:
        measuring = group.create_task(measure())
        for number, job in enumerate(jobs):
            platform.report(f"{number // 50 * 50} of {len(jobs)} Jobs")
            await asyncio.sleep(max(0.0, origin + job.submitted - now()))
            late.append(now() - origin - job.submitted)
            group.create_task(create(job))
        await asyncio.sleep(max(0.0, origin + warm_up + scale.duration + TAIL - now()))
    return late, measuring.result()


async def _delete_jobs(platform: Platform, places: Sequence[Place]) -> tuple[float, list[str]]:
    """Delete all Jobs with their pods, and wait for the compute cluster. Return the seconds, and the remaining pods."""
    started = now()
    background = {"propagationPolicy": "Background"}

    async def clear(place: Place) -> None:
        path = JOBS.path(namespace=NAMESPACE)
        await place.client.request("DELETE", path, params=background, timeout=_TIMEOUT)

    await load.for_each(places, clear, in_flight=4)
    left, changed = await _compute_pods(platform), now()
    while left and now() - changed < _STALL:
        await asyncio.sleep(_POLL)
        before, left = left, await _compute_pods(platform)
        changed = now() if len(left) < len(before) else changed
    return changed - started, left


async def _compute_pods(platform: Platform) -> list[str]:
    """Return the run's pods in the compute cluster, by namespace and name."""
    page = await platform.compute.list_all(PODS, label_selector=f"{RUN_LABEL}={RUN}")
    found = [decode(item).metadata for item in page.items]
    return [f"{metadata.namespace}/{metadata.name}" for metadata in found]
