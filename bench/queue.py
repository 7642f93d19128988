"""queue: Kueue's scheduler performance test, replayed for the gateway and for the real Kueue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bench import kueue, kueuejobs, kueueworkloads, queuetenants
from bench.apicores import all_cores
from bench.load import Place
from bench.outcome import Cell, Outcome, Target
from bench.queueload import (
    CLASSES,
    PUBLISHED_MAKESPAN,
    PUBLISHED_WAITS,
    QueueLoad,
    QueueSummary,
    Work,
    WorkLog,
    make_load,
)
from bench.session import Session
from vkgateway.api.errors import UnavailableError

TITLE: Final = (
    "Kueue's scheduler performance test: 30 queues in 5 cohorts, workloads of 1 to 20 units that run 0.2 to 1 s"
)
COLUMNS: Final = [
    "workloads", "what runs", "system", "ended", "makespan, s", "of Kueue's",
    *(f"wait, {each.name}, s" for each in CLASSES), "evictions", "CPU scheduler, s", "CPU API servers, s", "CPU all, s",
]  # fmt: skip
ADMISSION: Final = "admission"
PODS: Final = "pods"
KUEUE: Final = "Kueue"
LIMITED: Final = "Kueue, default rate"
VKGATEWAY: Final = "vkgateway"
_SMALL: Final = 20
"""Divisor of the workloads in runs that cost much more for each of them."""
_LIMIT: Final = 900.0
_STALL: Final = 60.0
_GOAL: Final = 100.0
"""Seconds."""


class QueueRun(Protocol):
    """Run of workloads in a system, which marks their times in a log."""

    async def create(self, work: Work) -> None:
        """Create a workload."""

    async def watch(self, opened: asyncio.Event) -> None:
        """Watch the workloads until cancelled, and end them after their run time. Set `opened` when it has begun."""


StartRun = Callable[[WorkLog, asyncio.TaskGroup], QueueRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """Figures of one run: what ran in which system, its summary, and seconds of CPU by kind of process."""

    workloads: int
    what: str
    system: str
    summary: QueueSummary
    cpu: Mapping[str, float]


async def run(session: Session) -> Outcome:
    """Run the gateway's tenants, then Kueue, with the same load on the same platform."""
    notes = list(NOTES)
    try:
        program = await kueue.provide_programs(report=session.report)
    except UnavailableError as error:
        program = None
        notes.append(f"Kueue is missing here: {error}.")
    async with all_cores(session.platform):
        figures = await _run_tenants(session)
        if program:
            async with session.without_gateway():
                figures += await _run_kueue(session, program)
    return build_outcome(figures, notes=notes)


async def _run_tenants(session: Session) -> list[QueueFigures]:
    platform = session.platform
    load, small = _loads(session)
    async with queuetenants.queue_tenants(platform, load.cohorts) as places:
        await _warm_up(session, places)

        def start(kind: type[queuetenants.TenantRun], run: str) -> StartRun:
            return lambda log, group: kind(platform, places, run=run, log=log, group=group)

        pods = await _measure(session, small, PODS, VKGATEWAY, start(queuetenants.PodRun, "pods"))
        await queuetenants.set_preemption(platform, load.cohorts, "Never")
        admission = await _measure(session, load, ADMISSION, VKGATEWAY, start(queuetenants.AdmissionRun, "admission"))
    return [admission, pods]


async def _run_kueue(session: Session, program: Path) -> list[QueueFigures]:
    platform = session.platform
    load, small = _loads(session)

    def start(works: Sequence[Work]) -> StartRun:
        return lambda log, group: kueueworkloads.WorkloadRun(platform.compute, works, log=log, group=group)

    def start_jobs(log: WorkLog, group: asyncio.TaskGroup) -> QueueRun:
        return kueuejobs.JobRun(platform, small.works, small.cohorts, run="jobs", log=log, group=group)

    figures = []
    async with _kueue(session, program, load, rate=kueue.RATE):
        figures.append(await _measure(session, load, ADMISSION, KUEUE, start(load.works)))
    async with _kueue(session, program, small, rate=kueue.RATE), queuetenants.priority_classes(platform.compute):
        figures.append(await _measure(session, small, PODS, KUEUE, start_jobs))
    async with _kueue(session, program, small, rate=None):
        figures.append(await _measure(session, small, ADMISSION, LIMITED, start(small.works)))
    return figures


def _kueue(session: Session, program: Path, load: QueueLoad, *, rate: int | None) -> AbstractAsyncContextManager[None]:
    return kueue.run_kueue(session.platform, program=program, cohorts=load.cohorts, rate=rate, report=session.report)


