"""Fair shares: usage of later gangs does not delay an aged gang forever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.borrowed_pool import placed_pod
from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_gang, make_node, make_quota, reports_by_gang
from vkgateway.arbiter.snapshot import Band, Gang, PodState

NOW = 100_000.0
HOUR = 3600.0


def runs(name: str, tenant: str, on: str, size: int, *, came: float, **fields: object) -> Gang:
    """Return a single borrowing pod; `came`: seconds since the creation of its gang."""
    fields = {"band": LOW, "created": NOW - came, **fields}
    return replace(make_gang(name, tenant, [size], **fields), pods=(placed_pod(f"{name}-0", on, size),))


def line(*gangs: Gang, weight: float = 1.0) -> list[str]:
    """Return the queue for two nodes of 8, for which one gang of each tenant waits."""
    both = ("a", 2 * HOUR), ("b", 1.5 * HOUR)
    waits = [make_gang(f"big-{tenant}", tenant, [8, 8], band=LOW, created=NOW - age) for tenant, age in both]
    quotas = [make_quota("a", weight=weight), make_quota("b")]
    there = Cluster([make_node("n0"), make_node("n1")], quotas, [*waits, *gangs], now=NOW)
    holds = reports_by_gang(there.cycle())
    return sorted((name for name in holds if holds[name].place), key=lambda name: holds[name].place or 0)


def test_later_usage_does_not_count_against_aged_gang() -> None:
    assert line(runs("later", "a", "n0", 6, came=HOUR), runs("other", "b", "n1", 2, came=5 * HOUR)) == [
        "big-a",
        "big-b",
    ]


def test_earlier_usage_counts() -> None:
    assert line(runs("before", "a", "n0", 6, came=3 * HOUR), runs("other", "b", "n1", 2, came=5 * HOUR)) == [
        "big-b",
        "big-a",
    ]


@pytest.mark.parametrize("better", [{"priority": 1}, {"band": Band.GUARANTEED}])
def test_higher_ranked_usage_counts(better: dict[str, object]) -> None:
    later = runs("later", "a", "n0", 6, came=HOUR, **better)
    assert line(later, runs("other", "b", "n1", 2, came=5 * HOUR)) == ["big-b", "big-a"]


def test_terminating_usage_does_not_count() -> None:
    before = runs("before", "a", "n0", 6, came=3 * HOUR)
    leaves = replace(before, pods=(replace(before.pods[0], state=PodState.ENDING, deadline=NOW + 5),))
    assert line(leaves, runs("other", "b", "n1", 2, came=5 * HOUR)) == ["big-a", "big-b"]


def test_later_usage_counts_against_other_gangs_of_tenant() -> None:
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a"), make_quota("b")], now=NOW)
    there.add(runs("later", "a", "n0", 6, came=100), runs("other", "b", "n1", 5, came=100))
    there.add(make_gang("young-a", "a", [8, 8], band=LOW, created=NOW - 90, run_limit=60))
    there.add(make_gang("young-b", "b", [8, 8], band=LOW, created=NOW - 80, run_limit=60))
    holds = reports_by_gang(there.cycle())
    assert (holds["young-b"].place, holds["young-a"].place) == (1, 2)
