"""Low work yields to the guaranteed band of every tenant, in queue order, or to guarantees alone."""

from __future__ import annotations

import pytest

from tests.unit.arbiter.simulated_cluster import (
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


def cluster_with_low_work() -> Cluster:
    """Two nodes with low work of b; neither tenant has a guarantee."""
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.add(make_gang("old", "b", [8], band=LOW, created=1.0))
    cluster.run_for(30)
    cluster.add(make_gang("young", "b", [8], band=LOW))
    cluster.run_for(5)
    return cluster


def test_borrowing_gang_evicts_the_low_work_that_loses_least() -> None:
    cluster = cluster_with_low_work()
    cluster.add(make_gang("high", "a", [8]))

    decisions = cluster.cycle()

    assert [(each.gang, each.makes_room_for) for each in decisions.evicts] == [("young", "high")]
    assert decisions.plans["high"].borrowed
    cluster.run_for(20)
    assert cluster.borrowed_marks("high") == {True}


def test_low_work_of_the_own_tenant_yields_too() -> None:
    cluster = cluster_with_low_work()
    cluster.add(make_gang("high", "b", [8]))
    assert [each.gang for each in cluster.cycle().evicts] == ["young"]


@pytest.mark.parametrize("field", ["guarantee", "low"])
def test_low_work_stays(field: str) -> None:
    """It stays where the pool says so, and for other low work."""
    cluster = cluster_with_low_work()
    if field == "guarantee":
        cluster.keep_low()
    cluster.add(make_gang("high", "a", [8], **({"band": LOW} if field == "low" else {})))

    decisions = cluster.cycle()

    assert not decisions.evicts
    assert reports_by_gang(decisions)["high"].code is PendingReason.ROOM


def test_borrowing_gang_of_the_guaranteed_band_stays() -> None:
    cluster = make_cluster(1, make_quota("a"), make_quota("b"))
    cluster.add(make_gang("runs", "b", [8]))
    cluster.cycle()
    cluster.add(make_gang("high", "a", [8], priority=9))
    assert not cluster.cycle().evicts


def test_low_work_does_not_start_where_a_gang_of_the_guaranteed_band_takes_its_place() -> None:
    """The low gang comes first in the queue, since its tenant uses less."""
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.add(make_gang("runs", "a", [8]))
    cluster.cycle()
    cluster.add(make_gang("low", "b", [8], band=LOW), make_gang("high", "a", [8]))

    decisions = cluster.cycle()

    assert not decisions.evicts
    assert cluster.running_gangs() == {"runs", "high"}


def test_plan_is_kept_until_the_low_work_has_terminated() -> None:
    cluster = cluster_with_low_work()
    cluster.add(make_gang("high", "a", [8]))
    cluster.cycle()
    cluster.add(make_gang("later", "b", [4], band=LOW))
    for _ in range(20):
        decisions = cluster.cycle()
        assert not decisions.reprieves
        cluster.advance(1)
    assert "high" in cluster.running_gangs()
    assert "later" not in cluster.running_gangs()


def test_aged_low_gang_whose_place_is_taken_starts_elsewhere_in_the_same_cycle() -> None:
    quotas = [make_quota(name, pool=key) for name in "ab" for key in (KEY, OTHER)]
    cluster = Cluster((make_node("n0"),), quotas, more=(make_node("m0"),))
    cluster.add(
        make_gang("low", "a", [8], band=LOW, pools=(KEY, OTHER), created=cluster.now - cluster.policy.age_cap),
        make_gang("high", "b", [8], created=cluster.now - 1),
    )

    decisions = cluster.cycle()

    assert {admit.gang: admit.pool for admit in decisions.admits} == {"high": KEY, "low": OTHER}
