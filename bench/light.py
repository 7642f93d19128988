"""light: what the gateway adds to a pod's way when there is little to do."""

from __future__ import annotations

import asyncio
from typing import Final

from bench import load
from bench.flows import always, warm_up
from bench.outcome import Cell, Outcome, Target
from bench.pods import PodKind, spread
from bench.session import Session
from bench.timeline import Key, Timeline, now, summary
from bench.watching import SeenPod, watching

TITLE: Final = "Added delay at 10 pods a second"
COLUMNS: Final = ["way", "pods", "p50, ms", "p99, ms", "slowest, ms"]
RATE: Final = 10.0
TENANTS: Final = 5
"""So few that the machine has cores to spare: what is looked for is the gateway's delay, not the wait for a core."""
_P99_MS: Final = 25.0


async def run(session: Session) -> Outcome:
    """Create pods at a steady rate, and watch both sides; the tenants made for it are removed again."""
    count = min(TENANTS, session.settings.tenants)
    made = await session.tenants(count)
    outcome = await _measure(session, session.platform.places(count))
    await session.platform.remove_tenants(made)
    return outcome


async def _measure(session: Session, places: list[load.Place]) -> Outcome:
    kind = PodKind(run="light")
    above, below = Timeline(), Timeline()
    watches = [(place.client, always(place.name)) for place in places]
    async with (
        watching(watches, run=kind.run, timeline=above),
        watching([(session.platform.compute, tenant_of)], run=kind.run, timeline=below),
    ):
        await warm_up(places, kind, timeline=above)
        wanted = spread(int(RATE * session.settings.seconds), len(places))
        keys: list[Key] = [(places[index].name, name) for index, name in wanted]
        session.report(f"{len(keys)} pods at {RATE:.0f} a second")
        await _steadily(places, wanted, kind, above)
        await above.until("ready", keys)
        await load.delete_all(places, keys)
        await above.until("gone", keys)
    return _tell(
        tenants=len(places),
        down=[below.of("seen")[key] - above.of("bound")[key] for key in keys],
        up=[above.of("ready")[key] - below.of("ready")[key] for key in keys],
    )


async def _steadily(places: list[load.Place], wanted: list[tuple[int, str]], kind: PodKind, timeline: Timeline) -> None:
    started = now()
    async with asyncio.TaskGroup() as group:
        for number, (index, name) in enumerate(wanted):
            await asyncio.sleep(max(0.0, started + number / RATE - now()))
            timeline.mark("sent", (places[index].name, name))
            group.create_task(places[index].create(name, kind))


def tenant_of(pod: SeenPod) -> str:
    """The tenant by the name of the compute namespace."""
    return pod.metadata.namespace.partition("--")[0]


def _tell(*, tenants: int, down: list[float], up: list[float]) -> Outcome:
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    for way, delays in (
        ("down: bound in the tenant to created in the compute cluster", down),
        ("up: Ready in the compute cluster to Ready in the tenant", up),
    ):
        p50, p99 = (round(1000 * seconds, 1) for seconds in summary(delays))
        rows.append([way, len(delays), p50, p99, round(1000 * max(delays), 1)])
        targets.append(Target(what=f"p99 {way}", seen=p99, limit=_P99_MS, unit="ms"))
    notes = [
        "A watch of the benchmark measures both ends, so each delay includes one write at an API server.",
        f"{tenants} tenants, so that the machine is not busy with more control planes than pods.",
    ]
    return Outcome(columns=COLUMNS, rows=rows, targets=targets, notes=notes)
