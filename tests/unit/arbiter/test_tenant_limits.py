"""Limits of tenants: gangs beyond them wait, and only gangs of the same tenant are evicted for them."""

from __future__ import annotations

from tests.unit.arbiter.simulated_cluster import (
    GPU,
    LOW,
    make_cluster,
    make_gang,
    make_quota,
    reports_by_gang,
)
from vkgateway.arbiter.decisions import PendingReason


def test_gang_beyond_limit_waits_for_quota() -> None:
    there = make_cluster(2, make_quota("a", limit=8))
    there.add(make_gang("one", "a", [8], created=1.0), make_gang("two", "a", [4], created=2.0))

    hold = reports_by_gang(there.cycle())["two"]

    assert there.running_gangs() == {"one"}
    assert hold.code is PendingReason.QUOTA
    assert hold.message == (f"needs {GPU} 4; in use in pool.compute: {GPU} 8; limit: {GPU} 8")
    assert hold.numbers[f"limit {GPU}"] == 8


def test_gang_beyond_whole_limit_is_reported() -> None:
    there = make_cluster(2, make_quota("a", limit=8))
    there.add(make_gang("runs", "a", [4]), make_gang("wide", "a", [8, 4]))

    hold = reports_by_gang(there.cycle())["wide"]

    assert hold.code is PendingReason.QUOTA
    assert hold.message == f"needs {GPU} 12, more than the whole limit in pool.compute: {GPU} 8"
    assert hold.place == 0


def test_gang_without_quota_waits() -> None:
    there = make_cluster(1, make_quota("a"))
    there.add(make_gang("stray", "b", [1]))

    assert reports_by_gang(there.cycle())["stray"].code is PendingReason.QUOTA


def test_own_low_gang_is_evicted_at_limit() -> None:
    there = make_cluster(3, make_quota("a", 8, limit=16), make_quota("b"))
    there.add(make_gang("low1", "a", [8], band=LOW), make_gang("low2", "a", [8], band=LOW, restart_cost=50.0))
    there.cycle()
    assert len(there.running_gangs()) == 2
    came = there.now
    there.add(make_gang("high", "a", [8]))

    [evict] = there.cycle().evicts

    assert (evict.gang, evict.makes_room_for) == ("low1", "high")
    there.run_for(20)
    assert there.start_times["high"] == came + 15
    assert there.running_gangs() == {"high", "low2"}


def test_other_tenants_are_not_evicted_for_limit() -> None:
    there = make_cluster(3, make_quota("a", 8, limit=8), make_quota("b"))
    there.add(
        make_gang("low", "a", [4, 4], band=LOW), *(make_gang(f"other{index}", "b", [8], band=LOW) for index in range(2))
    )
    there.cycle()
    there.add(make_gang("high", "a", [8]))

    assert [evict.gang for evict in there.cycle().evicts] == ["low"]


def test_limit_evicts_no_more_than_needed() -> None:
    there = make_cluster(2, make_quota("a", 4, limit=10), make_quota("b"))
    there.add(*(make_gang(f"low{index}", "a", [2], band=LOW, restart_cost=10.0 * index) for index in range(5)))
    there.cycle()
    there.add(make_gang("high", "a", [4]))

    assert [evict.gang for evict in there.cycle().evicts] == ["low0", "low1"]
