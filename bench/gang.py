"""gang: training jobs that need all their pods, more jobs than fit, under three schedulers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Final, Literal, get_args

from bench import flows, kueue, volcano
from bench.flows import POOL_LABEL, pod_namespace
from bench.jobruns import JobRun, JobVenue
from bench.jobs import GPUS_PER_JOB, GPUS_PER_POD, ROLES, Job, RunSummary, summarize_run
from bench.light import pod_tenant
from bench.load import Place
from bench.modes import Mode, scheduled_by
from bench.outcome import Cell, Outcome, Target
from bench.platform import GPU_NODES, GPU_POOL, GPUS_PER_NODE
from bench.pods import GPU, PodKind, gang_marks
from bench.session import Session
from bench.stats import percentile
from vkgateway.api.errors import UnavailableError

TITLE: Final = "Jobs of 2 parameter servers and 4 workers that work only while all six run; two jobs fit at a time"
COLUMNS: Final = [
    "jobs", "runs", "system", "completed", "makespan, s", "of Volcano's", "blocked, GPU-s", "idle, GPU-s",
]  # fmt: skip
System = Literal["kube-scheduler", "Volcano", "vkgateway", "vkgateway, kueue", "vkgateway, volcano"]
Tallies = dict[tuple[System, int], list[RunSummary]]

_SYSTEMS: Final[tuple[System, ...]] = get_args(System)
_SCHEDULERS: Final[dict[Mode, ModuleType]] = {"volcano": volcano, "kueue": kueue}
_MODES: Final[dict[Mode, System]] = {"kueue": "vkgateway, kueue", "volcano": "vkgateway, volcano"}
"""vkgateway with the pool in another scheduling mode."""
_RUNS: Final = {1: 1, 2: 1, 5: 3}
"""Number of concurrent jobs, and number of runs."""
_FIT: Final = GPU_NODES * GPUS_PER_NODE // GPUS_PER_JOB
_WORK: Final = 5.0
_LIMIT: Final = 60.0
"""Four times the minimum for five jobs."""
_SELECTOR: Final = {POOL_LABEL: GPU_POOL}
_TENANTS: Final = ("gang-a", "gang-b")


async def run(session: Session) -> Outcome:
    """Run every number of jobs with every system, one system after the other, on the same nodes.

    If Volcano cannot be built, a note reports it, and the other systems are compared.
    """
    notes = list(NOTES)
    programs: dict[Mode, Path] = {}
    for mode, scheduler in _SCHEDULERS.items():
        try:
            programs[mode] = await scheduler.provide_programs(report=session.report)
        except UnavailableError as error:
            notes.append(f"{mode.capitalize()} is missing here: {error}.")
    tallies: Tallies = {}
    async with session.without_gateway():
        if "volcano" in programs:
            await _run_system(session, "Volcano", _volcano(session, programs["volcano"]), tallies)
        await _run_system(session, "kube-scheduler", _default_scheduler(session), tallies)
    await _run_system(session, "vkgateway", _vkgateway(session), tallies)
    for mode, folder in programs.items():
        async with scheduled_by(session, mode, folder):
            await _run_system(session, _MODES[mode], _vkgateway(session), tallies)
    return build_outcome(tallies, notes=notes)


async def _run_system(
    session: Session, system: System, venue: AbstractAsyncContextManager[JobVenue], tallies: Tallies
) -> None:
    async with venue as ready:
        session.report(f"{system}: warming up")
        jobs = [Job(f"gang-warm-{index}") for index in range(len(ready.places))]
        await JobRun(ready, jobs, run="gang-warm", work=0.0, limit=_LIMIT).run()
        for count, times in _RUNS.items():
            for number in range(times):
                session.report(f"{system}: {count} jobs, run {number + 1} of {times}")
                name = f"gang-{count}-{number}"
                jobs = [Job(f"{name}-{index}") for index in range(count)]
                seen, until = await JobRun(ready, jobs, run=name, work=_WORK, limit=_LIMIT).run()
                done = summarize_run(seen, fit=_FIT, until=until)
                tallies.setdefault((system, count), []).append(done)
                session.report.done(f"{system}: {done.completed} of {count} jobs in {until - seen[0].created:.1f} s")


@asynccontextmanager
async def _default_scheduler(session: Session) -> AsyncIterator[JobVenue]:
    """Yield a venue with the compute cluster's scheduler, which does not know gangs."""

    def kind(_job: Job, run: str) -> PodKind:
        return PodKind(run=run, gpus=GPUS_PER_POD, restart="Never", selector=_SELECTOR)

    places = await flows.create_namespaces(session.platform, ["gang-plain"])
    yield JobVenue(platform=session.platform, places=places, place_of=pod_namespace, kind=kind)


