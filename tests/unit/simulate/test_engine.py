"""Event loop with the arbiter: conservation, evictions, lost work, checkpoints, entitlement, continuation."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.unit.simulate.scenarios import drawn, job, quota, run_of, scenario, simulated
from vkgateway.scheduler.core.decisions import Admit, Decisions
from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.snapshot import GUARANTEED, LOW, Policy, Snapshot
from vkgateway_platform.simulate.engine import PartialGangError, Simulation
from vkgateway_platform.simulate.metrics import make_result
from vkgateway_platform.simulate.policies.arbiter import ArbiterScheduler
from vkgateway_platform.simulate.scenario import POOL, Scenario
from vkgateway_platform.simulate.state import SimulationState
from vkgateway_platform.simulate.usage import OveruseError


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_gang_ends_and_no_gpu_is_lost_or_made(seed: int) -> None:
    given = drawn(seed=seed)
    state = simulated(given, ArbiterScheduler())
    assert len(state.runs) == len(given.jobs)
    assert all(run.ended is not None for run in state.runs.values())
    work = sum(one.run * sum(shape.requests[0][1] for shape in one.shapes) / 1000 for one in given.jobs)
    ends = [*(sample.time for sample in state.samples[1:]), state.now]
    used = sum(sample.allocated * (end - sample.time) for sample, end in zip(state.samples, ends, strict=True))
    noticed = used - work - sum(run.lost for run in state.runs.values())
    assert noticed == pytest.approx(0, abs=1)


@pytest.fixture(scope="module")
def whole() -> SimulationState:
    """State at the end of a simulation without an interruption."""
    simulation = Simulation(drawn(), ArbiterScheduler())
    while simulation.step():
        pass
    return simulation.state


def test_the_same_seed_gives_the_same_simulation(whole: SimulationState) -> None:
    assert msgspec.json.encode(simulated(drawn(), ArbiterScheduler())) == msgspec.json.encode(whole)


@pytest.mark.parametrize("steps", [0, 1, 100])
def test_a_simulation_continues_from_its_saved_state(whole: SimulationState, steps: int) -> None:
    given = drawn()
    part = Simulation(given, ArbiterScheduler())
    for _ in range(steps):
        assert part.step()
    saved = msgspec.json.decode(msgspec.json.encode(part.state), type=SimulationState)
    rest = Simulation(given, ArbiterScheduler(), state=saved)
    while rest.step():
        pass
    assert rest.state == whole


def with_half_life(given: Scenario, half_life: float) -> Scenario:
    return replace(given, settings=replace(given.settings, policy=Policy(half_life=half_life)))


@pytest.mark.parametrize("steps", [1, 100])
def test_past_shares_continue_from_a_saved_state(steps: int) -> None:
    given = with_half_life(drawn(), 3600.0)
    part = Simulation(given, ArbiterScheduler())
    for _ in range(steps):
        assert part.step()
    saved = msgspec.json.decode(msgspec.json.encode(part.saved_state()), type=SimulationState)
    rest = Simulation(given, ArbiterScheduler(), state=saved)
    for simulation in (part, rest):
        while simulation.step():
            pass
    assert rest.saved_state() == part.saved_state()


@pytest.mark.parametrize(("half_life", "first"), [(0.0, "a/1"), (3600.0, "b/1")])
def test_tenant_that_borrowed_before_comes_later_with_a_half_life(half_life: float, first: str) -> None:
    given = scenario(
        (1, 8),
        [quota("a"), quota("b"), quota("c")],
        job("a/0", 8, run=100),
        job("c/0", 8, at=101, run=100),
        job("a/1", 8, at=110, run=100),
        job("b/1", 8, at=120, run=100),
    )
    state = simulated(with_half_life(given, half_life), ArbiterScheduler())
    assert run_of(state, first).started == pytest.approx(201, abs=1)


def test_past_shares_before_the_trace_count() -> None:
    given = scenario((1, 8), [quota("a"), quota("b")], job("a/0", 8), job("b/0", 8))
    past = PastShare(tenant="a", pool=POOL, average=0.5, share=0.0, at=-60.0)
    given = replace(with_half_life(given, 3600.0), past_shares=(past,))
    assert run_of(simulated(given, ArbiterScheduler()), "b/0").started == 0


def test_an_evicted_gang_has_notice_and_grace_loses_its_work_and_runs_again() -> None:
    given = scenario(
        (1, 8), [quota("a", 8), quota("b")], job("b/low", 8, run=100, band=LOW), job("a/first", 8, at=40, run=50)
    )
    state = simulated(given, ArbiterScheduler())
    first, low = run_of(state, "a/first"), run_of(state, "b/low")
    assert first.entitled
    assert first.started == pytest.approx(55)  # the cycle, 10 s of notice, 5 s of grace
    assert low.evictions == 1
    assert low.lost == pytest.approx(8 * 50)
    assert low.ended == pytest.approx(first.ended + 100 if first.ended else 0, abs=2)
    assert make_result("x", given, state).late == []


def test_an_evicted_gang_queues_again_when_its_pods_are_re_created() -> None:
    given = scenario(
        (1, 8), [quota("a", 8), quota("b")], job("b/low", 8, run=100, band=LOW),
        job("a/first", 8, at=40, run=20), job("a/second", 8, at=150, run=20), recreate=40,
    )  # fmt: skip
    state = simulated(given, ArbiterScheduler())
    first, second, low = run_of(state, "a/first"), run_of(state, "a/second"), run_of(state, "b/low")
    assert first.started == pytest.approx(55)
    assert second.started == pytest.approx(165)
    # Its pods end with the grace period: at 55 s, when it returns after 40 s, and at 165 s, when it waits for 80 s.
    assert low.evictions == 2
    assert low.queued == pytest.approx(55 - 50 + 40 + 165 - 160 + 80)
    assert low.ended == pytest.approx(165 + 80 + 100)
    assert not state.away


def test_a_gang_that_is_evicted_before_its_pods_exist_keeps_them_and_its_place() -> None:
    given = scenario(
        (1, 8), [quota("a", 8), quota("b")], job("b/low", 8, run=100, band=LOW), job("a/first", 8, at=1, run=50),
        startup=2, recreate=40,
    )  # fmt: skip
    state = simulated(given, ArbiterScheduler())
    first, low = run_of(state, "a/first"), run_of(state, "b/low")
    assert first.started == pytest.approx(11)  # 10 s of notice, no grace period: no pod has to end
    assert (low.evictions, low.lost) == (0, 0)
    assert low.ended == pytest.approx(first.ended + 100 if first.ended else 0)


def test_run_times_are_known_after_three_pods_of_a_kind() -> None:
    seen: list[float | None] = []

    class Watching(ArbiterScheduler):
        def decide(self, snapshot: Snapshot, now: float) -> Decisions:
            seen.extend(gang.expected_run for gang in snapshot.gangs if now >= 60)
            return super().decide(snapshot, now)

    jobs = [job("a/one", [8, 8, 8], run=50, kind="a"), job("a/two", 8, at=60, run=50, kind="a")]
    simulated(scenario((3, 8), [quota("a")], *jobs), Watching())
    assert set(seen) == {50}


def test_run_limit_evicts_a_gang_which_continues_from_its_checkpoint() -> None:
    given = scenario((1, 8), [quota("a", 8)], job("a/0", 8, run=100, checkpoint=20.0))
    given = replace(given, pools=tuple(replace(pool, enforces_limits=True) for pool in given.pools))
    assert simulated(given, ArbiterScheduler()).runs["a/0"].evictions == 0
    pools = tuple(replace(pool, default_limits={GUARANTEED: 45.0}) for pool in given.pools)

    run = simulated(replace(given, pools=pools), ArbiterScheduler()).runs["a/0"]

    assert (run.evictions, run.saved) == (2, 80.0)
    assert run.ended == pytest.approx(2 * (45.0 + 5.0) + 20.0, abs=3.0)


def test_work_up_to_the_last_checkpoint_is_kept() -> None:
    given = scenario(
        (1, 8),
        [quota("a", 8), quota("b")],
        job("b/low", 8, run=100, band=LOW, checkpoint=20.0),
        job("a/first", 8, at=40, run=50),
    )
    state = simulated(given, ArbiterScheduler())
    low = run_of(state, "b/low")
    assert low.lost == pytest.approx(8 * 10)
    assert low.saved == pytest.approx(40)


def test_a_gang_that_ends_under_notice_is_not_evicted() -> None:
    given = scenario(
        (1, 8), [quota("a", 8), quota("b")], job("b/low", 8, run=45, band=LOW), job("a/first", 8, at=40, run=50)
    )
    state = simulated(given, ArbiterScheduler())
    assert run_of(state, "b/low").evictions == 0
    assert run_of(state, "a/first").started == pytest.approx(45)


def test_gangs_that_never_fit_end_the_simulation_and_are_counted() -> None:
    given = scenario((1, 8), [quota("a", 8)], job("a/large", 9), job("a/small", 8, at=1))
    state = simulated(given, ArbiterScheduler())
    result = make_result("x", given, state)
    assert (result.gangs, result.ended, result.never_started) == (2, 1, 1)


def test_an_older_gang_that_was_evicted_comes_before_an_entitled_one() -> None:
    given = scenario(
        (2, 8),
        [quota("a", 8), quota("b", 8)],
        job("a/0", 8, run=30),
        job("a/1", 8, at=1, run=1000),  # borrows
        job("b/2", 8, at=20, run=20),
        job("a/3", 8, at=34, run=10),
    )
    state = simulated(given, ArbiterScheduler())
    assert run_of(state, "a/1").evictions == 1
    assert run_of(state, "b/2").entitled
    assert not run_of(state, "a/3").entitled  # the cell is for a/1


def test_late_gang_names_the_older_gang_with_reserved_cells() -> None:
    given = scenario(
        (2, 8),
        [quota("a", 16), quota("b")],
        job("a/0", 8, run=100),
        job("a/1", (8, 8), at=10, run=100),
        job("a/2", 8, at=20, run=5000),
        job("a/3", 8, at=90, run=3650),
        job("b/low", 8, at=3755, run=600, band=LOW),
        job("a/4", 8, at=3760, run=100),  # a/1 has waited for an hour
    )
    given = replace(given, pools=tuple(replace(pool, low_yields=False) for pool in given.pools))
    state = simulated(given, ArbiterScheduler())
    (late,) = make_result("x", given, state).late
    assert (late.gang, late.reason, late.behind, late.behind_own) == ("a/4", "BehindReservation", "a/1", True)


def test_entitled_gang_fits_unused_cells_after_older_ones() -> None:
    given = scenario(
        (4, 8),
        [quota("a", 16), quota("b", 8)],
        job("a/0", 8, run=1000),
        job("a/1", 4, at=10, run=1000),
        job("a/2", 8, at=20, run=1000),
        job("a/3", 4, at=30, run=1000),
        job("b/4", (8, 8), at=40, run=1000),
    )
    state = simulated(given, ArbiterScheduler())
    assert {name: run.entitled for name, run in state.runs.items()} == {
        "a/0": True,
        "a/1": True,
        "a/2": False,
        "a/3": True,
        "b/4": False,
    }


class Careless:
    """Scheduler that starts the first pod of the first gang on the first node, whatever runs there."""

    name = "careless"

    def __init__(self, pods: int) -> None:
        self._pods = pods

    def arrange(self, scenario: Scenario) -> Scenario:
        return scenario

    def decide(self, snapshot: Snapshot, now: float) -> Decisions:
        admits = [
            Admit(gang=gang.id, pool=POOL, nodes={pod.uid: "n0" for pod in gang.pods[: self._pods]}, borrowed=False)
            for gang in snapshot.gangs
            if not gang.pods[0].node
        ]
        return Decisions(admits=tuple(admits))


def test_scheduler_that_overcommits_a_node_is_refused() -> None:
    given = scenario((1, 8), [quota("a")], job("a/0", (8, 8)))
    with pytest.raises(OveruseError, match="node n0"):
        simulated(given, Careless(2))


def test_scheduler_that_starts_part_of_a_gang_is_refused() -> None:
    given = scenario((1, 8), [quota("a")], job("a/0", (8, 8)))
    with pytest.raises(PartialGangError, match="1 of 2 pods"):
        simulated(given, Careless(1))
