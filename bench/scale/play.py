"""A trace played on a platform: Jobs created in their tenants at their times, and all pods watched."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from bench import flows, load
from bench.flows import POOL_LABEL, always
from bench.load import Place
from bench.platform import GPU_POOL, Platform
from bench.pods import GPU, RUN_LABEL, PodKind
from bench.scale.lives import Life, gpu_seconds, lives_of
from bench.scale.manifests import RUN, job_manifest
from bench.scale.meters import Metered, Meters
from bench.scale.settings import Scale
from bench.scale.workload import NAMESPACE, tenant_names
from bench.timeline import Timeline, now
from bench.watching import decode, watching
from vkgateway.arbiter.snapshot import Pool
from vkgateway.kube.resources import JOBS, NODES, PODS
from vkgateway.simulate.scenario import Job
from vkgateway.simulate.traces.kubernetes import read_nodes

TAIL: Final = 15.0
"""Seconds after the last submission for which pods are still watched: what was decided by then shows."""
_STALL: Final = 120.0
"""Seconds without an end of any pod after which those that are left are given up."""
_POLL: Final = 1.0
_TIMEOUT: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a run came to on the platform."""

    pool: Pool
    lives: Mapping[str, Life]
    metered: Metered
    allocation: float
    """The share of the GPUs whose pods ran, in the mean of the time after the warm-up."""
    late: Sequence[float]
    """By how many seconds each request for a Job was sent late: how well the load generator kept pace."""
    restarted: bool
    """The gateway's process is another one than at the start."""
    drained: float
    """Seconds from the deletion of all Jobs until the last of their pods was gone from the compute cluster."""
    left: Sequence[str]
    """Pods that were not gone two minutes after the last one that was."""


async def play(platform: Platform, scale: Scale, jobs: Sequence[Job], *, warm_up: float) -> Played:
    """Make the tenants, play the jobs, and remove them again."""
    await platform.start_gateway(notice_seconds=scale.notice, age_cap_seconds=scale.age_cap)
    places = await _tenants(platform, scale)
    pool = await _pool(platform)
    pid = await platform.gateway_pid()
    meters = Meters(platform)
    timeline = Timeline()
    watches = [(place.client, always(place.name)) for place in places]
    async with watching(watches, run=RUN, timeline=timeline):
        origin = now()
        late, metered = await _submit(platform, scale, jobs, places, meters=meters, warm_up=warm_up, origin=origin)
    lives = lives_of(jobs, timeline, origin=origin)
    start, end = origin + warm_up, origin + warm_up + scale.duration
    allocation = gpu_seconds(timeline, start=start, end=end) / (scale.gpus * scale.duration)
    restarted = await platform.gateway_pid() != pid
    platform.report("removing all Jobs")
    drained, left = await _drain(platform, places)
    return Played(
        pool=pool,
        lives=lives,
        metered=metered,
        allocation=allocation,
        late=late,
        restarted=restarted,
        drained=drained,
        left=left,
    )


async def _tenants(platform: Platform, scale: Scale) -> list[Place]:
    names = tenant_names(scale.tenants)
    pool = {"name": GPU_POOL, "guarantee": {GPU: str(scale.guarantee)}}

    async def make(name: str) -> None:
        await platform.create_tenant(name, pool)
        await platform.until_node_usable(name, GPU_POOL)

    platform.report(f"making {len(names)} tenants")
    await load.each(names, make, in_flight=2)
    places = [Place(name, platform.tenants[name], NAMESPACE) for name in names]
    await _warm_up(places)
    platform.report.done(f"{len(names)} tenants: ready")
    return places


async def _warm_up(places: Sequence[Place]) -> None:
    """What happens only with a tenant's first pod is no part of the run."""
    kind = PodKind(run="scale-warm", gpus=1, restart="Never")
    timeline = Timeline()
    async with watching([(place.client, always(place.name)) for place in places], run=kind.run, timeline=timeline):
        await flows.warm_up(places, kind, timeline=timeline)


async def _pool(platform: Platform) -> Pool:
    """Return the pool as the gateway sees it: its nodes by name, and the levels of its network."""
    page = await platform.compute.list_all(NODES, label_selector=f"{POOL_LABEL}={GPU_POOL}")
    (pool,) = read_nodes({"items": [msgspec.json.decode(item) for item in page.items]})
    nodes = tuple(sorted(pool.nodes, key=lambda node: node.name))
    return replace(pool, nodes=nodes)


async def _submit(
    platform: Platform,
    scale: Scale,
    jobs: Sequence[Job],
    places: Sequence[Place],
    *,
    meters: Meters,
    warm_up: float,
    origin: float,
) -> tuple[list[float], Metered]:
    by_name = {place.name: place for place in places}
    late: list[float] = []

    async def create(job: Job) -> None:
        place = by_name[job.tenant]
        await place.client.create(JOBS, job_manifest(job, grace=scale.grace), namespace=NAMESPACE, timeout=_TIMEOUT)

    async def measure() -> Metered:
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


async def _drain(platform: Platform, places: Sequence[Place]) -> tuple[float, list[str]]:
    """Delete all Jobs with their pods, and wait for the compute cluster; returns the time it took, and what is left."""
    started = now()
    background = {"propagationPolicy": "Background"}

    async def clear(place: Place) -> None:
        path = JOBS.path(namespace=NAMESPACE)
        await place.client.request("DELETE", path, params=background, timeout=_TIMEOUT)

    await load.each(places, clear, in_flight=4)
    left, changed = await _pods_below(platform), now()
    while left and now() - changed < _STALL:
        await asyncio.sleep(_POLL)
        before, left = left, await _pods_below(platform)
        changed = now() if len(left) < len(before) else changed
    return changed - started, left


async def _pods_below(platform: Platform) -> list[str]:
    """Return the run's pods in the compute cluster, by namespace and name."""
    page = await platform.compute.list_all(PODS, label_selector=f"{RUN_LABEL}={RUN}")
    found = [decode(item).metadata for item in page.items]
    return [f"{metadata.namespace}/{metadata.name}" for metadata in found]
