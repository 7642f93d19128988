"""trace: schedulers over synthetic traces, with the arbiter, priority FIFO, Kueue's rules and private clusters."""

from __future__ import annotations

import asyncio
import csv
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from bench.outcome import Cell, Outcome, Target
from bench.session import Session
from vkgateway_platform.simulate.cluster import equal_nodes, equal_quotas
from vkgateway_platform.simulate.engine import Simulation
from vkgateway_platform.simulate.metrics import make_result, private_waits
from vkgateway_platform.simulate.policies.registry import SCHEDULERS
from vkgateway_platform.simulate.result import SimulationResult
from vkgateway_platform.simulate.scenario import Scenario, Settings, sort_jobs
from vkgateway_platform.simulate.state import SimulationState
from vkgateway_platform.simulate.traces import openb
from vkgateway_platform.simulate.traces.adaptation import adapt_jobs, limit_runs, scale_load
from vkgateway_platform.simulate.traces.synthetic import WorkloadParameters, generate_jobs

NODES: Final = 64
GPUS: Final = 8
TENANTS: Final = 8
DAY: Final = 86_400.0
WARM_UP: Final = 7200.0
LOADS: Final = (0.9, 1.1, 1.3)
SEEDS: Final = (1, 2, 3)
TITLE: Final = (
    f"Simulation of a day on {NODES} nodes of {GPUS} GPUs with {TENANTS} tenants, gangs of 1 to 64 GPUs, "
    f"{len(SEEDS)} seeds for each load"
)
COLUMNS: Final = [
    "load",
    "scheduler",
    "allocation %",
    "fragmentation %",
    "entitled",
    "late",
    "not behind own",
    "late p99 s",
    "guaranteed wait p99 s",
    "low wait mean s",
    "longest wait s",
    "evictions",
    "lost GPU-hours",
    "anomalies",
    "Jain",
    "cycle p99 ms",
]
OPENB: Final = "VKGATEWAY_OPENB"
"""Environment variable with the path of openb's list of pods. Without it, only synthetic traces are simulated."""
_NOTES: Final = (
    "Guarantees are 75 % of the GPUs, equal for all tenants; 40 % of the gangs are low work. Run times: median 20 min,"
    " at most 12 h. Tenants submit unequal amounts, so some need more than their guarantee. Shares leave out the first"
    f" {WARM_UP / 3600:g} h. Evicted gangs lose all of their work.",
    "Counts are sums over the seeds, times and shares are means; `late p99` and `longest wait` are the largest. An"
    " entitled gang fits its tenant's unused guarantee when it is submitted, and is late after notice (30 s), grace"
    " (60 s) and two cycles (1 s each). `not behind own` leaves out those for which what was left of the guarantee was"
    " reserved for an older gang of the same tenant. An anomaly waits longer than in its tenant's private cluster plus"
    " that bound. `low stays`: low work yields to guarantees alone (`lowYieldsTo: Guarantee`).",
    f"`{OPENB}=openb_pod_list_default.csv make bench-trace` adds the pods of that public trace, moved together to a"
    " load of 1.1, with run times of a day at most. All of them are single pods.",
)
_OPENB_LOAD: Final = 1.1
_OURS: Final = "vkgateway"
_LOW_STAYS: Final = "vkgateway, low stays"
_PRIVATE: Final = "private"
_RIVALS: Final = ("fifo", "kueue")


_Groups = dict[tuple[float | str, str], list[SimulationResult]]
"""Results by load and scheduler."""


class Case(msgspec.Struct, kw_only=True):
    """Results of all schedulers for one load and seed."""

    load: float | str
    """Load, after the name of the trace unless it is synthetic."""
    seed: int
    results: list[SimulationResult]


