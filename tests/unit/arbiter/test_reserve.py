"""Reserve of a pool: borrowing leaves units idle, guaranteed work may use them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.placed import runs
from tests.unit.arbiter.sim import GPU, KEY, LOW, OTHER, Cluster, apart, gang, held, node, quota
from vkgateway.arbiter.decisions import PendingReason
from vkgateway.arbiter.snapshot import GUARANTEED, Band, Pool, PoolKey


def two_nodes(reserve: int = 4) -> Cluster:
    return Cluster([node("n0"), node("n1")], [quota("a", 8), quota("b")], reserve=reserve)


def units(there: Cluster, key: PoolKey = KEY) -> int:
    pods = [pod for each in there.gangs.values() for pod in each.pods if pod.pool == key]
    return sum(pod.shape.amount_of(GPU) for pod in pods) // 1000


@pytest.mark.parametrize("band", [GUARANTEED, LOW])
def test_borrowing_leaves_reserve_idle(band: Band) -> None:
    there = two_nodes()
    there.add(*(gang(f"g{number}", "b", [2], band=band, created=900.0 + number) for number in range(8)))
    decisions = there.cycle()

    assert there.running() == {f"g{number}" for number in range(6)}, "what leaves the reserve starts"
    hold = held(decisions)["g6"]
    assert hold.code is PendingReason.ROOM
    assert "pool.compute keeps nvidia.com/gpu 4 idle for guarantees" in hold.message
    assert hold.numbers["reserve"] == hold.numbers["idle"] == 4.0


def test_small_gang_starts_while_larger_gang_waits_for_reserve() -> None:
    there = two_nodes()
    there.add(gang("large", "b", [4, 4, 4, 2], band=LOW, created=900.0), gang("small", "b", [2], band=LOW))
    there.cycle()
    assert there.running() == {"small"}


def test_guaranteed_gang_uses_reserve() -> None:
    there = two_nodes()
    there.add(gang("lent", "b", [4, 4, 4], band=LOW))
    there.cycle()
    there.add(*(gang(f"g{number}", "a", [1]) for number in range(4)))
    decisions = there.cycle()

    assert not decisions.evicts
    assert {f"g{number}" for number in range(4)} <= there.running()
    assert there.borrowed("g3") == {False}

    there.add(gang("more", "b", [1], band=LOW))
    there.cycle()
    assert "more" not in there.running(), "nothing borrows while the reserve is short"
    for number in range(4):
        there.gangs.pop(f"g{number}")
    there.cycle()
    assert "more" not in there.running(), "it would leave three"
    there.gangs.pop("lent")
    there.cycle()
    assert "more" in there.running()


@pytest.mark.parametrize(("reserve", "on"), [(0, "n0"), (1, "n1")])
def test_rest_of_used_cells_is_lent_last(reserve: int, on: str) -> None:
    there = two_nodes(reserve)
    there.add(runs(gang("one", "a", [1], created=900.0), ["n0"], borrowed=False))
    there.add(gang("low", "b", [1], band=LOW))
    there.cycle()
    assert set(there.placed("low").values()) == {on}

    there.add(*(gang(f"low{number}", "b", [1], band=LOW) for number in range(20)))
    there.cycle()
    assert units(there) == 16 - reserve, "it is lent where nothing else is left"


def test_reserve_does_not_affect_pods_without_units() -> None:
    there = two_nodes(reserve=16)
    there.add(gang("host", "b", [0, 0], band=LOW), gang("low", "b", [1], band=LOW))
    decisions = there.cycle()
    assert there.running() == {"host"}
    assert held(decisions)["low"].code is PendingReason.INFEASIBLE


def test_elastic_gang_grows_up_to_reserve() -> None:
    there = two_nodes()
    there.add(gang("grows", "b", [2] * 8, band=LOW, minimum=1, elastic=True))
    decisions = there.cycle()
    assert units(there) == 12
    assert held(decisions)["grows"].message == (
        "runs with 6 of 8 pods; pool.compute keeps nvidia.com/gpu 4 idle for guarantees"
    )


def test_surplus_is_reclaimed_for_gang_blocked_by_reserve() -> None:
    there = two_nodes()
    there.add(gang("grows", "b", [2] * 8, band=LOW, minimum=1, elastic=True))
    there.cycle()
    there.add(gang("next", "c", [4], band=LOW))
    there.quotas = (*there.quotas, quota("c"))
    decisions = there.cycle()

    assert [len(evict.pods) for evict in decisions.evicts] == [2], "as much as it takes of the reserve"
    there.settle(20)
    assert "next" in there.running()
    assert units(there) == 12


def test_forecast_respects_reserve() -> None:
    there = two_nodes()
    there.add(gang("lent", "b", [4, 4, 4], band=LOW, run_limit=600.0))
    there.cycle()
    there.add(gang("next", "b", [4], band=LOW))
    hold = held(there.cycle())["next"]
    assert hold.earliest == there.now + 600.0


def test_later_gangs_leave_reserve_to_first_waiting_gang() -> None:
    """Otherwise they would use up the freed capacity again and again."""
    there = two_nodes()
    there.add(gang("lent", "b", [8], band=LOW, run_limit=600.0))
    there.cycle()
    there.add(gang("first", "b", [8, 2], created=900.0))
    there.add(gang("long", "b", [4]), gang("short", "b", [4], run_limit=60.0))
    decisions = there.cycle()
    assert there.running() == {"lent", "short"}
    assert held(decisions)["long"].code is PendingReason.ROOM

    there.gangs.pop("short")
    assert held(there.cycle())["long"].code is PendingReason.RESERVATION


def test_gang_too_large_for_reserve_is_infeasible() -> None:
    there = two_nodes(reserve=9)
    there.add(gang("large", "b", [8], band=LOW), gang("inside", "a", [8]))
    decisions = there.cycle()
    assert there.running() == {"inside"}
    assert held(decisions)["large"].code is PendingReason.INFEASIBLE
    assert "keeps nvidia.com/gpu 9 idle for guarantees" in held(decisions)["large"].message


def test_preemption_uses_tenant_capacity_not_reserve() -> None:
    there = two_nodes()
    there.add(runs(gang("old", "b", [4, 4, 4], band=LOW, created=800.0), ["n0", "n0", "n1"], borrowed=True))
    there.add(gang("high", "b", [4], band=LOW, priority=5))
    decisions = there.cycle()
    assert [evict.gang for evict in decisions.evicts] == ["old"]
    there.settle(16)
    assert "high" in there.running()


def test_preemption_need_not_refill_used_reserve() -> None:
    there = Cluster([node("n0"), node("n1")], [quota("a", 16), quota("b")], reserve=4)
    there.add(runs(gang("old", "b", [4], band=LOW, created=800.0), ["n0"], borrowed=True))
    there.add(runs(gang("inside", "a", [4, 8], created=800.0), ["n0", "n1"], borrowed=False))
    there.add(gang("high", "b", [4], band=LOW, priority=5))
    there.settle(16)
    assert "high" in there.running()


@pytest.mark.parametrize(("percent", "idle"), [(10, 1), (5, 0), (50, 8), (100, 16)])
def test_percent_applies_to_usable_nodes_rounded_down(percent: int, idle: int) -> None:
    pool = Pool(key=KEY, nodes=(node("n0"), node("n1"), node("n2", usable=False)), governed=(GPU,))
    assert replace(pool, reserve_percent=percent).idle_reserve == idle * 1000
    assert replace(pool, reserve_percent=percent, governed=()).idle_reserve == 0


def test_percent_follows_node_changes() -> None:
    there = two_nodes(reserve=0)
    there.pool = replace(there.pool, reserve_percent=50)
    there.add(*(gang(f"g{number}", "b", [4], band=LOW) for number in range(4)))
    there.cycle()
    assert units(there) == 8
    there.pool = replace(there.pool, reserve_percent=25)
    there.cycle()
    assert units(there) == 12


def test_parts_of_gang_leave_reserve_of_each_pool() -> None:
    quotas = [quota(tenant, pool=key) for tenant in ("a", "b") for key in (KEY, OTHER)]
    there = Cluster([node("n0")], quotas, more=[node("m0")], reserve=4)
    there.add(gang("one", "a", [1], pools=(OTHER,)), apart(gang("both", "a", [4, 4], band=LOW), (KEY,), (OTHER,)))
    decisions = there.cycle()
    assert there.running() == {"one"}
    message = held(decisions)["both"].message
    assert "in other.compute (fits, but other.compute keeps nvidia.com/gpu 4 idle for guarantees)" in message

    there.add(apart(gang("fits", "b", [4, 3], band=LOW), (KEY,), (OTHER,)))
    there.cycle()
    assert there.running() == {"one", "fits"}
