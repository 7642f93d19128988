"""onboard: how long a tenant takes to be ready, and what an idle one costs."""

from __future__ import annotations

import asyncio
from typing import Final

from bench import procfs
from bench.outcome import Cell, Outcome, Target
from bench.session import Session
from bench.stats import percentile
from bench.timeline import now
from vkgateway.model.errors import ConflictError

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
    """Make the tenants; with ten there, look at what the tenth costs."""
    platform = session.platform
    if platform.tenants:
        raise ConflictError("onboard needs a platform without tenants", hint="Run it first, or alone.")
    seconds: list[float] = []
    idle: tuple[dict[str, float], float] = ({}, 0.0)
    for number in range(_TENANTS):
        session.report(f"tenant {number + 1} of {_TENANTS}")
        seconds.append(await platform.create_tenant(f"bench-{number:02d}"))
        if number + 1 == _TENTH:
            idle = await _look(session, f"bench-{number:02d}")
    return _tell(seconds, *idle)


async def _look(session: Session, name: str) -> tuple[dict[str, float], float]:
    """Memory of each of a tenant's processes in MiB, and their CPU as a share of one core in percent."""
    session.report(f"what tenant {_TENTH} costs while idle")
    prefix = f"tenant/{name}/"
    pids = {
        process.removeprefix(prefix): pid
        for process, pid in (await session.platform.pids()).items()
        if process.startswith(prefix)
    }
    await asyncio.sleep(_SETTLE)
    meter, started = procfs.CpuMeter({name: pids.values()}), now()
    await asyncio.sleep(_IDLE)
    share = 100 * meter.read()[name] / (now() - started)
    return {process: procfs.pss_mib(pid) for process, pid in pids.items()}, share


def _tell(seconds: list[float], memory: dict[str, float], share: float) -> Outcome:
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
