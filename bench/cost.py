"""cost: CPU of each kind of process for a pod's life, and the gateway's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.flows import BurstFigures
from bench.outcome import Cell, Outcome, Target
from bench.session import Case, Session, System

TITLE: Final = "CPU for a pod, and memory of the gateway, in a burst through it"
COLUMNS: Final = ["pods", "token", "system", "process", "CPU to Ready, ms a pod", "CPU for the whole life, ms a pod"]
_BASELINES: Final[tuple[System, ...]] = ("courier", "floor")
"""Systems to compare with, if a burst of the same run measured them."""
_LIFE_MS: Final = 1.5
_POD_KIB: Final = 10.0
_RATIO: Final = 1.1


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
            grown = 1024 * (flow.memory_peak - flow.memory_before) / pods
            life = round(flow.cpu_ms("gateway")[1], 2)
            targets += [
                Target(what=f"gateway CPU for a pod's life, {words}", seen=life, limit=_LIFE_MS, unit="ms"),
                Target(
                    what=f"memory of the gateway for a pod, {words}", seen=round(grown, 1), limit=_POD_KIB, unit="KiB"
                ),
            ]
            if (courier := session.median_turn("courier", case)) is not None:
                ratio = round(flow.total_cpu_ms() / courier.total_cpu_ms(), 2)
                what = f"CPU of all processes until Ready, {words}, share of the courier's"
                targets.append(Target(what=what, seen=ratio, limit=_RATIO))
            notes.append(
                f"{words}: the gateway held {flow.memory_before:.0f} MiB before, {flow.memory_peak:.0f} MiB at its "
                f"peak ({grown:.1f} KiB a pod), {flow.pss:.0f} MiB of proportional set size after."
            )
            for system in ("gateway", *_BASELINES):
                if (measured := session.median_turn(system, case)) is not None:
                    notes += [f"{words}, {system}, a pod {text}" for text in _describe_counts(measured)]
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


def _describe_counts(flow: BurstFigures) -> Iterator[str]:
    """Yield what each kind of API server counted for a pod, until Ready and from then to the deletion."""
    for phase, counts in (("until Ready", flow.counts_ready), ("until deleted", flow.counts_gone)):
        for server, found in counts.items():
            writes = {key: count / flow.pods for key, count in found.writes().items() if count >= flow.pods / 100}
            by_request = ", ".join(f"{key} {count:.2f}" for key, count in writes.items())
            kib = {
                name: sum(sizes.values()) / 1024 / flow.pods
                for name, sizes in (("in", found.bytes_in), ("out", found.bytes_out), ("watch", found.watch_bytes))
            }
            yield (
                f"{phase} at {server}: {sum(writes.values()):.2f} writes ({by_request}), "
                f"{found.reads() / flow.pods:.2f} reads, {kib['in']:.1f} KiB in, {kib['out']:.1f} KiB out, "
                f"{sum(found.watch_events.values()) / flow.pods:.1f} watch events of {kib['watch']:.1f} KiB, "
                f"{sum(found.admission_ms.values()) / flow.pods:.2f} ms in admission."
            )
