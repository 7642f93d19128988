"""Table, targets and notes of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from bench.outcome import Cell, Outcome, Target
from bench.platform import GPUS_PER_NODE
from bench.scale.compare import Agreement, Judged, Lives, compare
from bench.scale.lives import Life
from bench.scale.meters import GATEWAY, Metered, quantile
from bench.scale.play import TAIL, Played
from bench.scale.settings import Scale
from bench.scale.simulated import Simulations
from bench.scale.workload import gpus_of
from bench.stats import percentile
from vkgateway.arbiter.facts import Band
from vkgateway.simulate.scenario import Job

COLUMNS: Final = ["figure", "platform", "simulation", "simulations with other delays"]
_NAMED: Final = 10
"""Gangs that a note names at most."""
_SLACK: Final = 0.01
"""By how much larger a share may be than that of the simulations: some hundred gangs are no exact measure."""


def title(scale: Scale) -> str:
    """Return the title of a run."""
    return (
        f"A trace of Jobs on {scale.nodes} hollow nodes of {GPUS_PER_NODE} GPUs with {scale.tenants} tenants, "
        f"{scale.minutes:g} minutes at {scale.speed:g} times its speed, load {scale.load:g}, and its simulation"
    )


def tell(scale: Scale, jobs: Sequence[Job], played: Played, simulations: Simulations, *, warm_up: float) -> Outcome:
    """Return the outcome: all that was submitted after the warm-up is compared."""
    compared = [job for job in jobs if job.submitted >= warm_up]
    until = warm_up + scale.duration
    agreement = compare(
        compared,
        played.lives,
        [simulations.plan.lives, simulations.as_arrived.lives],
        [sample.lives for sample in simulations.samples],
        until=until,
    )
    table = _Table(compared, played, simulations)
    return Outcome(
        columns=list(COLUMNS),
        rows=[*_starts(table, agreement), *_agreement(agreement), *_gateway(played.metered, simulations)],
        targets=_targets(agreement, played, gangs=len(compared)),
        notes=[*_notes(scale, warm_up), *_named(agreement)],
    )


def gangs(jobs: Sequence[Job], played: Played, simulations: Simulations) -> list[dict[str, Any]]:
    """Return each gang with what became of it on the platform and in each simulation, for programs."""
    sides = {
        "platform": played.lives,
        "simulation": simulations.plan.lives,
        "as arrived": simulations.as_arrived.lives,
        **{f"sample {number}": sample.lives for number, sample in enumerate(simulations.samples, start=1)},
    }
    return [
        {
            "gang": job.id,
            "gpus": gpus_of(job),
            "submitted": job.submitted,
            "run": job.run,
            **{side: _plain(lives.get(job.id)) for side, lives in sides.items()},
        }
        for job in jobs
    ]


def _plain(life: Life | None) -> dict[str, float | None]:
    if life is None:
        return {}
    return {"arrived": life.arrived, "started": life.started, "ended": life.ended, "evictions": life.evictions}


class _Table:
    """Rows of figures that the platform and all simulations have."""

    def __init__(self, jobs: Sequence[Job], played: Played, simulations: Simulations) -> None:
        self._jobs = jobs
        self.played = played
        self.simulations = simulations

    def row(self, what: str, read: Callable[[Iterable[tuple[Job, Life | None]]], float], digits: int = 0) -> list[Cell]:
        """Return a row of what `read` says of the lives of each."""
        samples = [read(self._lives(sample.lives)) for sample in self.simulations.samples]
        plan = read(self._lives(self.simulations.plan.lives))
        return [what, *_cells(read(self._lives(self.played.lives)), plan, samples, digits)]

    def _lives(self, lives: Lives) -> list[tuple[Job, Life | None]]:
        return [(job, lives.get(job.id)) for job in self._jobs]


def _cells(platform: float, plan: float, samples: Sequence[float], digits: int) -> list[Cell]:
    known = [value for value in samples if not math.isnan(value)]
    between = f"{_number(min(known), digits)} to {_number(max(known), digits)}" if known else None
    return [_number(platform, digits), _number(plan, digits), between]


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _starts(table: _Table, agreement: Agreement) -> list[list[Cell]]:
    shares = [100 * sample.allocation for sample in table.simulations.samples]
    plan, played = 100 * table.simulations.plan.allocation, 100 * table.played.allocation
    return [
        ["gangs submitted", str(agreement.gangs), str(agreement.gangs), None],
        ["allocation, %", *_cells(played, plan, shares, 1)],
        table.row("gangs started", lambda lives: sum(_wait(job, life) is not None for job, life in lives)),
        table.row("evictions of gangs", lambda lives: sum(life.evictions for _, life in lives if life is not None)),
        *(_waits(table, band, share) for band in Band for share in (0.5, 0.95)),
    ]


def _waits(table: _Table, band: Band, share: float) -> list[Cell]:
    def read(lives: Iterable[tuple[Job, Life | None]]) -> float:
        waits = [_wait(job, life) for job, life in lives if job.band is band]
        return percentile([wait for wait in waits if wait is not None], share)

    return table.row(f"wait until the start, {band} band, p{100 * share:.0f}, s", read, 1)


def _wait(job: Job, life: Life | None) -> float | None:
    return None if life is None or life.started is None else life.started - job.submitted


def _agreement(agreement: Agreement) -> list[list[Cell]]:
    return [
        ["started in both", str(agreement.both), None, None],
        ["started on one side only", str(len(agreement.only_platform)), str(len(agreement.only_simulation)), None],
        ["gangs evicted in both", str(agreement.evicted_both), None, None],
        [
            "gangs evicted on one side only",
            str(agreement.evicted_only_platform),
            str(agreement.evicted_only_simulation),
            None,
        ],
        *_differences("start, platform minus simulation, gangs that start at once", agreement.at_once),
        *_differences("start, platform minus simulation, gangs that wait", agreement.waited),
        ["pairs of gangs that start in the same order, %", _number(100 * agreement.order, 1), None, None],
        _judged(agreement, f"starts within {agreement.tolerance:.1f} s of the simulation", lambda one: one.same),
        _judged(agreement, "starts within the spread of the simulations", lambda one: one.spread),
        _judged(agreement, "starts that no simulation explains", lambda one: len(one.unexplained)),
        _judged(agreement, "gangs evicted as often as in the simulation", lambda one: one.evictions_same),
        _judged(agreement, "gangs evicted as often as in some simulations", lambda one: one.evictions_spread),
        _judged(agreement, "gangs whose evictions no simulation explains", lambda one: len(one.evictions_unexplained)),
    ]


def _differences(what: str, seconds: Sequence[float]) -> list[list[Cell]]:
    sizes = [abs(each) for each in seconds]
    shares = {"p50": percentile(seconds, 0.5), "p95 of its size": percentile(sizes, 0.95)}
    return [[f"{what}, {name}, s", _number(value, 2), None, None] for name, value in shares.items()]


def _judged(agreement: Agreement, what: str, read: Callable[[Judged], int]) -> list[Cell]:
    samples = [read(sample) for sample in agreement.samples]
    return [what, str(read(agreement.platform)), None, f"{min(samples)} to {max(samples)}" if samples else None]


def _gateway(metered: Metered, simulations: Simulations) -> list[list[Cell]]:
    cycles = simulations.plan.cycles
    others = sum(metered.cpu.values()) - metered.cpu.get(GATEWAY, 0.0)
    count = metered.steps.get(math.inf, 0.0)
    return [
        ["gateway, cores", _number(metered.cores, 3), None, None],
        ["gateway, peak memory (RSS), MiB", _number(metered.peak, 0), None, None],
        ["all other processes of the platform, cores", _number(others / metered.seconds, 2), None, None],
        ["share of all cores in use, everything on the machine, p50, %", _number(100 * metered.usual, 0), None, None],
        ["time with more than 95 % of the cores in use, %", _number(100 * metered.full, 0), None, None],
        ["cycles", _number(count, 0), str(len(cycles)), None],
        *(_cycle(metered, cycles, share) for share in (0.5, 0.99)),
        [
            "slowest cycle, ms",
            f"at most {1000 * quantile(metered.steps, 1.0):.0f}",
            _number(1000 * max(cycles, default=math.nan), 0),
            None,
        ],
    ]


def _cycle(metered: Metered, cycles: Sequence[float], share: float) -> list[Cell]:
    seconds = quantile(metered.steps, share), percentile(cycles, share)
    return [f"cycle p{100 * share:.0f}, ms", *(_number(1000 * each, 1) for each in seconds), None]


def _targets(agreement: Agreement, played: Played, *, gangs: int) -> list[Target]:
    def share(count: int) -> float:
        return round(100 * count / gangs, 1) if gangs else 0.0

    def limit(read: Callable[[Judged], int]) -> float:
        return round(max((share(read(one)) for one in agreement.samples), default=0.0) + 100 * _SLACK, 1)

    def starts(one: Judged) -> int:
        return len(one.unexplained)

    def evictions(one: Judged) -> int:
        return len(one.evictions_unexplained)

    left = math.inf if played.drained is None else round(played.drained, 1)
    return [
        Target(
            what="starts that no simulation explains",
            seen=share(starts(agreement.platform)),
            limit=limit(starts),
            unit="%",
        ),
        Target(
            what="gangs whose evictions no simulation explains",
            seen=share(evictions(agreement.platform)),
            limit=limit(evictions),
            unit="%",
        ),
        Target(what="restarts of the gateway", seen=float(played.restarted), limit=0.0),
        Target(what="time until no pod is left after all Jobs were deleted", seen=left, limit=120.0, unit="s"),
        Target(what="Jobs sent late, p99", seen=round(percentile(played.late, 0.99), 2), limit=1.0, unit="s"),
    ]


def _notes(scale: Scale, warm_up: float) -> list[str]:
    return [
        f"Seconds are the platform's; one is {scale.speed:g} s of the trace. Notice ({scale.notice:g} s) and the cap "
        f"of the waiting time that counts ({scale.age_cap:g} s) are divided by the speed on both sides.",
        f"Gangs that ran before the trace's part begins are submitted in a warm-up of {warm_up:.0f} s and are not "
        f"compared. Pods are watched until {TAIL:.0f} s after the end.",
        "platform: a gang starts when its last pod runs, as its tenant's API server shows it. simulation: when the "
        "arbiter decides. CPU of cycles in the simulation is of one quiet process; the platform's cycles share the "
        "machine with all others, and their times are interpolated from the buckets of a histogram.",
        "simulations with other delays: the same trace, with arrivals as late, and run times as much longer, as the "
        "platform showed for other gangs. Each of these is judged by all other simulations, as the platform is.",
        f"Targets allow {100 * _SLACK:g} % more than the simulations with other delays differ from each other.",
    ]


def _named(agreement: Agreement) -> list[str]:
    lists = {
        "Started on the platform only": agreement.only_platform,
        "Started in the simulation only": agreement.only_simulation,
        "Starts that no simulation explains": agreement.platform.unexplained,
        "Evictions that no simulation explains": agreement.platform.evictions_unexplained,
    }
    return [
        f"{what}: {', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''}."
        for what, names in lists.items()
        if names
    ]
