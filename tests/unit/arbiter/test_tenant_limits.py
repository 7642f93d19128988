"""Limits of tenants: gangs beyond them wait, and only gangs of the same tenant are evicted for them."""

from __future__ import annotations

from tests.unit.arbiter.sim import (
    GPU,
    LOW,
    gang,
    held,
    make_cluster,
    quota,
)
from vkgateway.arbiter.decisions import PendingReason


def test_gang_beyond_limit_waits_for_quota() -> None:
    there = make_cluster(2, quota("a", limit=8))
    there.add(gang("one", "a", [8], created=1.0), gang("two", "a", [4], created=2.0))

    hold = held(there.cycle())["two"]

    assert there.running() == {"one"}
    assert hold.code is PendingReason.QUOTA
    assert hold.message == (f"needs {GPU} 4; in use in pool.compute: {GPU} 8; limit: {GPU} 8")
    assert hold.numbers[f"limit {GPU}"] == 8


def test_gang_beyond_whole_limit_is_reported() -> None:
    there = make_cluster(2, quota("a", limit=8))
    there.add(gang("runs", "a", [4]), gang("wide", "a", [8, 4]))

    hold = held(there.cycle())["wide"]

    assert hold.code is PendingReason.QUOTA
    assert hold.message == f"needs {GPU} 12, more than the whole limit in pool.compute: {GPU} 8"
    assert hold.place == 0


def test_gang_without_quota_waits() -> None:
    there = make_cluster(1, quota("a"))
    there.add(gang("stray", "b", [1]))

    assert held(there.cycle())["stray"].code is PendingReason.QUOTA


def test_own_low_gang_is_evicted_at_limit() -> None:
    there = make_cluster(3, quota("a", 8, limit=16), quota("b"))
    there.add(gang("low1", "a", [8], band=LOW), gang("low2", "a", [8], band=LOW, restart_cost=50.0))
    there.cycle()
    assert len(there.running()) == 2
    came = there.now
    there.add(gang("high", "a", [8]))

    [evict] = there.cycle().evicts

    assert (evict.gang, evict.makes_room_for) == ("low1", "high")
    there.settle(20)
    assert there.started["high"] == came + 15
    assert there.running() == {"high", "low2"}


def test_other_tenants_are_not_evicted_for_limit() -> None:
    there = make_cluster(3, quota("a", 8, limit=8), quota("b"))
    there.add(gang("low", "a", [4, 4], band=LOW), *(gang(f"other{index}", "b", [8], band=LOW) for index in range(2)))
    there.cycle()
    there.add(gang("high", "a", [8]))

    assert [evict.gang for evict in there.cycle().evicts] == ["low"]


def test_limit_evicts_no_more_than_needed() -> None:
    there = make_cluster(2, quota("a", 4, limit=10), quota("b"))
    there.add(*(gang(f"low{index}", "a", [2], band=LOW, restart_cost=10.0 * index) for index in range(5)))
    there.cycle()
    there.add(gang("high", "a", [4]))

    assert [evict.gang for evict in there.cycle().evicts] == ["low0", "low1"]
