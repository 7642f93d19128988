"""cost: CPU of each kind of process for a pod's life, and the gateway's memory."""

from __future__ import annotations

from typing import Final

from bench.outcome import Cell, Outcome, Target
from bench.session import Case, Session, System

TITLE: Final = "CPU for a pod, and memory of the gateway, in a burst through it"
COLUMNS: Final = ["pods", "token", "system", "process", "CPU to Ready, ms a pod", "CPU for the whole life, ms a pod"]
_BASELINES: Final[tuple[System, ...]] = ("courier", "floor")
"""Systems to compare with, if a burst of the same run measured them."""
_LIFE_MS: Final = 4.0
_PEAK_MIB: Final = 250.0


async def run(session: Session) -> Outcome:
    """Run the gateway's bursts and read the meters."""
    await session.ensure_tenants()
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    notes: list[str] = []
    await session.warm_up(min(session.settings.pod_counts(2500)))
    for pods in session.settings.pod_counts(2500):
        for case in (Case(pods, token=False), Case(pods, token=True)):
            flow = session.median_turn("gateway", case) or await session.run_turn("gateway", case)
            words = case.title
            rows += _cost_rows(session, case)
            life = round(flow.cpu_ms("gateway")[1], 2)
            targets += [
                Target(what=f"gateway CPU for a pod's life, {words}", seen=life, limit=_LIFE_MS, unit="ms"),
                Target(what=f"peak memory (RSS), {words}", seen=round(flow.memory_peak), limit=_PEAK_MIB, unit="MiB"),
            ]
            grown = 1024 * (flow.memory_peak - flow.memory_before) / pods
            notes.append(
                f"{words}: the gateway held {flow.memory_before:.0f} MiB before, {flow.memory_peak:.0f} MiB at its "
                f"peak ({grown:.1f} KiB a pod), {flow.pss:.0f} MiB of proportional set size after."
            )
    return Outcome(columns=COLUMNS, rows=rows, targets=targets, notes=notes)


def _cost_rows(session: Session, case: Case) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for system in ("gateway", *_BASELINES):
        if (flow := session.median_turn(system, case)) is None:
            continue
        costs = {process: flow.cpu_ms(process) for process in flow.cpu_ready}
        for process, (ready, life) in sorted(costs.items(), key=lambda entry: -entry[1][1]):
            rows.append([*case.row_cells, system, process, round(ready, 2), round(life, 2)])
    return rows