def _loads(session: Session) -> tuple[QueueLoad, QueueLoad]:
    """Return the load, and a smaller one of the same kind for runs that cost much more for each workload."""
    workloads, cohorts = session.settings.workloads, session.settings.cohorts
    return make_load(workloads, cohorts=cohorts), make_load(workloads // _SMALL, cohorts=cohorts)


async def _warm_up(session: Session, places: Sequence[Place]) -> None:
    """Run some pods of each tenant, so that one-time costs are not part of the run."""
    load = make_load(0, cohorts=session.settings.cohorts)
    session.report("warming up")
    await play_load(
        load, lambda log, group: queuetenants.PodRun(session.platform, places, run="warm", log=log, group=group)
    )


async def _measure(session: Session, load: QueueLoad, what: str, system: str, start: StartRun) -> QueueFigures:
    session.report(f"{what}, {system}: {len(load.works)} workloads")
    meter = await session.platform.start_meter()
    summary = await play_load(load, start)
    cpu = meter.read_seconds()
    span = "not all ended" if summary.makespan is None else f"{summary.makespan:.1f} s"
    session.report.done(f"{what}, {system}: {summary.ended} workloads, {span}")
    return QueueFigures(workloads=len(load.works), what=what, system=system, summary=summary, cpu=cpu)


async def play_load(load: QueueLoad, start: StartRun) -> QueueSummary:
    """Create the workloads at their times, wait until all have ended, and return the summary."""
    log = WorkLog(load.works)
    async with asyncio.TaskGroup() as group:
        run = start(log, group)
        opened = asyncio.Event()
        watching = group.create_task(run.watch(opened))
        await opened.wait()
        for works in load.series:
            group.create_task(_create_series(run, works))
        await log.wait_ended(limit=_LIMIT, stall=_STALL)
        watching.cancel()
    return log.summarize()


async def _create_series(run: QueueRun, works: Sequence[Work]) -> None:
    """Create the workloads one after the other, as Kueue's generator does: a slow server delays the next one."""
    last = 0.0
    for work in works:
        await asyncio.sleep(work.at - last)
        last = work.at
        await run.create(work)


def build_outcome(figures: Sequence[QueueFigures], *, notes: Sequence[str]) -> Outcome:
    """Return a row for each run, and the targets of the admission."""
    rows = [_row(each, _opponent(figures, each)) for each in figures]
    ours = next(each for each in figures if (each.what, each.system) == (ADMISSION, VKGATEWAY))
    ended = Target(what="workloads ended, admission", seen=ours.summary.ended, limit=ours.workloads, at_least=True)
    targets = [ended]
    if ours.summary.makespan is not None:
        seen = round(ours.summary.makespan, 1)
        targets.append(
            Target(what=f"makespan, admission of {ours.workloads} workloads", seen=seen, limit=_GOAL, unit="s")
        )
        ratio = _ratio(ours, _opponent(figures, ours))
        if ratio is not None:
            targets.append(Target(what="makespan of admission, share of Kueue's", seen=ratio, limit=1.0))
    return Outcome(columns=COLUMNS, rows=rows, targets=targets, notes=list(notes))


def _opponent(figures: Sequence[QueueFigures], ours: QueueFigures) -> QueueFigures | None:
    """Return the run of Kueue with the same number of workloads of the same form."""
    wanted = (ours.what, KUEUE, ours.workloads)
    return next((each for each in figures if (each.what, each.system, each.workloads) == wanted), None)


def _ratio(ours: QueueFigures, theirs: QueueFigures | None) -> float | None:
    if theirs is None or ours.summary.makespan is None or theirs.summary.makespan is None:
        return None
    return round(ours.summary.makespan / theirs.summary.makespan, 2)


def _row(figures: QueueFigures, opponent: QueueFigures | None) -> list[Cell]:
    summary, cpu = figures.summary, figures.cpu
    servers = sum(seconds for process, seconds in cpu.items() if process.endswith("apiserver"))
    return [
        figures.workloads,
        figures.what,
        figures.system,
        summary.ended,
        None if summary.makespan is None else round(summary.makespan, 1),
        _ratio(figures, opponent),
        *(round(summary.waits[each.name], 1) for each in CLASSES),
        summary.evictions,
        round(cpu.get("gateway", 0.0) + cpu.get(kueue.PROCESS, 0.0), 1),
        round(servers, 1),
        round(sum(cpu.values()), 1),
    ]


_PUBLISHED = ", ".join(f"{PUBLISHED_WAITS[each.name]:.0f} s ({each.name})" for each in CLASSES)
NOTES: Final = [
    "admission: the gateway gates and admits pods in 30 tenants, one for each queue, that no scheduler binds; they are "
    "deleted after their run time. Kueue admits Workloads in the compute cluster, which get their condition Finished "
    "after their run time, as in its own test.",
    "pods: whole lives. Pods of tenants are admitted, bound, forwarded to hollow nodes, run and end. For Kueue, "
    "workloads are suspended Jobs in the compute cluster, whose pods run on the same nodes.",
    f"Kueue {kueue.VERSION}: its controller as released, with a limit of {kueue.RATE} requests per second. The default "
    "limit is 50 requests per second.",
    "A cohort is a pool of one machine of 120 units, because Kueue counts sums. A workload is one pod. Nothing gets "
    "notice. The gateway's tenants don't preempt in the rows `admission`, since an eviction of a pod that was not "
    "forwarded does not show.",
    f"Published by Kueue, with its default rate: makespan {PUBLISHED_MAKESPAN:.0f} s, mean waits {_PUBLISHED}. "
    "66 s would be the makespan if no unit was ever idle.",
    "The wait of an evicted workload lasts until its last admission. The API server of the compute cluster uses all "
    "cores. CPU of the scheduler: Kueue's controller, or the gateway.",
]
