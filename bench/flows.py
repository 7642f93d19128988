"""Bursts of pods through a system, from the first request to the last deletion, and their cost."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench import load, procfs
from bench.platform import POOL, Platform
from bench.pods import PodKind, spread_pods
from bench.servercounts import ServerCounts
from bench.timeline import Key, Timeline, now, summarize_delays
from bench.watching import PlaceOf, SeenPod, watch_pods
from vkgateway.kube import errors
from vkgateway.kube.resources import NAMESPACES, SERVICE_ACCOUNTS

POOL_LABEL = "platform.vkgateway.io/pool"


@dataclass(slots=True, kw_only=True)
class BurstFigures:
    """Figures of one burst. Times are in seconds, `cpu_*` in seconds by kind of process, memory in MiB."""

    pods: int
    ready_p50: float
    ready_p99: float
    ready_span: float
    gone_span: float
    cpu_ready: Mapping[str, float] = field(default_factory=dict)
    cpu_gone: Mapping[str, float] = field(default_factory=dict)
    counts_ready: Mapping[str, ServerCounts] = field(default_factory=dict)
    counts_gone: Mapping[str, ServerCounts] = field(default_factory=dict)
    """Counts of the API servers by kind of server, until Ready and from then to the deletion."""
    memory_before: float = 0.0
    memory_peak: float = 0.0
    pss: float = 0.0

    def total_cpu_ms(self) -> float:
        """Return milliseconds of CPU of all processes but the load's, per pod, until Ready."""
        return 1000 * sum(seconds for group, seconds in self.cpu_ready.items() if group != "load") / self.pods

    @property
    def throughput(self) -> float:
        """Pods made ready per second."""
        return self.pods / self.ready_span

    def cpu_ms(self, group: str) -> tuple[float, float]:
        """Return milliseconds of CPU per pod, until Ready and for the whole life."""
        ready = 1000 * self.cpu_ready.get(group, 0.0) / self.pods
        return ready, ready + 1000 * self.cpu_gone.get(group, 0.0) / self.pods


async def run_burst(
    places: Sequence[load.Place], count: int, kind: PodKind, *, timeline: Timeline, platform: Platform
) -> BurstFigures:
    """Create `count` pods concurrently, wait until all are ready, delete them, and wait for the deletion.

    Watches must feed `timeline`.
    """
    wanted = spread_pods(count, len(places))
    keys: list[Key] = [(places[index].name, name) for index, name in wanted]
    return await measure_burst(
        keys,
        start=lambda: load.create_all(places, wanted, kind, timeline=timeline),
        end=lambda: load.delete_all(places, keys),
        timeline=timeline,
        platform=platform,
    )


async def measure_burst(
    keys: Sequence[Key],
    *,
    start: Callable[[], Awaitable[None]],
    end: Callable[[], Awaitable[None]],
    timeline: Timeline,
    platform: Platform,
) -> BurstFigures:
    """Measure `start` until all pods are ready, and `end` until all are deleted.

    Watches must feed `timeline`, and `start` must mark there when each pod was requested.
    """
    before = await platform.read_counts()
    meter = await platform.start_meter()
    await start()
    await timeline.wait_for("ready", keys)
    cpu_ready = meter.read_seconds()
    ready = await platform.read_counts()
    p50, p99 = summarize_delays(timeline.delays("sent", "ready"))
    meter, started = await platform.start_meter(), now()
    await end()
    await timeline.wait_for("gone", keys)
    cpu_gone = meter.read_seconds()
    gone = await platform.read_counts()
    return BurstFigures(
        pods=len(keys),
        ready_p50=p50,
        ready_p99=p99,
        ready_span=timeline.time_span("sent", "ready"),
        gone_span=max(timeline.times_of("gone").values()) - started,
        cpu_ready=cpu_ready,
        cpu_gone=cpu_gone,
        counts_ready={server: ready[server] - before[server] for server in before},
        counts_gone={server: gone[server] - ready[server] for server in before},
    )


async def warm_up(places: Sequence[load.Place], kind: PodKind, *, timeline: Timeline) -> None:
    """Create and delete one pod in every place, so that one-time costs are not part of the burst."""
    wanted = [(index, "warm-up") for index in range(len(places))]
    keys = [(place.name, "warm-up") for place in places]
    await load.create_all(places, wanted, kind, timeline=timeline)
    await timeline.wait_for("ready", keys)
    await load.delete_all(places, keys)
    await timeline.wait_for("gone", keys)
    timeline.drop_pods(keys)


async def run_gateway(platform: Platform, *, pods: int, tenants: int, token: bool) -> BurstFigures:
    """Run a burst of tenant pods through their schedulers, the gateway, the compute scheduler and KWOK."""
    places = platform.tenant_places(tenants)
    kind = PodKind(run="gateway", token=token)
    timeline = Timeline()
    watches = [(place.client, constant_place(place.name)) for place in places]
    async with watch_pods(watches, run=kind.run, timeline=timeline):
        await warm_up(places, kind, timeline=timeline)
        gateway = await platform.gateway_pid()
        procfs.reset_peak(gateway)
        before = procfs.memory_mib(gateway)["VmRSS"]
        flow = await run_burst(places, pods, kind, timeline=timeline, platform=platform)
    flow.memory_before = before
    flow.memory_peak = procfs.memory_mib(gateway)["VmHWM"]
    flow.pss = procfs.pss_mib(gateway)
    return flow


async def run_direct(platform: Platform, *, pods: int, tenants: int, token: bool) -> BurstFigures:
    """Run a burst of the same pods in namespaces of the compute cluster."""
    kind = PodKind(run="direct", token=token, selector={POOL_LABEL: POOL})
    timeline = Timeline()
    places = await create_namespaces(platform, [f"direct-{number:02d}" for number in range(tenants)])
    async with watch_pods([(platform.compute, pod_namespace)], run=kind.run, timeline=timeline):
        await warm_up(places, kind, timeline=timeline)
        return await run_burst(places, pods, kind, timeline=timeline, platform=platform)


async def create_namespaces(platform: Platform, names: Sequence[str]) -> list[load.Place]:
    """Create namespaces in the compute cluster, with their service accounts. They are deleted with the platform."""
    client = platform.compute
    for name in names:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        with contextlib.suppress(errors.AlreadyExists):
            await client.create(NAMESPACES, namespace)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        with contextlib.suppress(errors.AlreadyExists):
            await client.create(SERVICE_ACCOUNTS, account, namespace=name)
    return [load.Place(name, client, name) for name in names]


def unique_node_name(run: str) -> str:
    """Return a node name that no other run used.

    On a kept platform, controllers remember deleted nodes by name and consider a new one with the same name dead.
    """
    return f"{run}-{secrets.token_hex(4)}"


def constant_place(name: str) -> PlaceOf:
    """Return the place function of a watch that sees one tenant only."""
    return lambda _pod: name


def pod_namespace(pod: SeenPod) -> str:
    """Return the place of a pod that was created in the compute cluster."""
    return pod.metadata.namespace
