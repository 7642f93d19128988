"""onboard: time until a new tenant is ready, and cost of an idle tenant."""

from __future__ import annotations

import asyncio
from typing import Final

from bench import procfs
from bench.outcome import Cell, Outcome, Target
from bench.session import Session
from bench.stats import percentile
from bench.timeline import now
from vkgateway.api.errors import ConflictError

TITLE: Final = "From the Tenant object to its virtual node Ready, one tenant after the other"
COLUMNS: Final = ["tenant", "ready after, s"]
_TENANTS: Final = 20
_TENTH: Final = 10
_IDLE: Final = 20.0
_SETTLE: Final = 30.0
_READY_S: Final = 10.0
_PSS_MIB: Final = 200.0
_IDLE_PERCENT: Final = 1.0


async def run(session: Session) -> Outcome:
    """Create the tenants. At the tenth, measure its idle cost."""
    platform = session.platform
    if platform.tenants:
        raise ConflictError(
            "onboard needs a platform without tenants", hint="Run it before the other benchmarks, or alone."
        )
    seconds: list[float] = []
    idle: tuple[dict[str, float], float] = ({}, 0.0)
    for number in range(_TENANTS):
        session.report(f"tenant {number + 1} of {_TENANTS}")
        seconds.append(await platform.create_tenant(f"bench-{number:02d}"))
        if number + 1 == _TENTH:
            idle = await _measure_idle(session, f"bench-{number:02d}")
    return _build_outcome(seconds, *idle)


async def _measure_idle(session: Session, name: str) -> tuple[dict[str, float], float]:
    """Return the memory of each of a tenant's processes in MiB, and their CPU in percent of one core."""
    session.report(f"idle cost of tenant {_TENTH}")
    prefix = f"tenant/{name}/"
    pids = {
        process.removeprefix(prefix): pid
        for process, pid in (await session.platform.process_ids()).items()
        if process.startswith(prefix)
    }
    await asyncio.sleep(_SETTLE)
    meter, started = procfs.CpuMeter({name: pids.values()}), now()
    await asyncio.sleep(_IDLE)
    share = 100 * meter.read_seconds()[name] / (now() - started)
    return {process: procfs.pss_mib(pid) for process, pid in pids.items()}, share


def _build_outcome(seconds: list[float], memory: dict[str, float], share: float) -> Outcome:
    rows: list[list[Cell]] = [[number, round(value, 2)] for number, value in enumerate(seconds, start=1)]
    p50, slowest = percentile(seconds, 0.5), max(seconds)
    rows += [["median", round(p50, 2)], ["slowest", round(slowest, 2)]]
    parts = ", ".join(f"{process} {size:.0f}" for process, size in memory.items())
    return Outcome(
        columns=COLUMNS,
        rows=rows,
        targets=[
            Target(what="slowest of 20 tenants", seen=round(slowest, 2), limit=_READY_S, unit="s"),
            Target(
                what="proportional set size of the tenth idle tenant",
                seen=round(sum(memory.values())),
                limit=_PSS_MIB,
                unit="MiB",
            ),
            Target(
                what="idle CPU of the tenth tenant, share of a core",
                seen=round(share, 1),
                limit=_IDLE_PERCENT,
                unit="%",
            ),
        ],
        notes=[f"The tenth tenant's memory in MiB: {parts}; idle CPU over {_IDLE:.0f} s."],
    )
