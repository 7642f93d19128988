"""Budgets in simulations: hours are counted as by the gateway, and a used-up budget stops borrowing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.unit.simulate.scenarios import drawn, job, quota, run_of, scenario, simulated
from tests.unit.usage.records import HOUR, at, used
from vkgateway.api.types import TenantBudget
from vkgateway.scheduler.core.snapshot import LOW, WAITING, Quota
from vkgateway.tenants.usage.ledger import UsageLedger
from vkgateway_platform.simulate.engine import Simulation
from vkgateway_platform.simulate.metrics import make_result
from vkgateway_platform.simulate.policies.arbiter import ArbiterScheduler
from vkgateway_platform.simulate.policies.kueue import Kueue
from vkgateway_platform.simulate.policies.private import PrivateClusters
from vkgateway_platform.simulate.scenario import GPU, Job, Scenario
from vkgateway_platform.simulate.state import SimulationState
from vkgateway_platform.simulate.tenants import read_budgets
from vkgateway_platform.simulate.traces.errors import TraceError

DAY = 24 * HOUR
NOVEMBER_30 = at("2026-11-30 00:00")


def budgeted(hours: float, *jobs: Job, quotas: tuple[Quota, ...] = (), begin: float = 0.0, **fields: Any) -> Scenario:
    """Return two nodes of 8 GPUs, of which the tenant `a` has one as its guarantee, and a budget of `a`."""
    given = scenario((2, 8), quotas or (quota("a", 8), quota("b", 8)), *jobs, begin=begin)
    return replace(given, budgets={"a": (TenantBudget(resource=GPU, hours=hours, **fields),)})


def finished(given: Scenario) -> SimulationState:
    simulation = Simulation(given, ArbiterScheduler())
    while simulation.step():
        pass
    return simulation.saved_state()


def hours_of(state: SimulationState, tenant: str, month: str) -> float:
    ledger = UsageLedger()
    ledger.load(state.usage)
    return ledger.month_hours(tenant, month, resource=GPU)


def test_gang_outside_the_guarantee_waits_for_the_next_month() -> None:
    given = budgeted(
        100,
        job("a/whole", 8, run=13 * HOUR),
        job("a/low", 8, at=13 * HOUR, run=HOUR, band=LOW),
        begin=NOVEMBER_30,
    )
    state = simulated(given, ArbiterScheduler())
    assert run_of(state, "a/low").reason in ("", "BudgetUsedUp")
    assert run_of(state, "a/low").started == pytest.approx(DAY, abs=5)
    assert hours_of(state, "a", "2026-11") == pytest.approx(104, abs=0.1)
    assert hours_of(state, "a", "2026-12") == pytest.approx(8, abs=0.1)


def test_guarantee_starts_and_running_pods_go_on() -> None:
    given = budgeted(
        8,
        job("a/first", 8, run=10 * HOUR),
        job("a/second", 8, at=10.0, run=10 * HOUR),
        job("a/third", 8, at=11 * HOUR, run=HOUR),
        begin=NOVEMBER_30 - 10 * DAY,
    )
    state = simulated(given, ArbiterScheduler())
    assert run_of(state, "a/second").borrowed
    assert run_of(state, "a/second").evictions == 0
    third = run_of(state, "a/third")
    assert third.started == pytest.approx(11 * HOUR, abs=5)
    assert not third.borrowed


def test_budget_of_zero_hours_never_borrows_and_ends_the_simulation() -> None:
    given = budgeted(0, job("a/low", 8, band=LOW), job("b/gang", 8))
    state = simulated(given, ArbiterScheduler())
    assert run_of(state, "a/low").started is None
    assert run_of(state, "b/gang").ended is not None
    assert state.now < DAY


def test_budget_of_another_pool_stops_nothing() -> None:
    state = simulated(budgeted(0, job("a/low", 8, band=LOW), pool="v100"), ArbiterScheduler())
    assert run_of(state, "a/low").started == pytest.approx(0, abs=5)


def test_wait_for_the_next_month_is_one_sample() -> None:
    state = simulated(
        budgeted(7, job("a/first", 8, run=HOUR), job("a/low", 8, at=HOUR, run=HOUR, band=LOW)), ArbiterScheduler()
    )
    assert run_of(state, "a/low").started is not None
    assert len(state.samples) < 2000


def test_hours_before_the_trace_count() -> None:
    ledger = UsageLedger()
    ledger.count([used("before", NOVEMBER_30 - 13 * HOUR, NOVEMBER_30, tenant="a")])
    given = budgeted(100, job("a/low", 8, run=HOUR, band=LOW), begin=NOVEMBER_30)
    state = simulated(replace(given, usage=tuple(ledger.take_changed(NOVEMBER_30))), ArbiterScheduler())
    assert run_of(state, "a/low").started == pytest.approx(DAY, abs=5)
    assert hours_of(state, "a", "2026-11") == pytest.approx(104)


@pytest.mark.parametrize("seed", [1, 2])
def test_counted_hours_are_those_of_the_pods(seed: int) -> None:
    given = drawn(seed=seed)
    budgets = {each.tenant: (TenantBudget(resource=GPU, hours=1e6),) for each in given.quotas}
    simulation = Simulation(replace(given, budgets=budgets), ArbiterScheduler())
    held: Counter[str] = Counter()
    expected = dict.fromkeys(budgets, 0.0)
    before, is_going = 0.0, True
    while is_going:
        is_going = simulation.step()
        for tenant, amount in held.items():
            expected[tenant] += amount * (simulation.state.now - before) / HOUR
        before, held = simulation.state.now, Counter()
        for gang in simulation.state.gangs.values():
            held[gang.tenant] += sum(pod.shape.amount_of(GPU) // 1000 for pod in gang.pods if pod.state is not WAITING)
    result = make_result("vkgateway", simulation.scenario, simulation.saved_state())
    assert {use.tenant: use.used for use in result.budgets} == pytest.approx(expected)


def test_budget_that_is_not_used_up_changes_nothing() -> None:
    given = drawn()
    budgets = {each.tenant: (TenantBudget(resource=GPU, hours=1e6),) for each in given.quotas}
    assert finished(replace(given, budgets=budgets)).runs == finished(given).runs


@pytest.fixture(scope="module")
def turn_of_month() -> tuple[Scenario, SimulationState]:
    """A scenario in which budgets are used up and renewed, and its state at the end."""
    given = drawn()
    budgets = {each.tenant: (TenantBudget(resource=GPU, hours=10),) for each in given.quotas}
    given = replace(given, budgets=budgets, settings=replace(given.settings, begin=NOVEMBER_30 + DAY - 0.75 * HOUR))
    whole = finished(given)
    assert len({use.month for use in make_result("", given, whole).budgets}) > 1
    return given, whole


@pytest.mark.parametrize("steps", [0, 1, 50, 100, 125])
def test_simulation_with_budgets_continues_from_its_saved_state(
    turn_of_month: tuple[Scenario, SimulationState], steps: int
) -> None:
    given, whole = turn_of_month
    part = Simulation(given, ArbiterScheduler())
    for _ in range(steps):
        assert part.step()
    saved = msgspec.json.decode(msgspec.json.encode(part.saved_state()), type=SimulationState)
    rest = Simulation(given, ArbiterScheduler(), state=saved)
    while rest.step():
        pass
    assert (rest.state.runs, rest.state.used_up) == (whole.runs, whole.used_up)
    for use, other in zip(
        make_result("", given, rest.state).budgets, make_result("", given, whole).budgets, strict=True
    ):
        assert (use.tenant, use.month) == (other.tenant, other.month)
        assert use.used == pytest.approx(other.used)


def test_simulated_kueue_stops_borrowing_too() -> None:
    jobs = (job("a/whole", 8, run=13 * HOUR), job("a/low", 8, at=13 * HOUR, run=HOUR), job("a/more", 8, at=13 * HOUR))
    state = simulated(budgeted(100, *jobs, begin=NOVEMBER_30), Kueue())
    started = sorted(run_of(state, name).started or 0.0 for name in ("a/low", "a/more"))
    assert started[0] == pytest.approx(13 * HOUR, abs=5)
    assert started[1] == pytest.approx(14 * HOUR, abs=200)


def test_private_clusters_have_no_budget() -> None:
    assert not PrivateClusters().arrange(budgeted(0, job("a/gang", 8))).budgets


def test_budgets_are_read_as_in_the_tenant_object() -> None:
    pools = scenario((2, 8), ()).pools
    plain = {"name": "a", "budget": [{"resource": GPU, "hours": 10}, {"resource": GPU, "hours": 5.5, "pool": "pool"}]}
    manifest = {"metadata": {"name": "b"}, "spec": {"budget": [{"resource": GPU, "hours": 0}]}}
    assert read_budgets([[plain, {"name": "c"}], manifest], pools) == {
        "a": (TenantBudget(resource=GPU, hours=10), TenantBudget(resource=GPU, hours=5.5, pool="pool")),
        "b": (TenantBudget(resource=GPU, hours=0),),
    }


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ([{"resource": GPU}], "tenant a: budget: Object missing required field `hours`"),
        ({"resource": GPU, "hours": 1}, "tenant a: budget: "),
        ([{"resource": GPU, "hours": -1}], r"tenant a: budget\[0\].hours: -1 is not a number of hours; use 0 or more"),
        ([{"resource": "cpu", "hours": 1}], "'cpu' has no hours"),
        ([{"resource": GPU, "hours": 1, "pool": "v100"}], "has no pool 'v100'; its pools: pool"),
        ([{"resource": GPU, "hours": 1}, {"resource": GPU, "hours": 2}], "has two budgets"),
    ],
)
def test_invalid_budgets_are_errors(budget: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_budgets([{"name": "a", "budget": budget}], scenario((2, 8), ()).pools)
