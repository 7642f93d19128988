"""Limit of a tenant, reserved for its aged gang."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.borrowed_pool import placed_pod
from tests.unit.arbiter.simulated_cluster import (
    GPU,
    LOW,
    Cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
)
from tests.unit.arbiter.test_fair_shares import HOUR, NOW, borrowing_gang
from vkgateway.scheduler.core.decisions import PendingReason


def cluster_at_limit(*, big: float, runs_since: float) -> Cluster:
    """Return a tenant at its limit with a large gang and small ones; the arguments are their ages in seconds."""
    found = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", limit=8)], now=NOW)
    found.add(borrowing_gang("runs", "a", "n0", 2, created_ago=runs_since))
    found.add(make_gang("a/team/big", "a", [8], band=LOW, created=NOW - big), make_gang("small", "a", [1], band=LOW))
    return found


def test_later_gang_leaves_limit_to_aged_gang() -> None:
    found = cluster_at_limit(big=2 * HOUR, runs_since=HOUR)
    reports = reports_by_gang(found.cycle())
    assert reports["a/team/big"].code is PendingReason.QUOTA
    assert (reports["small"].code, reports["small"].behind) == (PendingReason.RESERVATION, "a/team/big")
    assert reports["small"].message == (
        "capacity is free, but the limit in pool.compute is reserved for team/big, which is ahead and has waited for "
        f"long; a limit of {GPU} 11 is enough"
    )
    found.run_times["runs"] = 0.0
    found.advance(1)
    found.cycle()
    assert "a/team/big" in found.start_times


def test_later_gang_uses_limit_before_gang_is_aged() -> None:
    found = cluster_at_limit(big=0.5 * HOUR, runs_since=0.25 * HOUR)
    found.cycle()
    assert "small" in found.start_times


def test_no_limit_is_reserved_while_older_gang_blocks_it() -> None:
    """The older gang may run forever: no gang would start."""
    found = cluster_at_limit(big=2 * HOUR, runs_since=3 * HOUR)
    found.cycle()
    assert "small" in found.start_times


def test_other_tenants_are_not_affected() -> None:
    found = cluster_at_limit(big=2 * HOUR, runs_since=HOUR)
    found.quotas += (make_quota("b", limit=8),)
    found.add(make_gang("other", "b", [4], band=LOW))
    found.cycle()
    assert "other" in found.start_times


def test_surplus_does_not_grow_into_reserved_limit() -> None:
    found = cluster_at_limit(big=2 * HOUR, runs_since=HOUR)
    grows = make_gang("grows", "a", [1, 1], band=LOW, minimum=1, elastic=True, created=NOW - HOUR)
    found.add(replace(grows, pods=(placed_pod("grows-0", "n0"), grows.pods[1])))
    found.cycle()
    assert len(found.placed_nodes("grows")) == 1
