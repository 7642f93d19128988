"""Simulation of a run, and the outcome of both."""

from __future__ import annotations

import pytest

from bench.outcome import Outcome
from bench.scale.lives import Life
from bench.scale.meters import MeterFigures
from bench.scale.outcome import COLUMNS, build_outcome
from bench.scale.play import PlatformRun
from bench.scale.settings import Scale
from bench.scale.simulated import SimulatedRun, Simulations, make_scenario, shift_jobs, simulate
from bench.scale.workload import make_workload
from vkgateway_platform.simulate.cluster import equal_nodes
from vkgateway_platform.simulate.scenario import Job

SCALE = Scale(nodes=32, tenants=2, minutes=2, load=1.3)
POOL = equal_nodes(32, 8)
JOBS, WARM_UP = make_workload(SCALE)


@pytest.fixture(scope="module")
def plan() -> SimulatedRun:
    return simulate(make_scenario(SCALE, POOL, JOBS, warm_up=WARM_UP), WARM_UP + SCALE.duration)


def simulated_outcome(simulated: SimulatedRun, lives: dict[str, Life], *, left: tuple[str, ...] = ()) -> Outcome:
    metered = MeterFigures(
        seconds=120, cpu={"gateway": 6.0}, peak=100, busy=(0.5,), steps={0.1: 5.0, float("inf"): 5.0}
    )
    played = PlatformRun(
        pool=POOL, lives=lives, metered=metered, allocation=0.9, late=(0.0,), restarted=False, drained=3.0, left=left
    )
    simulations = Simulations(plan=simulated, as_arrived=simulated, samples=[simulated])
    return build_outcome(SCALE, JOBS, played, simulations, warm_up=WARM_UP)


def test_jobs_start_wait_and_are_evicted_in_the_simulation(plan: SimulatedRun) -> None:
    assert plan.lives.keys() == {job.id for job in JOBS}
    started = [life for life in plan.lives.values() if life.started is not None]
    assert len(started) > 20
    assert any(life.started - life.arrived > 1 for life in started if life.started and life.arrived)
    assert any(life.evictions for life in plan.lives.values())
    assert 0.5 < plan.allocation <= 1


def test_a_shift_delays_submissions_and_lengthens_runs() -> None:
    scenario = make_scenario(SCALE, POOL, JOBS)
    first, last = scenario.jobs[0], scenario.jobs[-1]
    moved = shift_jobs(scenario, {first.id: last.submitted + 5}, {last.id: -1000.0})
    by_id: dict[str, Job] = {job.id: job for job in moved.jobs}
    assert moved.jobs[-1].id == first.id
    assert by_id[first.id].submitted == first.submitted + last.submitted + 5
    assert by_id[last.id].run == pytest.approx(0.1)
    assert [job.submitted for job in moved.jobs] == sorted(job.submitted for job in moved.jobs)


def test_a_platform_that_does_what_the_simulation_does_meets_all_targets(plan: SimulatedRun) -> None:
    outcome = simulated_outcome(plan, dict(plan.lives))
    assert all(len(row) == len(COLUMNS) for row in outcome.rows)
    assert all(target.is_met for target in outcome.targets)
    rows = {row[0]: row[1:] for row in outcome.rows}
    assert rows["started on the platform only"] == [None, "0", "0", None]
    assert rows["gateway, cores"][0] == "0.050"


def test_a_platform_that_leaves_gangs_waiting_and_pods_behind_misses(plan: SimulatedRun) -> None:
    waiting = {
        name: Life(gang=name, arrived=life.arrived) if number % 3 else life
        for number, (name, life) in enumerate(plan.lives.items())
    }
    outcome = simulated_outcome(plan, waiting, left=("a--default/low-g8-0001-0-abcde",))
    missed = {target.what for target in outcome.targets if not target.is_met}
    assert "starts that no simulation explains" in missed
    assert "pods left after all Jobs were deleted" in missed
    assert "Left after all Jobs were deleted: a--default/low-g8-0001-0-abcde." in outcome.notes
    assert any(note.startswith("Started in the simulation only") for note in outcome.notes)
