"""Growth of elastic gangs up to their maximum."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.sim import (
    LOW,
    gang,
    held,
    make_cluster,
    quota,
)
from vkgateway.arbiter.decisions import PendingReason


def test_elastic_gang_grows_up_to_maximum() -> None:
    there = make_cluster(2, quota("a"))
    there.add(gang("grows", "a", [1] * 8, elastic=True, minimum=2, maximum=6, band=LOW))

    hold = held(there.cycle())["grows"]

    assert sorted(there.placed("grows")) == [f"grows-{rank}" for rank in range(6)]
    assert hold.code is PendingReason.MAXIMUM
    assert hold.message == "has 6 pods, and may grow to 6; 2 more wait until one of these has ended"
    assert held(there.cycle())["grows"] == hold

    gone = there.gangs["grows"].pods[1:]
    there.gangs["grows"] = replace(there.gangs["grows"], pods=gone)
    assert held(there.cycle())["grows"].message.startswith("has 6 pods")
    assert "grows-6" in there.placed("grows")
    assert len(there.placed("grows")) == 6


def test_notified_pods_count_to_maximum() -> None:
    """Its last pod would start elsewhere while the two that run are told to go, and one of them could stay."""
    there = make_cluster(2, quota("a"), quota("b", 8), quota("c", 4))
    low = gang("low", "a", [4, 4, 4], minimum=1, maximum=2, band=LOW)
    there.add(low)
    there.cycle()
    assert sorted(there.placed("low")) == ["low-0", "low-1"]
    there.add(gang("other", "c", [4]))
    there.cycle()
    there.add(gang("owner", "b", [8]))
    [evict] = there.cycle().evicts
    assert evict.pods == ("low-0", "low-1")
    assert there.placed("low") == {}


def test_elastic_gang_below_maximum_waits_for_room() -> None:
    there = make_cluster(1, quota("a"), size=4)
    there.add(gang("grows", "a", [1] * 8, elastic=True, minimum=2, maximum=6, band=LOW))

    hold = held(there.cycle())["grows"]

    assert len(there.placed("grows")) == 4
    assert (hold.code, hold.message) == (
        PendingReason.ROOM,
        "runs with 4 of 6 pods; no capacity is free for more",
    )


def test_minimum_precedes_maximum() -> None:
    there = make_cluster(1, quota("a"))
    there.add(gang("odd", "a", [1] * 4, minimum=4, maximum=2))

    assert not held(there.cycle())
    assert len(there.placed("odd")) == 4
