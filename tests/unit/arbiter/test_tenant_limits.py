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
from vkgateway.scheduler.core.decisions import PendingReason


def test_gang_beyond_limit_waits_for_quota() -> None:
    cluster = make_cluster(2, make_quota("a", limit=8))
    cluster.add(make_gang("one", "a", [8], created=1.0), make_gang("two", "a", [4], created=2.0))

    report = reports_by_gang(cluster.cycle())["two"]

    assert cluster.running_gangs() == {"one"}
    assert report.code is PendingReason.QUOTA
    assert report.message == (
        f"needs {GPU} 4; in use in pool.compute: {GPU} 8; limit: {GPU} 8; a limit of {GPU} 12 is enough"
    )
    assert report.numbers[f"limit {GPU}"] == 8


def test_gang_beyond_whole_limit_is_reported() -> None:
    cluster = make_cluster(2, make_quota("a", limit=8))
    cluster.add(make_gang("runs", "a", [4]), make_gang("wide", "a", [8, 4]))

    report = reports_by_gang(cluster.cycle())["wide"]

    assert report.code is PendingReason.QUOTA
    assert report.message == (
        f"needs {GPU} 12, more than the whole limit in pool.compute: {GPU} 8; a limit of {GPU} 16 is enough"
    )
    assert report.place == 0


def test_gang_without_quota_waits() -> None:
    cluster = make_cluster(1, make_quota("a"))
    cluster.add(make_gang("stray", "b", [1]))

    assert reports_by_gang(cluster.cycle())["stray"].code is PendingReason.QUOTA


def test_own_low_gang_is_evicted_at_limit() -> None:
    cluster = make_cluster(3, make_quota("a", 8, limit=16), make_quota("b"))
    cluster.add(make_gang("low1", "a", [8], band=LOW), make_gang("low2", "a", [8], band=LOW, restart_cost=50.0))
    cluster.cycle()
    assert len(cluster.running_gangs()) == 2
    arrival = cluster.now
    cluster.add(make_gang("high", "a", [8]))

    [evict] = cluster.cycle().evicts

    assert (evict.gang, evict.makes_room_for) == ("low1", "high")
    cluster.run_for(20)
    assert cluster.start_times["high"] == arrival + 15
    assert cluster.running_gangs() == {"high", "low2"}


def test_other_tenants_are_not_evicted_for_limit() -> None:
    cluster = make_cluster(3, make_quota("a", 8, limit=8), make_quota("b"))
    cluster.add(
        make_gang("low", "a", [4, 4], band=LOW), *(make_gang(f"other{index}", "b", [8], band=LOW) for index in range(2))
    )
    cluster.cycle()
    cluster.add(make_gang("high", "a", [8]))

    assert [evict.gang for evict in cluster.cycle().evicts] == ["low"]


def test_limit_evicts_no_more_than_needed() -> None:
    cluster = make_cluster(2, make_quota("a", 4, limit=10), make_quota("b"))
    cluster.add(*(make_gang(f"low{index}", "a", [2], band=LOW, restart_cost=10.0 * index) for index in range(5)))
    cluster.cycle()
    cluster.add(make_gang("high", "a", [4]))

    assert [evict.gang for evict in cluster.cycle().evicts] == ["low0", "low1"]
