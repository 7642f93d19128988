"""The simulation of a run: the same nodes, tenants, jobs and settings, and the same with other arrival delays."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from bench.scale.lives import Life, delays, drifts, startup
from bench.scale.meters import quantile
from bench.scale.play import TAIL, Played
from bench.scale.settings import Scale
from bench.scale.workload import POOL_KEY, tenant_names
from vkgateway.arbiter.snapshot import Policy, Pool, Quota
from vkgateway.simulate.engine import Simulation
from vkgateway.simulate.metrics import cluster_gpus
from vkgateway.simulate.policies.arbiter import ArbiterScheduler
from vkgateway.simulate.scenario import GPU, Job, Scenario, Settings

_GATHER: Final = 0.05
_CYCLE_AND_REST: Final = 1.5
"""The gateway gathers news for 0.05 s, decides, and rests for half of the time that it took."""
_BACKOFF: Final = 10.0
"""Seconds after which the Job controller re-creates an evicted pod; twice as long after each further eviction."""


_SHORTEST: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulation came to: the gangs by id, the share of the GPUs that ran gangs after the warm-up, and the CPU
    seconds that each cycle took."""

    lives: Mapping[str, Life]
    allocation: float = 0.0
    cycles: Sequence[float] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulations:
    """The simulations of one run."""

    plan: Simulated
    """The trace as it is."""
    as_arrived: Simulated
    """The trace with the delays of arrivals and the run times that the platform showed."""
    samples: Sequence[Simulated]
    """The trace with delays and run times that are drawn from those of the platform."""


def scenario_of(
    scale: Scale,
    pool: Pool,
    jobs: Sequence[Job],
    *,
    warm_up: float = 0.0,
    startup: float = 0.0,
    cycle: float = 0.0,
) -> Scenario:
    """Return the scenario: the pool under the name that it has in the gateway, and the platform's settings.

    `startup` is what a gang takes from its admission until its pods run, `cycle` what a cycle takes, in seconds.
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


def simulate(scenario: Scenario, until: float) -> Simulated:
    """Simulate up to a time of the trace."""
    simulation = Simulation(scenario, ArbiterScheduler(), clock=time.process_time)
    while simulation.step() and simulation.state.now < until:
        pass
    runs = simulation.state.runs
    return Simulated(
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


def beside(scale: Scale, jobs: Sequence[Job], played: Played, *, warm_up: float) -> Simulations:
    """Simulate what was played: as planned, with the platform's delays, and with delays that are drawn from them."""
    until = warm_up + scale.duration + TAIL
    plan = scenario_of(
        scale,
        played.pool,
        jobs,
        warm_up=warm_up,
        startup=startup(played.lives),
        cycle=quantile(played.metered.steps, 0.5),
    )
    late, longer = delays(jobs, played.lives), drifts(jobs, played.lives)
    scenarios = [plan, shifted(plan, late, longer)]
    for number in range(scale.samples):
        draws = random.Random(number)
        scenarios.append(shifted(plan, _drawn(jobs, late, draws), _drawn(jobs, longer, draws)))
    first, as_arrived, *samples = simulate_all(scenarios, until)
    return Simulations(plan=first, as_arrived=as_arrived, samples=samples)


def shifted(scenario: Scenario, late: Mapping[str, float], longer: Mapping[str, float]) -> Scenario:
    """Return the scenario with gangs submitted that many seconds later, and running that many seconds longer."""
    jobs = [
        replace(
            job,
            submitted=job.submitted + max(0.0, late.get(job.id, 0.0)),
            run=max(_SHORTEST, job.run + longer.get(job.id, 0.0)),
        )
        for job in scenario.jobs
    ]
    return replace(scenario, jobs=tuple(sorted(jobs, key=lambda job: (job.submitted, job.id))))


def _drawn(jobs: Sequence[Job], seen: Mapping[str, float], draws: random.Random) -> dict[str, float]:
    """Draw one of the values seen for each job."""
    values = sorted(seen.values())
    return {job.id: draws.choice(values) for job in jobs} if values else {}


def simulate_all(scenarios: Sequence[Scenario], until: float) -> list[Simulated]:
    """Simulate each scenario in a process of its own, as many at once as there are cores."""
    workers = min(len(scenarios), len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as processes:
        return list(processes.map(simulate, scenarios, [until] * len(scenarios)))
