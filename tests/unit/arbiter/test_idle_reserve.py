"""Reserve of a pool: borrowing leaves units idle, guaranteed work may use them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import (
    GPU,
    KEY,
    LOW,
    OTHER,
    Cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
    with_pod_pools,
)
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import GUARANTEED, Band, Pool, PoolKey


def two_node_cluster(reserve: int = 4) -> Cluster:
    return Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8), make_quota("b")], reserve=reserve)


def used_units(cluster: Cluster, key: PoolKey = KEY) -> int:
    pods = [pod for each in cluster.gangs.values() for pod in each.pods if pod.pool == key]
    return sum(pod.shape.amount_of(GPU) for pod in pods) // 1000


@pytest.mark.parametrize("band", [GUARANTEED, LOW])
def test_borrowing_leaves_reserve_idle(band: Band) -> None:
    cluster = two_node_cluster()
    cluster.add(*(make_gang(f"g{number}", "b", [2], band=band, created=900.0 + number) for number in range(8)))
    decisions = cluster.cycle()

    assert cluster.running_gangs() == {f"g{number}" for number in range(6)}, "what leaves the reserve starts"
    report = reports_by_gang(decisions)["g6"]
    assert report.code is PendingReason.ROOM
    assert "pool.compute keeps nvidia.com/gpu 4 idle for guarantees" in report.message
    assert report.numbers["reserve"] == report.numbers["idle"] == 4.0


def test_small_gang_starts_while_larger_gang_waits_for_reserve() -> None:
    cluster = two_node_cluster()
    cluster.add(make_gang("large", "b", [4, 4, 4, 2], band=LOW, created=900.0), make_gang("small", "b", [2], band=LOW))
    cluster.cycle()
    assert cluster.running_gangs() == {"small"}


def test_guaranteed_gang_uses_reserve() -> None:
    cluster = two_node_cluster()
    cluster.add(make_gang("lent", "b", [4, 4, 4], band=LOW))
    cluster.cycle()
    cluster.add(*(make_gang(f"g{number}", "a", [1]) for number in range(4)))
    decisions = cluster.cycle()

    assert not decisions.evicts
    assert {f"g{number}" for number in range(4)} <= cluster.running_gangs()
    assert cluster.borrowed_marks("g3") == {False}

    cluster.add(make_gang("more", "b", [1], band=LOW))
    cluster.cycle()
    assert "more" not in cluster.running_gangs(), "nothing borrows while the reserve is short"
    for number in range(4):
        cluster.gangs.pop(f"g{number}")
    cluster.cycle()
    assert "more" not in cluster.running_gangs(), "it would leave three"
    cluster.gangs.pop("lent")
    cluster.cycle()
    assert "more" in cluster.running_gangs()


@pytest.mark.parametrize(("reserve", "on"), [(0, "n0"), (1, "n1")])
def test_rest_of_used_cells_is_lent_last(reserve: int, on: str) -> None:
    cluster = two_node_cluster(reserve)
    cluster.add(place_gang(make_gang("one", "a", [1], created=900.0), ["n0"], borrowed=False))
    cluster.add(make_gang("low", "b", [1], band=LOW))
    cluster.cycle()
    assert set(cluster.placed_nodes("low").values()) == {on}

    cluster.add(*(make_gang(f"low{number}", "b", [1], band=LOW) for number in range(20)))
    cluster.cycle()
    assert used_units(cluster) == 16 - reserve, "it is lent where nothing else is left"


def test_reserve_does_not_affect_pods_without_units() -> None:
    cluster = two_node_cluster(reserve=16)
    cluster.add(make_gang("host", "b", [0, 0], band=LOW), make_gang("low", "b", [1], band=LOW))
    decisions = cluster.cycle()
    assert cluster.running_gangs() == {"host"}
    assert reports_by_gang(decisions)["low"].code is PendingReason.INFEASIBLE


def test_elastic_gang_grows_up_to_reserve() -> None:
    cluster = two_node_cluster()
    cluster.add(make_gang("grows", "b", [2] * 8, band=LOW, minimum=1, elastic=True))
    decisions = cluster.cycle()
    assert used_units(cluster) == 12
    assert reports_by_gang(decisions)["grows"].message == (
        "runs with 6 of 8 pods; pool.compute keeps nvidia.com/gpu 4 idle for guarantees"
    )


def test_surplus_is_reclaimed_for_gang_blocked_by_reserve() -> None:
    cluster = two_node_cluster()
    cluster.add(make_gang("grows", "b", [2] * 8, band=LOW, minimum=1, elastic=True))
    cluster.cycle()
    cluster.add(make_gang("next", "c", [4], band=LOW))
    cluster.quotas = (*cluster.quotas, make_quota("c"))
    decisions = cluster.cycle()

    assert [len(evict.pods) for evict in decisions.evicts] == [2], "as much as it takes of the reserve"
    cluster.run_for(20)
    assert "next" in cluster.running_gangs()
    assert used_units(cluster) == 12


def test_forecast_respects_reserve() -> None:
    cluster = two_node_cluster()
    cluster.add(make_gang("lent", "b", [4, 4, 4], band=LOW, run_limit=600.0))
    cluster.cycle()
    cluster.add(make_gang("next", "b", [4], band=LOW))
    report = reports_by_gang(cluster.cycle())["next"]
    assert report.earliest == cluster.now + 600.0


def test_later_gangs_leave_reserve_to_first_waiting_gang() -> None:
    """Otherwise they would use up the freed capacity again and again."""
    cluster = two_node_cluster()
    cluster.keep_low()
    cluster.add(make_gang("lent", "b", [8], band=LOW, run_limit=600.0))
    cluster.cycle()
    cluster.add(make_gang("first", "b", [8, 2], created=900.0))
    cluster.add(make_gang("long", "b", [4]), make_gang("short", "b", [4], run_limit=60.0))
    decisions = cluster.cycle()
    assert cluster.running_gangs() == {"lent", "short"}
    assert reports_by_gang(decisions)["long"].code is PendingReason.ROOM

    cluster.gangs.pop("short")
    assert reports_by_gang(cluster.cycle())["long"].code is PendingReason.RESERVATION


def test_gang_too_large_for_reserve_is_infeasible() -> None:
    cluster = two_node_cluster(reserve=9)
    cluster.add(make_gang("large", "b", [8], band=LOW), make_gang("inside", "a", [8]))
    decisions = cluster.cycle()
    assert cluster.running_gangs() == {"inside"}
    assert reports_by_gang(decisions)["large"].code is PendingReason.INFEASIBLE
    assert "keeps nvidia.com/gpu 9 idle for guarantees" in reports_by_gang(decisions)["large"].message


def test_preemption_uses_tenant_capacity_not_reserve() -> None:
    cluster = two_node_cluster()
    cluster.add(
        place_gang(make_gang("old", "b", [4, 4, 4], band=LOW, created=800.0), ["n0", "n0", "n1"], borrowed=True)
    )
    cluster.add(make_gang("high", "b", [4], band=LOW, priority=5))
    decisions = cluster.cycle()
    assert [evict.gang for evict in decisions.evicts] == ["old"]
    cluster.run_for(16)
    assert "high" in cluster.running_gangs()


def test_preemption_need_not_refill_used_reserve() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 16), make_quota("b")], reserve=4)
    cluster.add(place_gang(make_gang("old", "b", [4], band=LOW, created=800.0), ["n0"], borrowed=True))
    cluster.add(place_gang(make_gang("inside", "a", [4, 8], created=800.0), ["n0", "n1"], borrowed=False))
    cluster.add(make_gang("high", "b", [4], band=LOW, priority=5))
    cluster.run_for(16)
    assert "high" in cluster.running_gangs()


@pytest.mark.parametrize(("percent", "idle"), [(10, 1), (5, 0), (50, 8), (100, 16)])
def test_percent_applies_to_usable_nodes_rounded_down(percent: int, idle: int) -> None:
    pool = Pool(key=KEY, nodes=(make_node("n0"), make_node("n1"), make_node("n2", usable=False)), governed=(GPU,))
    assert replace(pool, reserve_percent=percent).idle_reserve == idle * 1000
    assert replace(pool, reserve_percent=percent, governed=()).idle_reserve == 0


def test_percent_follows_node_changes() -> None:
    cluster = two_node_cluster(reserve=0)
    cluster.pool = replace(cluster.pool, reserve_percent=50)
    cluster.add(*(make_gang(f"g{number}", "b", [4], band=LOW) for number in range(4)))
    cluster.cycle()
    assert used_units(cluster) == 8
    cluster.pool = replace(cluster.pool, reserve_percent=25)
    cluster.cycle()
    assert used_units(cluster) == 12


def test_parts_of_gang_leave_reserve_of_each_pool() -> None:
    quotas = [make_quota(tenant, pool=key) for tenant in ("a", "b") for key in (KEY, OTHER)]
    cluster = Cluster([make_node("n0")], quotas, more=[make_node("m0")], reserve=4)
    cluster.add(
        make_gang("one", "a", [1], pools=(OTHER,)),
        with_pod_pools(make_gang("both", "a", [4, 4], band=LOW), (KEY,), (OTHER,)),
    )
    decisions = cluster.cycle()
    assert cluster.running_gangs() == {"one"}
    message = reports_by_gang(decisions)["both"].message
    assert "in other.compute (fits, but other.compute keeps nvidia.com/gpu 4 idle for guarantees)" in message

    cluster.add(with_pod_pools(make_gang("fits", "b", [4, 3], band=LOW), (KEY,), (OTHER,)))
    cluster.cycle()
    assert cluster.running_gangs() == {"one", "fits"}
