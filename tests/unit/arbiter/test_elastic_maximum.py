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
from vkgateway.arbiter.decisions import PendingReason


def test_elastic_gang_grows_up_to_maximum() -> None:
    there = make_cluster(2, make_quota("a"))
    there.add(make_gang("grows", "a", [1] * 8, elastic=True, minimum=2, maximum=6, band=LOW))

    hold = reports_by_gang(there.cycle())["grows"]

    assert sorted(there.placed_nodes("grows")) == [f"grows-{rank}" for rank in range(6)]
    assert hold.code is PendingReason.MAXIMUM
    assert hold.message == "has 6 pods, and may grow to 6; 2 more wait until one of these has ended"
    assert reports_by_gang(there.cycle())["grows"] == hold

    gone = there.gangs["grows"].pods[1:]
    there.gangs["grows"] = replace(there.gangs["grows"], pods=gone)
    assert reports_by_gang(there.cycle())["grows"].message.startswith("has 6 pods")
    assert "grows-6" in there.placed_nodes("grows")
    assert len(there.placed_nodes("grows")) == 6


def test_notified_pods_count_to_maximum() -> None:
    """Its last pod would start elsewhere while the two that run are told to go, and one of them could stay."""
    there = make_cluster(2, make_quota("a"), make_quota("b", 8), make_quota("c", 4))
    low = make_gang("low", "a", [4, 4, 4], minimum=1, maximum=2, band=LOW)
    there.add(low)
    there.cycle()
    assert sorted(there.placed_nodes("low")) == ["low-0", "low-1"]
    there.add(make_gang("other", "c", [4]))
    there.cycle()
    there.add(make_gang("owner", "b", [8]))
    [evict] = there.cycle().evicts
    assert evict.pods == ("low-0", "low-1")
    assert there.placed_nodes("low") == {}


def test_elastic_gang_below_maximum_waits_for_room() -> None:
    there = make_cluster(1, make_quota("a"), size=4)
    there.add(make_gang("grows", "a", [1] * 8, elastic=True, minimum=2, maximum=6, band=LOW))

    hold = reports_by_gang(there.cycle())["grows"]

    assert len(there.placed_nodes("grows")) == 4
    assert (hold.code, hold.message) == (
        PendingReason.ROOM,
        "runs with 4 of 6 pods; no capacity is free for more",
    )


def test_minimum_precedes_maximum() -> None:
    there = make_cluster(1, make_quota("a"))
    there.add(make_gang("odd", "a", [1] * 4, minimum=4, maximum=2))

    assert not reports_by_gang(there.cycle())
    assert len(there.placed_nodes("odd")) == 4
