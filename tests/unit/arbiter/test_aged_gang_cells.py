"""Cells of a tenant, reserved for its aged gang."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.borrowed_pool import placed_pod
from tests.unit.arbiter.simulated_cluster import Cluster, make_gang, make_node, make_quota
from tests.unit.arbiter.test_fair_shares import HOUR, NOW
from vkgateway.scheduler.core.snapshot import Gang, Node


def guaranteed_gang(name: str, on: str, *, created_ago: float) -> Gang:
    """Return a single pod inside its tenant's cells; `created_ago`: seconds since the creation of its gang."""
    return replace(
        make_gang(name, "a", [1], created=NOW - created_ago), pods=(placed_pod(f"{name}-0", on, borrowed=False),)
    )


def cluster_with_aged_gang(*more: Node, big: float, runs_since: float) -> Cluster:
    """Return a tenant with a guarantee of two nodes, each with a small pod of it, and its large gang."""
    found = Cluster([make_node("n0"), make_node("n1"), *more], [make_quota("a", 16), make_quota("b")], now=NOW)
    found.add(
        guaranteed_gang("one", "n0", created_ago=runs_since), guaranteed_gang("two", "n1", created_ago=runs_since)
    )
    found.add(make_gang("big", "a", [8, 8], created=NOW - big), make_gang("small", "a", [1]))
    return found


def test_later_gang_borrows_while_cells_are_reserved_for_aged_gang() -> None:
    found = cluster_with_aged_gang(make_node("n2", 4), big=2 * HOUR, runs_since=HOUR)
    found.cycle()
    assert found.borrowed_marks("small") == {True}
    found.run_times |= {"one": 0.0, "two": 0.0}
    found.run_for(40)
    assert found.borrowed_marks("big") == {False}
    assert found.running_gangs() == {"big", "small"}  # it blocked no gang


def test_later_gang_enters_cells_when_reservation_ends() -> None:
    found = cluster_with_aged_gang(big=2 * HOUR, runs_since=HOUR)
    found.cycle()
    del found.gangs["big"]
    found.cycle()
    assert found.borrowed_marks("small") == {False}


@pytest.mark.parametrize(
    ("big", "runs_since"),
    [
        pytest.param(0.5 * HOUR, 0.25 * HOUR, id="it has not waited for long"),
        pytest.param(2 * HOUR, 3 * HOUR, id="what came before it is in its way"),
    ],
)
def test_later_gang_uses_cells_without_aged_gang(big: float, runs_since: float) -> None:
    found = cluster_with_aged_gang(big=big, runs_since=runs_since)
    found.cycle()
    assert found.borrowed_marks("small") == {False}


def test_higher_ranked_gang_uses_reserved_cells() -> None:
    found = cluster_with_aged_gang(big=2 * HOUR, runs_since=HOUR)
    found.gangs["small"] = replace(found.gangs["small"], priority=1)
    found.cycle()
    assert found.borrowed_marks("small") == {False}


def test_other_tenants_are_not_affected() -> None:
    found = cluster_with_aged_gang(make_node("n2", 4), big=2 * HOUR, runs_since=HOUR)
    found.quotas = (*found.quotas[:1], make_quota("b", 4))
    found.add(make_gang("other", "b", [4]))
    found.cycle()
    assert found.borrowed_marks("other") == {False}


def test_surplus_does_not_grow_into_reserved_cells() -> None:
    found = cluster_with_aged_gang(big=2 * HOUR, runs_since=HOUR)
    grows = make_gang("grows", "a", [1, 1], minimum=1, elastic=True, created=NOW - HOUR)
    found.add(replace(grows, pods=(placed_pod("grows-0", "n0", borrowed=False), grows.pods[1])))
    found.cycle()
    assert found.borrowed_marks("grows") == {False, True}
