"""Simulations of a run: the same nodes, tenants, jobs and settings, also with other arrival delays."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from bench.scale.lives import Life, arrival_delays, median_startup, run_drifts
from bench.scale.meters import quantile
from bench.scale.play import TAIL, PlatformRun
from bench.scale.settings import Scale
from bench.scale.workload import POOL_KEY, tenant_names
from vkgateway.scheduler.core.snapshot import Policy, Pool, Quota
from vkgateway_platform.simulate.engine import Simulation
from vkgateway_platform.simulate.metrics import cluster_gpus
from vkgateway_platform.simulate.policies.arbiter import ArbiterScheduler
from vkgateway_platform.simulate.scenario import GPU, Job, Scenario, Settings

_GATHER: Final = 0.05
_CYCLE_AND_REST: Final = 1.5
"""The gateway collects changes for 0.05 s, decides, and rests for half of the time that it took."""
_BACKOFF: Final = 10.0
"""Seconds after which the Job controller re-creates an evicted pod, doubled by each further eviction."""


_SHORTEST: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """Figures of a simulation: the gangs by id, the share of GPUs with running gangs after the warm-up, and the CPU
    seconds of each cycle.
    """

    lives: Mapping[str, Life]
    allocation: float = 0.0
    cycles: Sequence[float] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulations:
    """Simulations of one run."""

    plan: SimulatedRun
    """Trace without delays."""
    as_arrived: SimulatedRun
    """Trace with the arrival delays and run times of the platform."""
    samples: Sequence[SimulatedRun]
    """Traces with delays and run times that are drawn from those of the platform."""


def make_scenario(
    scale: Scale,
    pool: Pool,
    jobs: Sequence[Job],
    *,
    warm_up: float = 0.0,
    startup: float = 0.0,
    cycle: float = 0.0,
) -> Scenario:
    """Return the scenario: the pool under its name in the gateway, and the platform's settings.

    `startup` is the time from a gang's admission until its pods run, and `cycle` the duration of a cycle, in seconds.
    """
    quotas = tuple(
        Quota(tenant=name, pool=POOL_KEY, guarantee={GPU: 1000 * scale.guarantee})
        for name in tenant_names(scale.tenants)
    )
    settings = Settings(
        notice=scale.notice,
        grace=0.0,
        recreate=_BACKOFF,
        startup=startup,
        interval=_GATHER + _CYCLE_AND_REST * cycle,
        policy=Policy(age_cap=scale.age_cap),
        warm_up=warm_up,
        horizon=warm_up + scale.duration,
    )
    ordered = tuple(sorted(jobs, key=lambda job: (job.submitted, job.id)))
    return Scenario(pools=(replace(pool, key=POOL_KEY),), quotas=quotas, jobs=ordered, settings=settings)


def simulate(scenario: Scenario, until: float) -> SimulatedRun:
    """Simulate up to a time of the trace."""
    simulation = Simulation(scenario, ArbiterScheduler(), clock=time.process_time)
    while simulation.step() and simulation.state.now < until:
        pass
    runs = simulation.state.runs
    return SimulatedRun(
        lives={
            job.id: Life(
                gang=job.id,
                arrived=job.submitted,
                started=runs[job.id].started,
                ended=runs[job.id].ended,
                evictions=runs[job.id].evictions,
            )
            for job in scenario.jobs
            if job.id in runs
        },
        allocation=simulation.state.sums.allocated / (cluster_gpus(scenario) * scenario.measured_seconds or 1.0),
        cycles=simulation.state.seconds,
    )


def simulate_run(scale: Scale, jobs: Sequence[Job], played: PlatformRun, *, warm_up: float) -> Simulations:
    """Simulate the played jobs: as planned, with the platform's delays, and with delays drawn from them."""
    until = warm_up + scale.duration + TAIL
    plan = make_scenario(
        scale,
        played.pool,
        jobs,
        warm_up=warm_up,
        startup=median_startup(played.lives),
        cycle=quantile(played.metered.steps, 0.5),
    )
    late, longer = arrival_delays(jobs, played.lives), run_drifts(jobs, played.lives)
    scenarios = [plan, shift_jobs(plan, late, longer)]
    for number in range(scale.samples):
        draws = random.Random(number)
        scenarios.append(shift_jobs(plan, _draw_values(jobs, late, draws), _draw_values(jobs, longer, draws)))
    first, as_arrived, *samples = simulate_all(scenarios, until)
    return Simulations(plan=first, as_arrived=as_arrived, samples=samples)


def shift_jobs(scenario: Scenario, late: Mapping[str, float], longer: Mapping[str, float]) -> Scenario:
    """Return the scenario with gangs that are submitted `late` seconds later and run `longer` seconds longer."""
    jobs = [
        replace(
            job,
            submitted=job.submitted + max(0.0, late.get(job.id, 0.0)),
            run=max(_SHORTEST, job.run + longer.get(job.id, 0.0)),
        )
        for job in scenario.jobs
    ]
    return replace(scenario, jobs=tuple(sorted(jobs, key=lambda job: (job.submitted, job.id))))


def _draw_values(jobs: Sequence[Job], seen: Mapping[str, float], draws: random.Random) -> dict[str, float]:
    """Draw one of the observed values for each job."""
    values = sorted(seen.values())
    return {job.id: draws.choice(values) for job in jobs} if values else {}


def simulate_all(scenarios: Sequence[Scenario], until: float) -> list[SimulatedRun]:
    """Simulate each scenario in a separate process, as many concurrently as there are cores."""
    workers = min(len(scenarios), len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as processes:
        return list(processes.map(simulate, scenarios, [until] * len(scenarios)))
