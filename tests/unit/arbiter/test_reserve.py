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
from vkgateway.arbiter.decisions import PendingReason
from vkgateway.arbiter.snapshot import GUARANTEED, Band, Pool, PoolKey


def two_nodes(reserve: int = 4) -> Cluster:
    return Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8), make_quota("b")], reserve=reserve)


def units(there: Cluster, key: PoolKey = KEY) -> int:
    pods = [pod for each in there.gangs.values() for pod in each.pods if pod.pool == key]
    return sum(pod.shape.amount_of(GPU) for pod in pods) // 1000


@pytest.mark.parametrize("band", [GUARANTEED, LOW])
def test_borrowing_leaves_reserve_idle(band: Band) -> None:
    there = two_nodes()
    there.add(*(make_gang(f"g{number}", "b", [2], band=band, created=900.0 + number) for number in range(8)))
    decisions = there.cycle()

    assert there.running_gangs() == {f"g{number}" for number in range(6)}, "what leaves the reserve starts"
    hold = reports_by_gang(decisions)["g6"]
    assert hold.code is PendingReason.ROOM
    assert "pool.compute keeps nvidia.com/gpu 4 idle for guarantees" in hold.message
    assert hold.numbers["reserve"] == hold.numbers["idle"] == 4.0


def test_small_gang_starts_while_larger_gang_waits_for_reserve() -> None:
    there = two_nodes()
    there.add(make_gang("large", "b", [4, 4, 4, 2], band=LOW, created=900.0), make_gang("small", "b", [2], band=LOW))
    there.cycle()
    assert there.running_gangs() == {"small"}


def test_guaranteed_gang_uses_reserve() -> None:
    there = two_nodes()
    there.add(make_gang("lent", "b", [4, 4, 4], band=LOW))
    there.cycle()
    there.add(*(make_gang(f"g{number}", "a", [1]) for number in range(4)))
    decisions = there.cycle()

    assert not decisions.evicts
    assert {f"g{number}" for number in range(4)} <= there.running_gangs()
    assert there.borrowed_marks("g3") == {False}

    there.add(make_gang("more", "b", [1], band=LOW))
    there.cycle()
    assert "more" not in there.running_gangs(), "nothing borrows while the reserve is short"
    for number in range(4):
        there.gangs.pop(f"g{number}")
    there.cycle()
    assert "more" not in there.running_gangs(), "it would leave three"
    there.gangs.pop("lent")
    there.cycle()
    assert "more" in there.running_gangs()


@pytest.mark.parametrize(("reserve", "on"), [(0, "n0"), (1, "n1")])
def test_rest_of_used_cells_is_lent_last(reserve: int, on: str) -> None:
    there = two_nodes(reserve)
    there.add(place_gang(make_gang("one", "a", [1], created=900.0), ["n0"], borrowed=False))
    there.add(make_gang("low", "b", [1], band=LOW))
    there.cycle()
    assert set(there.placed_nodes("low").values()) == {on}

    there.add(*(make_gang(f"low{number}", "b", [1], band=LOW) for number in range(20)))
    there.cycle()
    assert units(there) == 16 - reserve, "it is lent where nothing else is left"


def test_reserve_does_not_affect_pods_without_units() -> None:
    there = two_nodes(reserve=16)
    there.add(make_gang("host", "b", [0, 0], band=LOW), make_gang("low", "b", [1], band=LOW))
    decisions = there.cycle()
    assert there.running_gangs() == {"host"}
    assert reports_by_gang(decisions)["low"].code is PendingReason.INFEASIBLE


def test_elastic_gang_grows_up_to_reserve() -> None:
    there = two_nodes()
    there.add(make_gang("grows", "b", [2] * 8, band=LOW, minimum=1, elastic=True))
    decisions = there.cycle()
    assert units(there) == 12
    assert reports_by_gang(decisions)["grows"].message == (
        "runs with 6 of 8 pods; pool.compute keeps nvidia.com/gpu 4 idle for guarantees"
    )


def test_surplus_is_reclaimed_for_gang_blocked_by_reserve() -> None:
    there = two_nodes()
    there.add(make_gang("grows", "b", [2] * 8, band=LOW, minimum=1, elastic=True))
    there.cycle()
    there.add(make_gang("next", "c", [4], band=LOW))
    there.quotas = (*there.quotas, make_quota("c"))
    decisions = there.cycle()

    assert [len(evict.pods) for evict in decisions.evicts] == [2], "as much as it takes of the reserve"
    there.run_for(20)
    assert "next" in there.running_gangs()
    assert units(there) == 12