async def run(session: Session | None) -> Outcome:
    """Simulate each load and seed in a separate process, as many concurrently as there are cores."""
    turns = asyncio.Semaphore(os.cpu_count() or 1)

    async def one(*what: str) -> Case:
        async with turns:
            if session is not None:
                session.report(f"a simulated day: {' '.join(what)}")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.trace", *what, stdout=asyncio.subprocess.PIPE
            )
            answer, _ = await process.communicate()
            return msgspec.json.decode(answer, type=Case)

    # The largest runs start first, so that no core is idle at the end.
    cases = [("openb", os.environ[OPENB])] if OPENB in os.environ else []
    cases += [(str(load), str(seed)) for load in reversed(LOADS) for seed in SEEDS]
    return build_outcome(sorted(await asyncio.gather(*(one(*each) for each in cases)), key=lambda case: str(case.load)))


def scenario_of(load: float, seed: int, *, nodes: int = NODES, duration: float = DAY) -> Scenario:
    """Return the scenario of a load and a seed."""
    pool = equal_nodes(nodes, GPUS)
    quotas = equal_quotas(pool, TENANTS, guaranteed=0.75)
    work = WorkloadParameters(
        gpus=nodes * GPUS,
        tenants=tuple(quota.tenant for quota in quotas),
        load=load,
        duration=duration,
        low=0.4,
    )
    jobs = generate_jobs(work, random.Random(seed))
    settings = Settings(horizon=duration, warm_up=min(WARM_UP, duration / 2))
    return sort_jobs(Scenario(pools=(pool,), quotas=quotas, jobs=jobs, settings=settings))


def openb_scenario(pods: Path, *, nodes: int = NODES) -> Scenario:
    """Return the scenario of openb's pods, compressed to the load and shortened to a day at most."""
    pool = equal_nodes(nodes, GPUS)
    quotas = equal_quotas(pool, TENANTS, guaranteed=0.75)
    with pods.open(newline="") as rows:
        jobs = tuple(openb.read_pods(csv.DictReader(rows), [quota.tenant for quota in quotas]))
    jobs, horizon = scale_load(limit_runs(adapt_jobs(jobs, [pool]), DAY), [pool], _OPENB_LOAD)
    settings = Settings(horizon=horizon, warm_up=min(WARM_UP, horizon / 2))
    return sort_jobs(Scenario(pools=(pool,), quotas=quotas, jobs=jobs, settings=settings))


def with_low_that_stays(scenario: Scenario) -> Scenario:
    """Return the scenario with pools whose low work yields to guarantees alone."""
    return replace(scenario, pools=tuple(replace(pool, low_yields=False) for pool in scenario.pools))


def simulate_case(load: float | str, seed: int, scenario: Scenario, *, single: bool = False) -> Case:
    """Simulate all schedulers.

    `single`: pods are not gangs, and are not compared with private clusters.
    """
    names = [name for name in SCHEDULERS if not (single and name == _PRIVATE)]
    states = {name: _simulate_all(name, scenario) for name in names}
    alone = private_waits(scenario, states[_PRIVATE]) if _PRIVATE in states else None
    results = [
        make_result(name, scenario, state, private=None if name == _PRIVATE else alone)
        for name, state in states.items()
    ]
    stays = with_low_that_stays(scenario)
    results.insert(1, make_result(_LOW_STAYS, stays, _simulate_all(_OURS, stays), private=alone))
    bare = [msgspec.structs.replace(one, samples=[], first_waits={}) for one in results]
    return Case(load=load, seed=seed, results=bare)


def _simulate_all(name: str, scenario: Scenario) -> SimulationState:
    simulation = Simulation(scenario, SCHEDULERS[name](), clock=time.process_time)
    while simulation.step():
        pass
    return simulation.state


def build_outcome(cases: Sequence[Case]) -> Outcome:
    """Return the table and the targets.

    A row summarizes the seeds: means, sums of counts, and the longest wait of all.
    """
    groups: _Groups = {}
    for case in cases:
        for result in case.results:
            groups.setdefault((case.load, result.scheduler), []).append(result)
    return Outcome(
        columns=list(COLUMNS),
        rows=[_scheduler_row(load, name, results) for (load, name), results in groups.items()],
        targets=_make_targets(groups),
        notes=list(_NOTES),
    )


