"""Tenants whose budget is used up: no pod starts outside their guarantee, and each pod inside it starts as before."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.simulated_cluster import (
    GPU,
    KEY,
    LOW,
    OTHER,
    Cluster,
    make_cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
)
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import Quota

NOVEMBER = 1_795_000_000.0
"""18 November 2026."""


def stopped(quota: Quota) -> Quota:
    return replace(quota, stopped=(GPU,))


def test_gang_beyond_guarantee_waits_with_own_reason() -> None:
    cluster = make_cluster(2, stopped(make_quota("a", 8)))
    cluster.now = NOVEMBER
    cluster.add(make_gang("inside", "a", [8], created=1.0), make_gang("beyond", "a", [4], created=2.0))

    report = reports_by_gang(cluster.cycle())["beyond"]

    assert cluster.running_gangs() == {"inside"}
    assert report.code is PendingReason.BUDGET
    assert report.message == (
        f"the budget of November for {GPU} is used up: only the guarantee is available until 1 December (UTC); "
        f"needs {GPU} 4; in use of the guarantee in pool.compute: {GPU} 8 of 8; a guarantee of {GPU} 12 is enough"
    )
    assert report.place == 0


def test_low_gang_waits_and_reserves_nothing() -> None:
    cluster = make_cluster(1, stopped(make_quota("a", 8)), make_quota("b"))
    cluster.add(make_gang("low", "a", [8], band=LOW, created=1.0), make_gang("other", "b", [8], created=2.0))

    reports = reports_by_gang(cluster.cycle())

    assert cluster.running_gangs() == {"other"}
    assert reports["low"].code is PendingReason.BUDGET


def test_running_borrower_goes_on_and_guarantee_starts_beside_it() -> None:
    cluster = make_cluster(2, make_quota("a", 8))
    cluster.add(make_gang("low", "a", [8], band=LOW))
    cluster.run_for(5)
    cluster.quotas = (stopped(make_quota("a", 8)),)
    cluster.add(make_gang("inside", "a", [8]), make_gang("beyond", "a", [8], band=LOW))
    cluster.run_for(60)
    assert cluster.running_gangs() == {"low", "inside"}


def test_next_month_or_higher_budget_starts_waiting_gangs() -> None:
    cluster = make_cluster(2, stopped(make_quota("a", 8)))
    cluster.add(make_gang("inside", "a", [8]), make_gang("beyond", "a", [8]))
    cluster.cycle()
    cluster.quotas = (make_quota("a", 8),)
    cluster.cycle()
    assert cluster.running_gangs() == {"inside", "beyond"}


def test_gang_that_needs_no_stopped_resource_borrows() -> None:
    cluster = make_cluster(1, replace(make_quota("a", 8), stopped=("example.com/fpga",)))
    cluster.add(make_gang("low", "a", [8], band=LOW))
    cluster.cycle()
    assert cluster.running_gangs() == {"low"}


def test_surplus_waits() -> None:
    cluster = make_cluster(2, stopped(make_quota("a", 4)))
    cluster.add(make_gang("grows", "a", [2, 2, 2], elastic=True, minimum=1))

    report = reports_by_gang(cluster.cycle())["grows"]

    assert len(cluster.placed_nodes("grows")) == 2
    assert report.code is PendingReason.BUDGET


def test_gang_takes_other_pool_in_which_it_may_borrow() -> None:
    quotas = (stopped(make_quota("a")), make_quota("a", pool=OTHER))
    cluster = Cluster([make_node("n0")], quotas, more=[make_node("m0")])
    cluster.add(make_gang("low", "a", [8], band=LOW, pools=(KEY, OTHER)))
    cluster.cycle()
    assert set(cluster.placed_nodes("low").values()) == {"m0"}


def test_plan_to_borrow_is_dropped_and_its_victims_stay() -> None:
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.add(make_gang("low", "a", [8, 8], band=LOW))
    cluster.run_for(5)
    cluster.add(make_gang("higher", "a", [8, 8]))
    assert cluster.cycle().evicts
    cluster.quotas = (stopped(make_quota("a")), make_quota("b"))
    decisions = cluster.cycle()
    assert not decisions.plans
    assert {reprieve.gang for reprieve in decisions.reprieves} == {"low"}
    cluster.run_for(60)
    assert cluster.running_gangs() == {"low"}


def test_higher_gang_takes_over_cells_of_lower_one_where_nothing_is_free() -> None:
    cluster = make_cluster(1, stopped(make_quota("a", 8)), make_quota("b"))
    cluster.add(make_gang("lower", "a", [8]))
    cluster.run_for(5)
    cluster.add(make_gang("higher", "a", [8], priority=5))
    cluster.run_for(60)
    assert cluster.running_gangs() == {"higher"}
    assert cluster.borrowed_marks("higher") == {False}


def test_higher_gang_waits_for_cells_while_capacity_is_free() -> None:
    cluster = make_cluster(2, stopped(make_quota("a", 8)), make_quota("b"))
    cluster.add(make_gang("lower", "a", [8]))
    cluster.run_for(5)
    cluster.add(make_gang("higher", "a", [8], priority=5))
    cluster.run_for(60)
    assert cluster.running_gangs() == {"lower"}
    assert reports_by_gang(cluster.cycle())["higher"].code is PendingReason.BUDGET
    del cluster.gangs["lower"]
    cluster.cycle()
    assert cluster.running_gangs() == {"higher"}


def test_borrower_is_promoted() -> None:
    cluster = make_cluster(2, make_quota("a", 8))
    cluster.add(make_gang("first", "a", [8]), make_gang("second", "a", [8]))
    cluster.cycle()
    cluster.quotas = (stopped(make_quota("a", 8)),)
    del cluster.gangs["first"]
    cluster.cycle()
    assert cluster.borrowed_marks("second") == {False}