@asynccontextmanager
async def _volcano(session: Session, programs: Path) -> AsyncIterator[JobVenue]:
    def kind(job: Job, run: str) -> PodKind:
        marks = {volcano.GROUP_ANNOTATION: job.name}
        return PodKind(
            run=run,
            gpus=GPUS_PER_POD,
            restart="Never",
            selector=_SELECTOR,
            scheduler=volcano.SCHEDULER,
            annotations=marks,
        )

    async def prepare(place: Place, job: Job) -> None:
        resources = {GPU: str(GPUS_PER_JOB)}
        await volcano.create_group(
            place.client, job.name, namespace=place.namespace, members=len(ROLES), resources=resources
        )

    async def finish(place: Place, job: Job) -> None:
        await volcano.delete_group(place.client, job.name, namespace=place.namespace)

    platform = session.platform
    places = await flows.create_namespaces(platform, ["gang-volcano"])
    async with volcano.run_volcano(platform, folder=programs, report=session.report):
        yield JobVenue(
            platform=platform, places=places, place_of=pod_namespace, kind=kind, prepare=prepare, finish=finish
        )


@asynccontextmanager
async def _vkgateway(session: Session) -> AsyncIterator[JobVenue]:
    def kind(job: Job, run: str) -> PodKind:
        return PodKind(run=run, gpus=GPUS_PER_POD, restart="Never", annotations=gang_marks(job.name, len(ROLES)))

    platform = session.platform
    async with platform.temporary_tenants({name: {"name": GPU_POOL} for name in _TENANTS}) as places:
        yield JobVenue(platform=platform, places=places, place_of=pod_tenant, kind=kind, tenants=True)


def build_outcome(tallies: Tallies, *, notes: list[str]) -> Outcome:
    """Return rows by number of jobs: the lowest number of completed jobs, and medians of the other figures."""
    rows = [_system_row(tallies, system, count) for count in _RUNS for system in _SYSTEMS if (system, count) in tallies]
    most = max(_RUNS)
    ours, theirs = tallies["vkgateway", most], tallies.get(("Volcano", most), [])
    targets = [
        Target(
            what=f"jobs completed of {most}, in the worst run",
            seen=min(done.completed for done in ours),
            limit=most,
            at_least=True,
        )
    ]
    ratio = _span_ratio(_median_makespan(ours), _median_makespan(theirs))
    if ratio is not None:
        targets.append(Target(what=f"makespan of {most} jobs, share of Volcano's", seen=ratio, limit=1.0))
    return Outcome(columns=COLUMNS, rows=rows, targets=targets, notes=notes)


def _system_row(tallies: Tallies, system: System, count: int) -> list[Cell]:
    done = tallies[system, count]
    makespan = _median_makespan(done)
    return [
        count,
        len(done),
        system,
        min(each.completed for each in done),
        None if makespan is None else round(makespan, 2),
        _span_ratio(makespan, _median_makespan(tallies.get(("Volcano", count), []))),
        round(percentile([each.held for each in done], 0.5)),
        round(percentile([each.idle for each in done], 0.5)),
    ]


def _median_makespan(done: list[RunSummary]) -> float | None:
    """Return the median, or None if a run did not complete or there was none."""
    known = [each.makespan for each in done if each.makespan is not None]
    return percentile(known, 0.5) if known and len(known) == len(done) else None


def _span_ratio(span: float | None, base: float | None) -> float | None:
    return None if span is None or base is None else round(span / base, 2)


NOTES: Final = [
    f"{GPU_NODES} hollow nodes of {GPUS_PER_NODE} GPUs; a pod takes a node, a job {GPUS_PER_JOB} GPUs. The pods of a "
    "job are created one by one, and the jobs concurrently, as by their controllers. A job works for "
    f"{_WORK:.0f} s after all its pods run. Then the benchmark ends them on their nodes, in all systems.",
    f"A run ends after {_LIMIT:.0f} s. completed: in the worst run; other figures: the median of the runs.",
    f"kube-scheduler: pods in the compute cluster. Volcano: its scheduler and controllers {volcano.VERSION} in the "
    "compute cluster, the configuration of its Helm chart, a PodGroup for each job, deleted when the job ends. No "
    "gateway runs with either. vkgateway: alternating between two tenants without guarantees, pods marked as gangs.",
    "vkgateway, kueue and vkgateway, volcano: the same with the pool in these scheduling modes, with Kueue "
    f"{kueue.VERSION}, and with Volcano and the configuration that the gateway ships.",
    "makespan: from the first request to the watch event that shows the last job's end to its user; for vkgateway "
    "that is in the tenant.",
    "blocked: GPUs of pods that have a node while their job waits for the others. idle: capacity for whole "
    "jobs that is unused while a job waits, including the unavoidable time between two jobs.",
]