def _scheduler_row(load: float | str, name: str, results: Sequence[SimulationResult]) -> list[Cell]:
    return [
        load,
        name,
        round(100 * _mean_value(one.allocation for one in results), 1),
        round(100 * _mean_value(one.fragmentation for one in results), 1),
        sum(one.entitled for one in results),
        sum(len(one.late) for one in results),
        sum(not late.behind_own for one in results for late in one.late),
        _round_value(max((one.late_p99 or 0.0 for one in results), default=0.0)),
        _round_value(_mean_value(_wait_seconds(one, "guaranteed", "p99") for one in results)),
        _round_value(_mean_value(_wait_seconds(one, "low", "mean") for one in results)),
        _round_value(max(one.longest_wait for one in results)),
        sum(one.evictions for one in results),
        _round_value(sum(one.lost_gpu_hours for one in results)),
        sum(len(one.anomalies or ()) for one in results) if results[0].anomalies is not None else None,
        round(_mean_value(one.fairness for one in results), 3),
        round(1000 * _mean_value(one.cycle_p99 or 0.0 for one in results), 1),
    ]


def _make_targets(groups: _Groups) -> list[Target]:
    def seen(load: float, read: Callable[[SimulationResult], float], name: str = _OURS) -> float:
        return _mean_value(map(read, groups[load, name]))

    def ratio(read: Callable[[SimulationResult], float], names: Sequence[str] = _RIVALS) -> float:
        return round(seen(1.1, read) / (min(seen(1.1, read, name) for name in names) or 1.0), 2)

    ours = groups[1.1, _OURS]
    late = sum(not each.behind_own for one in ours for each in one.late)
    anomalies = sum(len(one.anomalies or ()) for one in ours)
    allocation = round(100 * seen(1.1, lambda one: one.allocation), 1)
    found = [
        Target(what="allocation, load 1.1", seen=allocation, limit=90, unit="%", at_least=True),
        Target(
            what="late entitled gangs, without those behind an older gang of their tenant, load 1.1", seen=late, limit=0
        ),
        Target(what="sharing anomalies, load 1.1", seen=anomalies, limit=0),
    ]
    best = "load 1.1, relative to the next best scheduler"
    ratios = [
        (f"evictions, {best}", ratio(lambda one: one.evictions), 0.67),
        (f"GPU-hours lost, {best}", ratio(lambda one: one.lost_gpu_hours), 0.67),
        (f"mean wait of low work, {best}", ratio(lambda one: _wait_seconds(one, "low", "mean")), 0.5),
        ("longest wait, load 1.1, relative to priority FIFO's", ratio(lambda one: one.longest_wait, ["fifo"]), 1.0),
    ]
    found += [Target(what=what, seen=times, limit=limit, unit="times") for what, times, limit in ratios]
    cycle = round(1000 * seen(1.3, lambda one: one.cycle_p99 or 0.0))
    found.append(Target(what="cycle p99, load 1.3", seen=cycle, limit=50, unit="ms"))
    for load in (0.9, 1.1):
        share = round(100 * seen(load, lambda one: one.fragmentation), 1)
        found.append(Target(what=f"fragmentation, load {load}", seen=share, limit=5, unit="%"))
    return found


def _wait_seconds(result: SimulationResult, band: str, field: str) -> float:
    found = next((each for each in result.waits if each.band == band and not each.size), None)
    return getattr(found, field, None) or 0.0


def _mean_value(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _round_value(value: float) -> float:
    return float(round(value))


if __name__ == "__main__":
    if sys.argv[1] == "openb":
        found = simulate_case(f"openb {_OPENB_LOAD}", 0, openb_scenario(Path(sys.argv[2])), single=True)
    else:
        at, drawn = float(sys.argv[1]), int(sys.argv[2])
        found = simulate_case(at, drawn, scenario_of(at, drawn))
    sys.stdout.write(msgspec.json.encode(found).decode())
