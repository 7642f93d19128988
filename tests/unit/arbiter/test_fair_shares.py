"""Fair shares: usage of later gangs does not delay an aged gang forever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.borrowed_pool import placed_pod
from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_gang, make_node, make_quota, reports_by_gang
from vkgateway.scheduler.core.snapshot import Band, Gang, PodState

NOW = 100_000.0
HOUR = 3600.0


def borrowing_gang(name: str, tenant: str, on: str, size: int, *, created_ago: float, **fields: object) -> Gang:
    """Return a single borrowing pod; `created_ago`: seconds since the creation of its gang."""
    fields = {"band": LOW, "created": NOW - created_ago, **fields}
    return replace(make_gang(name, tenant, [size], **fields), pods=(placed_pod(f"{name}-0", on, size),))


def queue_of(*gangs: Gang, weight: float = 1.0) -> list[str]:
    """Return the queue for two nodes of 8, for which one gang of each tenant waits."""
    both = ("a", 2 * HOUR), ("b", 1.5 * HOUR)
    waits = [make_gang(f"big-{tenant}", tenant, [8, 8], band=LOW, created=NOW - age) for tenant, age in both]
    quotas = [make_quota("a", weight=weight), make_quota("b")]
    cluster = Cluster([make_node("n0"), make_node("n1")], quotas, [*waits, *gangs], now=NOW)
    reports = reports_by_gang(cluster.cycle())
    return sorted((name for name in reports if reports[name].place), key=lambda name: reports[name].place or 0)


def test_later_usage_does_not_count_against_aged_gang() -> None:
    assert queue_of(
        borrowing_gang("later", "a", "n0", 6, created_ago=HOUR),
        borrowing_gang("other", "b", "n1", 2, created_ago=5 * HOUR),
    ) == [
        "big-a",
        "big-b",
    ]


def test_earlier_usage_counts() -> None:
    assert queue_of(
        borrowing_gang("before", "a", "n0", 6, created_ago=3 * HOUR),
        borrowing_gang("other", "b", "n1", 2, created_ago=5 * HOUR),
    ) == [
        "big-b",
        "big-a",
    ]


@pytest.mark.parametrize("better", [{"priority": 1}, {"band": Band.GUARANTEED}])
def test_higher_ranked_usage_counts(better: dict[str, object]) -> None:
    later = borrowing_gang("later", "a", "n0", 6, created_ago=HOUR, **better)
    assert queue_of(later, borrowing_gang("other", "b", "n1", 2, created_ago=5 * HOUR)) == ["big-b", "big-a"]


def test_terminating_usage_does_not_count() -> None:
    before = borrowing_gang("before", "a", "n0", 6, created_ago=3 * HOUR)
    leaves = replace(before, pods=(replace(before.pods[0], state=PodState.ENDING, deadline=NOW + 5),))
    assert queue_of(leaves, borrowing_gang("other", "b", "n1", 2, created_ago=5 * HOUR)) == ["big-a", "big-b"]


def test_later_usage_counts_against_other_gangs_of_tenant() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a"), make_quota("b")], now=NOW)
    cluster.add(
        borrowing_gang("later", "a", "n0", 6, created_ago=100), borrowing_gang("other", "b", "n1", 5, created_ago=100)
    )
    cluster.add(make_gang("young-a", "a", [8, 8], band=LOW, created=NOW - 90, run_limit=60))
    cluster.add(make_gang("young-b", "b", [8, 8], band=LOW, created=NOW - 80, run_limit=60))
    reports = reports_by_gang(cluster.cycle())
    assert (reports["young-b"].place, reports["young-a"].place) == (1, 2)
