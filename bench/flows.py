"""Pods through a system, from the first request to the last pod gone, and what it cost."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench import load, procfs
from bench.platform import POOL, Platform
from bench.pods import PodKind, spread
from bench.timeline import Key, Timeline, now, summary
from bench.watching import SeenPod, Where, watching
from vkgateway.kube import errors
from vkgateway.kube.resources import NAMESPACES, SERVICE_ACCOUNTS

POOL_LABEL = "platform.vkgateway.io/pool"


@dataclass(slots=True, kw_only=True)
class Flow:
    """What one burst came to. Times in seconds, `cpu_*` in seconds by kind of process, memory in MiB."""

    pods: int
    ready_p50: float
    ready_p99: float
    ready_span: float
    gone_span: float
    cpu_ready: Mapping[str, float] = field(default_factory=dict)
    cpu_gone: Mapping[str, float] = field(default_factory=dict)
    memory_before: float = 0.0
    memory_peak: float = 0.0
    pss: float = 0.0

    @property
    def throughput(self) -> float:
        """Pods made ready in a second."""
        return self.pods / self.ready_span

    def cpu_ms(self, group: str) -> tuple[float, float]:
        """Milliseconds of CPU a pod, to Ready and for the whole life."""
        ready = 1000 * self.cpu_ready.get(group, 0.0) / self.pods
        return ready, ready + 1000 * self.cpu_gone.get(group, 0.0) / self.pods


async def burst(
    places: Sequence[load.Place], count: int, kind: PodKind, *, timeline: Timeline, platform: Platform
) -> Flow:
    """Create `count` pods at once, wait until all are ready, delete them, wait until all are gone.

    `timeline` must be fed by watches already.
    """
    wanted = spread(count, len(places))
    keys: list[Key] = [(places[index].name, name) for index, name in wanted]
    return await measured(
        keys,
        start=lambda: load.create_all(places, wanted, kind, timeline=timeline),
        end=lambda: load.delete_all(places, keys),
        timeline=timeline,
        platform=platform,
    )


async def measured(
    keys: Sequence[Key],
    *,
    start: Callable[[], Awaitable[None]],
    end: Callable[[], Awaitable[None]],
    timeline: Timeline,
    platform: Platform,
) -> Flow:
    """What it takes to `start` pods until all are ready, and to `end` them until all are gone.

    `timeline` must be fed by watches already, and `start` marks there when each pod was asked for.
    """
    meter = await platform.meter()
    await start()
    await timeline.until("ready", keys)
    cpu_ready = meter.read()
    p50, p99 = summary(timeline.delays("sent", "ready"))
    meter, started = await platform.meter(), now()
    await end()
    await timeline.until("gone", keys)
    return Flow(
        pods=len(keys),
        ready_p50=p50,
        ready_p99=p99,
        ready_span=timeline.span("sent", "ready"),
        gone_span=max(timeline.of("gone").values()) - started,
        cpu_ready=cpu_ready,
        cpu_gone=meter.read(),
    )


async def warm_up(places: Sequence[load.Place], kind: PodKind, *, timeline: Timeline) -> None:
    """One pod in every place, there and away again: what happens only once is none of the burst."""
    wanted = [(index, "warm-up") for index in range(len(places))]
    keys = [(place.name, "warm-up") for place in places]
    await load.create_all(places, wanted, kind, timeline=timeline)
    await timeline.until("ready", keys)
    await load.delete_all(places, keys)
    await timeline.until("gone", keys)
    timeline.drop(keys)


async def through_gateway(platform: Platform, *, pods: int, tenants: int, token: bool) -> Flow:
    """Pods of tenants, by their own schedulers, the gateway, the compute scheduler and KWOK."""
    places = platform.places(tenants)
    kind = PodKind(run="gateway", token=token)
    timeline = Timeline()
    watches = [(place.client, always(place.name)) for place in places]
    async with watching(watches, run=kind.run, timeline=timeline):
        await warm_up(places, kind, timeline=timeline)
        gateway = await platform.gateway_pid()
        procfs.forget_peak(gateway)
        before = procfs.memory_mib(gateway)["VmRSS"]
        flow = await burst(places, pods, kind, timeline=timeline, platform=platform)
    flow.memory_before = before
    flow.memory_peak = procfs.memory_mib(gateway)["VmHWM"]
    flow.pss = procfs.pss_mib(gateway)
    return flow


async def direct(platform: Platform, *, pods: int, tenants: int, token: bool) -> Flow:
    """The same pods straight into namespaces of the compute cluster."""
    kind = PodKind(run="direct", token=token, selector={POOL_LABEL: POOL})
    timeline = Timeline()
    places = await namespaces(platform, [f"direct-{number:02d}" for number in range(tenants)])
    async with watching([(platform.compute, namespace_of)], run=kind.run, timeline=timeline):
        await warm_up(places, kind, timeline=timeline)
        return await burst(places, pods, kind, timeline=timeline, platform=platform)


async def namespaces(platform: Platform, names: Sequence[str]) -> list[load.Place]:
    """Have namespaces in the compute cluster, with their service accounts; they go with the platform."""
    client = platform.compute
    for name in names:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        with contextlib.suppress(errors.AlreadyExists):
            await client.create(NAMESPACES, namespace)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        with contextlib.suppress(errors.AlreadyExists):
            await client.create(SERVICE_ACCOUNTS, account, namespace=name)
    return [load.Place(name, client, name) for name in names]


def own_node(run: str) -> str:
    """The name of a flow's own node, which no other flow has, nor had in a run before on a platform that was kept:
    controllers remember nodes that were deleted by their names, and take a new one of the same name for dead."""
    return f"{run}-{secrets.token_hex(4)}"


def always(name: str) -> Where:
    """The place of every pod of a watch that sees one tenant only."""
    return lambda _pod: name


def namespace_of(pod: SeenPod) -> str:
    """The place of pods that are created in the compute cluster itself."""
    return pod.metadata.namespace
