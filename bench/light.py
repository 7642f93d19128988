"""light: delay that the gateway adds to a pod at low load."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from bench import load
from bench.flows import constant_place, warm_up
from bench.outcome import Cell, Outcome, Target
from bench.pods import PodKind, spread_pods
from bench.session import Session
from bench.timeline import Key, Timeline, now, summarize_delays
from bench.watching import SeenPod, watch_pods

TITLE: Final = "Added delay at 10 pods a second"
COLUMNS: Final = ["direction", "pods", "p50, ms", "p99, ms", "slowest, ms"]
RATE: Final = 10.0
TENANTS: Final = 5
"""Few tenants, so that the machine has idle cores: the gateway's delay counts, not the wait for a core."""
_P99_MS: Final = 25.0


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds that the gateway took for each pod, in both directions."""

    forward: list[float]
    mirror: list[float]


async def run(session: Session) -> Outcome:
    """Create pods at a steady rate, and watch both sides. Tenants created for the benchmark are deleted."""
    count = min(TENANTS, session.settings.tenants)
    new_tenants = await session.ensure_tenants(count)
    delays = await measure_delays(session, session.platform.tenant_places(count))
    await session.platform.remove_tenants(new_tenants)
    return _build_outcome(tenants=count, delays=delays)


async def measure_delays(session: Session, places: list[load.Place]) -> Delays:
    """Create pods at a steady rate in these places, and return their delays. The pods are deleted."""
    kind = PodKind(run="light")
    tenant_timeline, compute_timeline = Timeline(), Timeline()
    watches = [(place.client, constant_place(place.name)) for place in places]
    async with (
        watch_pods(watches, run=kind.run, timeline=tenant_timeline),
        watch_pods([(session.platform.compute, pod_tenant)], run=kind.run, timeline=compute_timeline),
    ):
        await warm_up(places, kind, timeline=tenant_timeline)
        wanted = spread_pods(int(RATE * session.settings.seconds), len(places))
        keys: list[Key] = [(places[index].name, name) for index, name in wanted]
        session.report(f"{len(keys)} pods at {RATE:.0f} a second")
        await _create_steadily(places, wanted, kind, tenant_timeline)
        await tenant_timeline.wait_for("ready", keys)
        await load.delete_all(places, keys)
        await tenant_timeline.wait_for("gone", keys)
    return Delays(
        forward=[compute_timeline.times_of("seen")[key] - tenant_timeline.times_of("bound")[key] for key in keys],
        mirror=[tenant_timeline.times_of("ready")[key] - compute_timeline.times_of("ready")[key] for key in keys],
    )


async def _create_steadily(
    places: list[load.Place], wanted: list[tuple[int, str]], kind: PodKind, timeline: Timeline
) -> None:
    started = now()
    async with asyncio.TaskGroup() as group:
        for number, (index, name) in enumerate(wanted):
            await asyncio.sleep(max(0.0, started + number / RATE - now()))
            timeline.mark("sent", (places[index].name, name))
            group.create_task(places[index].create_pod(name, kind))


def pod_tenant(pod: SeenPod) -> str:
    """Return the tenant of a compute pod, from its namespace."""
    return pod.metadata.namespace.partition("--")[0]


def _build_outcome(*, tenants: int, delays: Delays) -> Outcome:
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    for direction, seconds in (
        ("forward: tenant pod bound to compute pod created", delays.forward),
        ("mirror: compute pod Ready to tenant pod Ready", delays.mirror),
    ):
        p50, p99 = (round(1000 * value, 1) for value in summarize_delays(seconds))
        rows.append([direction, len(seconds), p50, p99, round(1000 * max(seconds), 1)])
        targets.append(Target(what=f"p99 {direction}", seen=p99, limit=_P99_MS, unit="ms"))
    notes = [
        "A watch of the benchmark measures both ends, so each delay includes one write at an API server.",
        f"{tenants} tenants, so that the machine is not busy with more control planes than pods.",
    ]
    return Outcome(columns=COLUMNS, rows=rows, targets=targets, notes=notes)