def test_forecast_respects_reserve() -> None:
    there = two_nodes()
    there.add(make_gang("lent", "b", [4, 4, 4], band=LOW, run_limit=600.0))
    there.cycle()
    there.add(make_gang("next", "b", [4], band=LOW))
    hold = reports_by_gang(there.cycle())["next"]
    assert hold.earliest == there.now + 600.0


def test_later_gangs_leave_reserve_to_first_waiting_gang() -> None:
    """Otherwise they would use up the freed capacity again and again."""
    there = two_nodes()
    there.add(make_gang("lent", "b", [8], band=LOW, run_limit=600.0))
    there.cycle()
    there.add(make_gang("first", "b", [8, 2], created=900.0))
    there.add(make_gang("long", "b", [4]), make_gang("short", "b", [4], run_limit=60.0))
    decisions = there.cycle()
    assert there.running_gangs() == {"lent", "short"}
    assert reports_by_gang(decisions)["long"].code is PendingReason.ROOM

    there.gangs.pop("short")
    assert reports_by_gang(there.cycle())["long"].code is PendingReason.RESERVATION


def test_gang_too_large_for_reserve_is_infeasible() -> None:
    there = two_nodes(reserve=9)
    there.add(make_gang("large", "b", [8], band=LOW), make_gang("inside", "a", [8]))
    decisions = there.cycle()
    assert there.running_gangs() == {"inside"}
    assert reports_by_gang(decisions)["large"].code is PendingReason.INFEASIBLE
    assert "keeps nvidia.com/gpu 9 idle for guarantees" in reports_by_gang(decisions)["large"].message


def test_preemption_uses_tenant_capacity_not_reserve() -> None:
    there = two_nodes()
    there.add(place_gang(make_gang("old", "b", [4, 4, 4], band=LOW, created=800.0), ["n0", "n0", "n1"], borrowed=True))
    there.add(make_gang("high", "b", [4], band=LOW, priority=5))
    decisions = there.cycle()
    assert [evict.gang for evict in decisions.evicts] == ["old"]
    there.run_for(16)
    assert "high" in there.running_gangs()


def test_preemption_need_not_refill_used_reserve() -> None:
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 16), make_quota("b")], reserve=4)
    there.add(place_gang(make_gang("old", "b", [4], band=LOW, created=800.0), ["n0"], borrowed=True))
    there.add(place_gang(make_gang("inside", "a", [4, 8], created=800.0), ["n0", "n1"], borrowed=False))
    there.add(make_gang("high", "b", [4], band=LOW, priority=5))
    there.run_for(16)
    assert "high" in there.running_gangs()


@pytest.mark.parametrize(("percent", "idle"), [(10, 1), (5, 0), (50, 8), (100, 16)])
def test_percent_applies_to_usable_nodes_rounded_down(percent: int, idle: int) -> None:
    pool = Pool(key=KEY, nodes=(make_node("n0"), make_node("n1"), make_node("n2", usable=False)), governed=(GPU,))
    assert replace(pool, reserve_percent=percent).idle_reserve == idle * 1000
    assert replace(pool, reserve_percent=percent, governed=()).idle_reserve == 0


def test_percent_follows_node_changes() -> None:
    there = two_nodes(reserve=0)
    there.pool = replace(there.pool, reserve_percent=50)
    there.add(*(make_gang(f"g{number}", "b", [4], band=LOW) for number in range(4)))
    there.cycle()
    assert units(there) == 8
    there.pool = replace(there.pool, reserve_percent=25)
    there.cycle()
    assert units(there) == 12


def test_parts_of_gang_leave_reserve_of_each_pool() -> None:
    quotas = [make_quota(tenant, pool=key) for tenant in ("a", "b") for key in (KEY, OTHER)]
    there = Cluster([make_node("n0")], quotas, more=[make_node("m0")], reserve=4)
    there.add(
        make_gang("one", "a", [1], pools=(OTHER,)),
        with_pod_pools(make_gang("both", "a", [4, 4], band=LOW), (KEY,), (OTHER,)),
    )
    decisions = there.cycle()
    assert there.running_gangs() == {"one"}
    message = reports_by_gang(decisions)["both"].message
    assert "in other.compute (fits, but other.compute keeps nvidia.com/gpu 4 idle for guarantees)" in message

    there.add(with_pod_pools(make_gang("fits", "b", [4, 3], band=LOW), (KEY,), (OTHER,)))
    there.cycle()
    assert there.running_gangs() == {"one", "fits"}
