"""Limit of a tenant, reserved for its aged gang."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.lent import placed
from tests.unit.arbiter.sim import LOW, Cluster, gang, held, node, quota
from tests.unit.arbiter.test_shares import HOUR, NOW, runs
from vkgateway.arbiter.decisions import PendingReason


def there(*, big: float, runs_since: float) -> Cluster:
    """Return a tenant at its limit with a large gang and small ones; the arguments are their ages in seconds."""
    found = Cluster([node("n0"), node("n1")], [quota("a", limit=8)], now=NOW)
    found.add(runs("runs", "a", "n0", 2, came=runs_since))
    found.add(gang("a/team/big", "a", [8], band=LOW, created=NOW - big), gang("small", "a", [1], band=LOW))
    return found


def test_later_gang_leaves_limit_to_aged_gang() -> None:
    found = there(big=2 * HOUR, runs_since=HOUR)
    holds = held(found.cycle())
    assert holds["a/team/big"].code is PendingReason.QUOTA
    assert (holds["small"].code, holds["small"].behind) == (PendingReason.RESERVATION, "a/team/big")
    assert holds["small"].message == (
        "capacity is free, but the limit in pool.compute is reserved for team/big, which is ahead and has waited for "
        "long"
    )
    found.runs["runs"] = 0.0
    found.advance(1)
    found.cycle()
    assert "a/team/big" in found.started


def test_later_gang_uses_limit_before_gang_is_aged() -> None:
    found = there(big=0.5 * HOUR, runs_since=0.25 * HOUR)
    found.cycle()
    assert "small" in found.started


def test_no_limit_is_reserved_while_older_gang_blocks_it() -> None:
    """The older gang may run forever: no gang would start."""
    found = there(big=2 * HOUR, runs_since=3 * HOUR)
    found.cycle()
    assert "small" in found.started


def test_other_tenants_are_not_affected() -> None:
    found = there(big=2 * HOUR, runs_since=HOUR)
    found.quotas += (quota("b", limit=8),)
    found.add(gang("other", "b", [4], band=LOW))
    found.cycle()
    assert "other" in found.started


def test_surplus_does_not_grow_into_reserved_limit() -> None:
    found = there(big=2 * HOUR, runs_since=HOUR)
    grows = gang("grows", "a", [1, 1], band=LOW, minimum=1, elastic=True, created=NOW - HOUR)
    found.add(replace(grows, pods=(placed("grows-0", "n0"), grows.pods[1])))
    found.cycle()
    assert len(found.placed("grows")) == 1
