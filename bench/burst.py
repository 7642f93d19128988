"""burst: many pods of all tenants at the same time, compared with three systems without a gateway."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final

from bench.flows import BurstFigures
from bench.outcome import Cell, Outcome, Target
from bench.session import Case, Session, System

TITLE: Final = "Pods at once, from the request that creates a pod to the watch event that shows it Ready"
COLUMNS: Final = [
    "pods", "token", "system", "Ready p50, s", "Ready p99, s", "pods/s", "pods/s, each turn", "of the floor",
    "of the courier", "gone, pods/s",
]  # fmt: skip
_BASELINES: Final[tuple[System, ...]] = ("floor", "courier", "direct")


async def run(session: Session) -> Outcome:
    """Run every size, with and without token, through all systems in turns."""
    await session.ensure_tenants()
    cases = [Case(pods, token) for pods in session.settings.pod_counts(1250, 2500) for token in (False, True)]
    await session.warm_up(min(case.pods for case in cases))
    for case in cases:  # one after the other, because the machine's speed changes over time
        for _ in range(session.settings.turns):
            await _run_turn(session, case)
    return _build_outcome(session, cases)


async def _run_turn(session: Session, case: Case) -> None:
    async with session.without_gateway():
        for system in _BASELINES:
            await session.run_turn(system, case)
    await session.run_turn("gateway", case)


def _build_outcome(session: Session, cases: list[Case]) -> Outcome:
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    for case in cases:
        rows += [_system_row(session, system, case) for system in (*_BASELINES, "gateway")]
        for what, ratio, limit, at_least in (
            ("pods/s until Ready", lambda flow: flow.throughput, 0.95, True),
            ("p99 until Ready", lambda flow: flow.ready_p99, 1.1, False),
            ("pods/s until deleted", lambda flow: flow.pods / flow.gone_span, 0.95, True),
        ):
            seen = _median_ratio(session, "gateway", "courier", case, ratio)
            title = f"{what} of {case.title}, share of the courier's"
            targets.append(Target(what=title, seen=seen, limit=limit, at_least=at_least))
    return Outcome(columns=COLUMNS, rows=rows, targets=targets, notes=NOTES)


def _system_row(session: Session, system: System, case: Case) -> list[Cell]:
    """Return the row of a system: figures of its median turn, and the throughput of all turns."""
    flow = session.median_turn(system, case)
    assert flow is not None
    return [
        *case.row_cells,
        system,
        round(flow.ready_p50, 2),
        round(flow.ready_p99, 2),
        round(flow.throughput, 1),
        ", ".join(f"{turn.throughput:.1f}" for turn in session.get_turns(system, case)),
        _median_share(session, system, "floor", case),
        _median_share(session, system, "courier", case),
        round(case.pods / flow.gone_span, 1),
    ]


def _median_share(session: Session, system: System, of: System, case: Case) -> float:
    return _median_ratio(session, system, of, case, lambda flow: flow.throughput)


def _median_ratio(
    session: Session, system: System, of: System, case: Case, figure: Callable[[BurstFigures], float]
) -> float:
    """Return the median over all turns of a system's figure divided by that of another system."""
    turns = zip(session.get_turns(system, case), session.get_turns(of, case), strict=True)
    return round(median(figure(flow) / figure(other) for flow, other in turns), 2)


NOTES: Final = [
    "A burst of the smallest size warms up the platform first. While the watch caches of new API servers grow, the "
    "servers end slow watches, in every system.",
    "gateway: the tenants' schedulers bind tenant pods, the compute scheduler binds compute pods, and KWOK makes pods "
    "Ready.",
    "direct: the same pods in the same number of namespaces of the compute cluster, without a gateway.",
    "floor: asyncio clients that do only the unavoidable writes, without scheduler, KWOK or gateway, and with one "
    "watch that measures. The writes: create and bind the tenant pod, create the bound compute pod, both statuses; "
    "with a token also the token request and a Secret.",
    "courier: an asyncio loop instead of the gateway that does only the unavoidable writes, with the same schedulers "
    "and KWOK.",
    "The four systems take turns. The gateway restarts for each burst. The table shows the median turn of a system by "
    "pods/s, and the median share of the turns.",
    "gone: from the first delete to the deletion of the last tenant pod.",
]
