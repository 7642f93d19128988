"""Small scenarios, and simulations that check invariants at each step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vkgateway.scheduler.core.snapshot import GUARANTEED, WAITING, Quota, Shape
from vkgateway_platform.simulate.cluster import equal_nodes, equal_quotas
from vkgateway_platform.simulate.engine import Simulation
from vkgateway_platform.simulate.policies.scheduler import Scheduler
from vkgateway_platform.simulate.scenario import GPU, POOL, Job, Scenario, Settings, sort_jobs
from vkgateway_platform.simulate.state import Run, SimulationState
from vkgateway_platform.simulate.traces.synthetic import WorkloadParameters, generate_jobs


def quota(tenant: str, guarantee: int = 0, limit: int | None = None, weight: float = 1.0) -> Quota:
    return Quota(
        tenant=tenant,
        pool=POOL,
        guarantee={GPU: guarantee * 1000} if guarantee else {},
        limit={GPU: limit * 1000} if limit is not None else {},
        weight=weight,
    )


def job(name: str, gpus: int | Iterable[int], at: float = 0.0, run: float = 100.0, **fields: object) -> Job:
    """Return a job of the tenant before the slash. `gpus` are those of its pod, or of each pod."""
    sizes = (gpus,) if isinstance(gpus, int) else tuple(gpus)
    given: dict[str, object] = {"band": GUARANTEED, **fields}
    return Job(
        id=name,
        tenant=name.partition("/")[0],
        shapes=tuple(Shape.from_requests({GPU: size * 1000}) for size in sizes),
        submitted=at,
        run=run,
        **given,  # type: ignore[arg-type]
    )


def scenario(nodes: tuple[int, int], quotas: Iterable[Quota], *jobs: Job, **settings: float) -> Scenario:
    given: dict[str, Any] = {"notice": 10.0, "grace": 5.0, "interval": 1.0, **settings}
    return Scenario(
        pools=(equal_nodes(*nodes),), quotas=tuple(quotas), jobs=jobs, settings=replace(Settings(), **given)
    )


def drawn(load: float = 1.1, *, hours: float = 1.0, seed: int = 1, nodes: int = 8, **work: float) -> Scenario:
    """Return a synthetic scenario with three tenants."""
    pool = equal_nodes(nodes, 8)
    quotas = equal_quotas(pool, 3, guaranteed=0.75)
    sizes = {1: 0.4, 2: 0.2, 4: 0.15, 8: 0.15, 16: 0.1}
    given = {"log_run": 6.5, "spread": 1.0, **work}
    drawing = WorkloadParameters(
        gpus=nodes * 8,
        tenants=tuple(each.tenant for each in quotas),
        load=load,
        duration=hours * 3600,
        sizes=sizes,
        **given,  # type: ignore[arg-type]
    )
    jobs = generate_jobs(drawing, random.Random(seed))
    return sort_jobs(Scenario(pools=(pool,), quotas=quotas, jobs=jobs, settings=Settings(horizon=hours * 3600)))


def simulated(given: Scenario, scheduler: Scheduler) -> SimulationState:
    """Run to the end, with checks after each step."""
    simulation = Simulation(given, scheduler)
    while simulation.step():
        check(simulation)
    return simulation.state


def check(simulation: Simulation) -> None:
    state, limits = simulation.state, simulation.scenario
    held: Counter[str] = Counter()
    for gang in state.gangs.values():
        for pod in gang.pods:
            held[pod.node] += pod.shape.amount_of(GPU) if pod.node else 0
        placed = sum(pod.state is not WAITING for pod in gang.pods)
        assert placed == 0 or placed >= gang.minimum, f"{gang.id} is torn"
        assert (state.runs[gang.id].since is None) or placed
    for pool in limits.pools:
        for node in pool.nodes:
            assert held[node.name] <= node.allocatable[GPU], f"{node.name} is over-used"


def run_of(state: SimulationState, name: str) -> Run:
    (found,) = (run for each, run in state.runs.items() if each.endswith(name))
    return found
