"""Table, targets and notes of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.outcome import Cell, Outcome, Target
from bench.platform import GPUS_PER_NODE
from bench.scale.compare import Agreement, Judgement, Lives, compare_lives, judge_run, judge_samples
from bench.scale.lives import Life
from bench.scale.meters import GATEWAY, MeterFigures, quantile
from bench.scale.play import TAIL, PlatformRun
from bench.scale.settings import Scale
from bench.scale.simulated import Simulations
from bench.scale.workload import job_gpus
from bench.stats import percentile
from vkgateway.scheduler.core.snapshot import Band
from vkgateway_platform.simulate.scenario import Job

COLUMNS: Final = ["figure", "platform", "simulation", "with the platform's delays", "with drawn delays"]
_CORES_MIN: Final = 0.005
"""Minimum of cores for a kind of process to appear in a note."""
_NAMES_MAX: Final = 10
"""Maximum of gangs in a note."""
_SLACK: Final = 0.01
"""Allowed excess of a share over that of the simulations, because some hundred gangs are not an exact measure."""

Read = Callable[[Iterable[tuple[Job, Life | None]]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComparedRun:
    """Platform run, its simulations, and the compared gangs."""

    jobs: Sequence[Job]
    played: PlatformRun
    simulations: Simulations
    plan: Agreement
    as_arrived: Agreement
    judged: Judgement
    samples: Sequence[Judgement]


def run_title(scale: Scale) -> str:
    """Return the title of a run."""
    return (
        f"A trace of Jobs on {scale.nodes} hollow nodes of {GPUS_PER_NODE} GPUs with {scale.tenants} tenants, "
        f"{scale.minutes:g} minutes at {scale.speed:g} times its speed, load {scale.load:g}, and its simulation"
    )


def build_outcome(
    scale: Scale, jobs: Sequence[Job], played: PlatformRun, simulations: Simulations, *, warm_up: float
) -> Outcome:
    """Return the outcome. All jobs submitted after the warm-up are compared."""
    compared = [job for job in jobs if job.submitted >= warm_up]
    run = _compare_run(compared, played, simulations, until=warm_up + scale.duration)
    return Outcome(
        columns=list(COLUMNS),
        rows=[*_figure_rows(run), *_agreement_rows(run), *_gateway_rows(played.metered, simulations)],
        targets=_make_targets(run),
        notes=[*_make_notes(scale, warm_up, played), *_gang_notes(run)],
    )


def gang_records(jobs: Sequence[Job], played: PlatformRun, simulations: Simulations) -> list[dict[str, Any]]:
    """Return the lifecycle of each gang on the platform and in each simulation, for programs."""
    sides = {
        "platform": played.lives,
        "simulation": simulations.plan.lives,
        "with the platform's delays": simulations.as_arrived.lives,
        **{f"with drawn delays {number}": sample.lives for number, sample in enumerate(simulations.samples, start=1)},
    }
    return [
        {
            "gang": job.id,
            "gpus": job_gpus(job),
            "submitted": job.submitted,
            "run": job.run,
            **{side: _life_fields(lives.get(job.id)) for side, lives in sides.items()},
        }
        for job in jobs
    ]


def _life_fields(life: Life | None) -> dict[str, float | None]:
    if life is None:
        return {}
    return {"arrived": life.arrived, "started": life.started, "ended": life.ended, "evictions": life.evictions}


def _compare_run(jobs: Sequence[Job], played: PlatformRun, simulations: Simulations, *, until: float) -> _ComparedRun:
    names = [job.id for job in jobs]
    plan = compare_lives(names, played.lives, simulations.plan.lives, until=until)
    both = [simulations.plan.lives, simulations.as_arrived.lives]
    samples = [sample.lives for sample in simulations.samples]
    return _ComparedRun(
        jobs=jobs,
        played=played,
        simulations=simulations,
        plan=plan,
        as_arrived=compare_lives(names, played.lives, simulations.as_arrived.lives, until=until),
        judged=judge_run(names, played.lives, [*both, *samples], tolerance=plan.tolerance, until=until),
        samples=judge_samples(names, both, samples, tolerance=plan.tolerance, until=until),
    )


def _figure_rows(run: _ComparedRun) -> list[list[Cell]]:
    """Return rows of figures that the platform and all simulations have."""
    simulations = run.simulations
    shares = [100 * sample.allocation for sample in simulations.samples]
    sides = (run.played.allocation, simulations.plan.allocation, simulations.as_arrived.allocation)
    return [
        ["gangs submitted", *[str(len(run.jobs))] * 3, None],
        ["allocation, %", *(_render_number(100 * side, 1) for side in sides), _render_range(shares, 1)],
        _side_row(run, "gangs started", lambda lives: sum(_wait_time(job, life) is not None for job, life in lives)),
        _side_row(
            run, "evictions of gangs", lambda lives: sum(life.evictions for _, life in lives if life is not None)
        ),
        *(_wait_row(run, band, share) for band in Band for share in (0.5, 0.95)),
        *(_startup_row(run, share) for share in (0.5, 0.95)),
    ]


def _side_row(run: _ComparedRun, what: str, read: Read, digits: int = 0) -> list[Cell]:
    simulations = run.simulations
    sides = (run.played.lives, simulations.plan.lives, simulations.as_arrived.lives)
    samples = [read(_paired_lives(run.jobs, sample.lives)) for sample in simulations.samples]
    return [
        what,
        *(_render_number(read(_paired_lives(run.jobs, side)), digits) for side in sides),
        _render_range(samples, digits),
    ]


def _paired_lives(jobs: Iterable[Job], lives: Lives) -> list[tuple[Job, Life | None]]:
    return [(job, lives.get(job.id)) for job in jobs]


def _render_number(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _render_range(values: Sequence[float], digits: int = 0) -> Cell:
    known = [value for value in values if not math.isnan(value)]
    return f"{_render_number(min(known), digits)} to {_render_number(max(known), digits)}" if known else None


def _wait_row(run: _ComparedRun, band: Band, share: float) -> list[Cell]:
    def read(lives: Iterable[tuple[Job, Life | None]]) -> float:
        waits = [_wait_time(job, life) for job, life in lives if job.band is band]
        return percentile([wait for wait in waits if wait is not None], share)

    return _side_row(run, f"wait until the start, {band} band, p{100 * share:.0f}, s", read, 1)


def _wait_time(job: Job, life: Life | None) -> float | None:
    return None if life is None or life.started is None else life.started - job.submitted


def _startup_row(run: _ComparedRun, share: float) -> list[Cell]:
    lives = (run.played.lives.get(job.id) for job in run.jobs)
    seconds = [
        life.running - life.started
        for life in lives
        if life is not None and life.started is not None and life.running is not None
    ]
    return [
        f"from the start until all pods run, p{100 * share:.0f}, s",
        _render_number(percentile(seconds, share), 1),
        *[None] * 3,
    ]


def _agreement_rows(run: _ComparedRun) -> list[list[Cell]]:
    sides = (run.plan, run.as_arrived)
    return [
        ["started in both", None, *(str(side.both) for side in sides), None],
        ["started on the platform only", None, *(str(len(side.only_run)) for side in sides), None],
        ["started in the simulation only", None, *(str(len(side.only_simulation)) for side in sides), None],
        ["gangs evicted in both", None, *(str(side.evicted_both) for side in sides), None],
        ["gangs evicted on the platform only", None, *(str(side.evicted_only_run) for side in sides), None],
        ["gangs evicted in the simulation only", None, *(str(side.evicted_only_simulation) for side in sides), None],
        *_difference_rows("gangs that start immediately", [side.immediate for side in sides]),
        *_difference_rows("gangs that wait", [side.waited for side in sides]),
        ["pairs in the same order, %", None, *(_render_number(100 * side.order, 1) for side in sides), None],
        _judgement_row(run, f"starts within {run.plan.tolerance:.1f} s of the simulation", lambda one: one.same),
        _judgement_row(run, "starts within the spread of the simulations", lambda one: one.spread),
        _judgement_row(run, "starts that no simulation explains", lambda one: len(one.unexplained)),
        _judgement_row(run, "gangs evicted as often as in the simulation", lambda one: one.evictions_same),
        _judgement_row(run, "gangs evicted as often as in some simulations", lambda one: one.evictions_spread),
        _judgement_row(run, "gangs whose evictions no simulation explains", lambda one: len(one.evictions_unexplained)),
    ]


def _difference_rows(which: str, sides: Sequence[Sequence[float]]) -> list[list[Cell]]:
    what = f"start minus start in the simulation, {which}"
    sizes = [[abs(each) for each in side] for side in sides]
    return [
        [f"{what}, p50, s", None, *(_render_number(percentile(side, 0.5), 2) for side in sides), None],
        [f"{what}, p95 of its amount, s", None, *(_render_number(percentile(side, 0.95), 2) for side in sizes), None],
    ]


def _judgement_row(run: _ComparedRun, what: str, read: Callable[[Judgement], int]) -> list[Cell]:
    return [what, str(read(run.judged)), None, None, _render_range([read(sample) for sample in run.samples])]


def _gateway_rows(metered: MeterFigures, simulations: Simulations) -> list[list[Cell]]:
    cycles = simulations.plan.cycles
    others = sum(metered.cpu.values()) - metered.cpu.get(GATEWAY, 0.0)
    slowest = 1000 * quantile(metered.steps, 1.0)
    figures: Mapping[str, tuple[str, str | None]] = {
        "gateway, cores": (_render_number(metered.mean_cores, 3), None),
        "gateway, peak memory (RSS), MiB": (_render_number(metered.peak), None),
        "all other processes of the platform, cores": (_render_number(others / metered.seconds, 2), None),
        "cores in use, whole machine, p50, %": (_render_number(100 * metered.median_busy), None),
        "time with more than 95 % of the cores in use, %": (_render_number(100 * metered.full_share), None),
        "cycles": (_render_number(metered.steps.get(math.inf, 0.0)), str(len(cycles))),
        "cycle p50, ms": _cycle_times(metered, cycles, 0.5),
        "cycle p99, ms": _cycle_times(metered, cycles, 0.99),
        "slowest cycle, ms": (f"at most {slowest:.0f}", _render_number(1000 * max(cycles, default=math.nan))),
    }
    return [[what, *values, None, None] for what, values in figures.items()]


def _cycle_times(metered: MeterFigures, cycles: Sequence[float], share: float) -> tuple[str, str]:
    return _render_number(1000 * quantile(metered.steps, share), 1), _render_number(1000 * percentile(cycles, share), 1)


def _make_targets(run: _ComparedRun) -> list[Target]:
    def share(count: int) -> float:
        return round(100 * count / len(run.jobs), 1) if run.jobs else 0.0

    def target(what: str, read: Callable[[Judgement], int]) -> Target:
        limit = max((share(read(one)) for one in run.samples), default=0.0) + 100 * _SLACK
        return Target(what=what, seen=share(read(run.judged)), limit=round(limit, 1), unit="%")

    played = run.played
    return [
        target("starts that no simulation explains", lambda one: len(one.unexplained)),
        target("gangs whose evictions no simulation explains", lambda one: len(one.evictions_unexplained)),
        Target(what="restarts of the gateway", seen=float(played.restarted), limit=0.0),
        Target(what="pods left after all Jobs were deleted", seen=len(played.left), limit=0),
        Target(what="Jobs sent late, p99", seen=round(percentile(played.late, 0.99), 2), limit=1.0, unit="s"),
    ]


def _make_notes(scale: Scale, warm_up: float, played: PlatformRun) -> list[str]:
    return [
        f"Seconds are the platform's; one is {scale.speed:g} s of the trace. Notice ({scale.notice:g} s) and the cap "
        f"of the waiting time that counts ({scale.age_cap:g} s) are divided by the speed on both sides.",
        f"Gangs that ran before the trace's part begins are submitted in a warm-up of {warm_up:.0f} s and are not "
        f"compared. Pods are watched until {TAIL:.0f} s after the end.",
        f"After the run all Jobs are deleted; {played.drained:.0f} s later their last pod ended.",
        "Start: on the platform, when the tenant's API server shows the first pod of the gang without its gate; in a "
        "simulation, when the arbiter decides.",
        "With the platform's delays: the same trace, with each gang as late, and its run as much longer, as on the "
        "platform. With drawn delays: several simulations with delays that the platform showed for other gangs; each "
        "is judged by all other simulations, as the platform is.",
        f"Targets allow {100 * _SLACK:g} % more than the simulations with drawn delays differ from each other.",
        f"Cores by kind of process: {_core_list(played.metered)}.",
        "Cycles of the simulation are measured in CPU time. Those of the platform share the machine with everything "
        "else, and their percentiles are interpolated from the buckets of a histogram.",
    ]


def _core_list(metered: MeterFigures) -> str:
    used = sorted(((seconds / metered.seconds, name) for name, seconds in metered.cpu.items()), reverse=True)
    return ", ".join(f"{name} {cores:.2f}" for cores, name in used if cores >= _CORES_MIN)


def _gang_notes(run: _ComparedRun) -> list[str]:
    lists: Mapping[str, Sequence[str]] = {
        "Started on the platform only": run.plan.only_run,
        "Started in the simulation only": run.plan.only_simulation,
        "Starts that no simulation explains": run.judged.unexplained,
        "Evictions that no simulation explains": run.judged.evictions_unexplained,
        "Left after all Jobs were deleted": run.played.left,
    }
    return [
        f"{what}: {', '.join(names[:_NAMES_MAX])}{_more_text(len(names) - _NAMES_MAX)}."
        for what, names in lists.items()
        if names
    ]


def _more_text(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
