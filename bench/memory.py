"""memory: growth of the gateway over rounds of creating and deleting pods."""

from __future__ import annotations

import asyncio
from typing import Final

from bench import flows, procfs
from bench.flows import constant_place, warm_up
from bench.outcome import Cell, Outcome, Target
from bench.pods import PodKind
from bench.session import Session
from bench.timeline import Timeline
from bench.watching import watch_pods

TITLE: Final = "Memory of the gateway over rounds of creating and deleting pods"
COLUMNS: Final = ["round", "RSS after it, MiB"]
_PODS: Final = 500
_SETTLED: Final = 5
"""Rounds after which every buffer has reached its size."""
_GROWTH_MIB: Final = 3.0
_REST: Final = 1.0


async def run(session: Session) -> Outcome:
    """Run all rounds."""
    await session.ensure_tenants()
    places = session.platform.tenant_places(session.settings.tenants)
    kind = PodKind(run="memory")
    pods = session.settings.pods or _PODS
    sizes: list[float] = []
    for number in range(session.settings.rounds):
        session.report(f"round {number + 1} of {session.settings.rounds}")
        timeline = Timeline()
        watches = [(place.client, constant_place(place.name)) for place in places]
        async with watch_pods(watches, run=kind.run, timeline=timeline):
            if number == 0:
                await warm_up(places, kind, timeline=timeline)
            await flows.run_burst(places, pods, kind, timeline=timeline, platform=session.platform)
        await asyncio.sleep(_REST)
        sizes.append(procfs.memory_mib(await session.platform.gateway_pid())["VmRSS"])
    return _build_outcome(sizes, pods=pods)


def _build_outcome(sizes: list[float], *, pods: int) -> Outcome:
    rows: list[list[Cell]] = [[number, round(size, 1)] for number, size in enumerate(sizes, start=1)]
    settled = sizes[min(_SETTLED, len(sizes)) - 1]
    grown = round(sizes[-1] - settled, 1)
    what = f"growth from round {min(_SETTLED, len(sizes))} to round {len(sizes)}, {pods} pods a round"
    return Outcome(columns=COLUMNS, rows=rows, targets=[Target(what=what, seen=grown, limit=_GROWTH_MIB, unit="MiB")])
