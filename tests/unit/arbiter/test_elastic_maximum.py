"""Growth of elastic gangs up to their maximum."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.simulated_cluster import (
    LOW,
    make_cluster,
    make_gang,
    make_quota,
    reports_by_gang,
)
from vkgateway.scheduler.core.decisions import PendingReason


def test_elastic_gang_grows_up_to_maximum() -> None:
    cluster = make_cluster(2, make_quota("a"))
    cluster.add(make_gang("grows", "a", [1] * 8, elastic=True, minimum=2, maximum=6, band=LOW))

    report = reports_by_gang(cluster.cycle())["grows"]

    assert sorted(cluster.placed_nodes("grows")) == [f"grows-{rank}" for rank in range(6)]
    assert report.code is PendingReason.MAXIMUM
    assert (
        report.message
        == "has 6 pods and a maximum of 6; 2 more wait until one of these terminates, or the maximum is 8"
    )
    assert reports_by_gang(cluster.cycle())["grows"] == report

    gone = cluster.gangs["grows"].pods[1:]
    cluster.gangs["grows"] = replace(cluster.gangs["grows"], pods=gone)
    assert reports_by_gang(cluster.cycle())["grows"].message.startswith("has 6 pods")
    assert "grows-6" in cluster.placed_nodes("grows")
    assert len(cluster.placed_nodes("grows")) == 6


def test_notified_pods_count_to_maximum() -> None:
    """The last pod would start elsewhere while the two running pods are notified, and one of them could stay."""
    cluster = make_cluster(2, make_quota("a"), make_quota("b", 8), make_quota("c", 4))
    low = make_gang("low", "a", [4, 4, 4], minimum=1, maximum=2, band=LOW)
    cluster.add(low)
    cluster.cycle()
    assert sorted(cluster.placed_nodes("low")) == ["low-0", "low-1"]
    cluster.add(make_gang("other", "c", [4]))
    cluster.cycle()
    cluster.add(make_gang("owner", "b", [8]))
    [evict] = cluster.cycle().evicts
    assert evict.pods == ("low-0", "low-1")
    assert cluster.placed_nodes("low") == {}


def test_elastic_gang_below_maximum_waits_for_room() -> None:
    cluster = make_cluster(1, make_quota("a"), size=4)
    cluster.add(make_gang("grows", "a", [1] * 8, elastic=True, minimum=2, maximum=6, band=LOW))

    report = reports_by_gang(cluster.cycle())["grows"]

    assert len(cluster.placed_nodes("grows")) == 4
    assert (report.code, report.message) == (
        PendingReason.ROOM,
        "runs with 4 of 6 pods; no capacity is free for more",
    )


def test_minimum_precedes_maximum() -> None:
    cluster = make_cluster(1, make_quota("a"))
    cluster.add(make_gang("odd", "a", [1] * 4, minimum=4, maximum=2))

    assert not reports_by_gang(cluster.cycle())
    assert len(cluster.placed_nodes("odd")) == 4
