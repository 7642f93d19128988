"""Reclaim of guarantees: which borrowing pods are evicted, and which pods stay."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.sim import (
    LOW,
    Cluster,
    gang,
    held,
    make_cluster,
    node,
    quota,
)
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.decisions import Decisions, PendingReason
from vkgateway.arbiter.snapshot import Pod


def test_borrowing_gang_is_evicted_when_guarantee_is_reclaimed() -> None:
    there = make_cluster(2, quota("a", 16), quota("b"))
    there.add(gang("low", "b", [8, 8], band=LOW))
    there.cycle()
    assert there.borrowed("low") == {True}
    there.add(gang("high", "a", [8]))

    decisions = there.cycle()

    [evict] = decisions.evicts
    assert (evict.gang, evict.whole, evict.makes_room_for, evict.deadline) == ("low", True, "high", there.now + 10)
    hold = held(decisions)["high"]
    assert hold.code is PendingReason.EVICTION
    assert hold.likely == there.now + 15
    came = there.now
    there.settle(20)
    assert there.started["high"] == came + 15
    assert there.borrowed("high") == {False}


def test_surplus_is_evicted_before_whole_gangs_and_regrows() -> None:
    there = make_cluster(2, quota("a", 8), quota("b"))
    there.add(gang("elastic", "b", [4] * 4, band=LOW, elastic=True, minimum=2))
    there.cycle()
    assert len(there.placed("elastic")) == 4
    there.add(gang("high", "a", [8]))
    there.runs["high"] = 60

    [evict] = there.cycle().evicts

    assert (evict.pods, evict.whole, evict.lost) == (("elastic-2", "elastic-3"), False, 0)
    there.settle(30)
    assert there.running() == {"elastic", "high"}
    assert len(there.placed("elastic")) == 2
    there.settle(70)
    assert len(there.placed("elastic")) == 4


def test_lowest_ranks_of_surplus_are_reprieved() -> None:
    there = make_cluster(1, quota("a", 4), quota("b"))
    there.add(gang("elastic", "b", [1, 2, 2], elastic=True, minimum=1, band=LOW))
    there.cycle()
    there.add(gang("other", "b", [3], band=LOW))
    there.cycle()
    there.add(gang("owner", "a", [4]))
    [evict] = there.cycle().evicts
    assert (evict.gang, set(evict.pods)) == ("elastic", {"elastic-1", "elastic-2"})

    del there.gangs["other"]
    [reprieve] = there.cycle().reprieves

    assert reprieve.pods == ("elastic-1",)


def test_surplus_is_not_spared_while_its_gang_is_evicted() -> None:
    there = make_cluster(3, quota("a", 4), quota("b", 4), quota("c"), size=4)
    there.add(gang("elastic", "c", [4] * 3, band=LOW, elastic=True, minimum=2))
    there.cycle()
    there.add(gang("first", "a", [4]), gang("second", "b", [4]))

    decisions = there.cycle()

    assert {uid for evict in decisions.evicts for uid in evict.pods} == {"elastic-0", "elastic-1", "elastic-2"}
    assert not there.placed("elastic")


def test_preemptors_of_same_cycle_get_separate_victims() -> None:
    """Of two that go from one node each has to go for another gang; either would do for the guarantee by itself."""
    there = make_cluster(2, quota("a", 2), quota("b"), quota("c"))
    for name in ("old", "young"):
        there.add(gang(name, "c", [2, 4, 2], elastic=True, minimum=1, band=LOW))
        there.cycle()
        there.advance(1)
    there.add(gang("owner", "a", [2]), gang("borrows", "b", [4]))

    decisions = there.cycle()

    assert {each.makes_room_for: each.pods for each in decisions.evicts} == {
        "owner": ("young-2",),
        "borrows": ("young-1",),
    }


def test_no_eviction_for_cell_that_other_plan_seems_to_hold() -> None:
    there = Cluster([node("n0"), node("n1", 4), node("n2", 4)], [quota("a", 1), quota("b", 6), quota("c", 8)])
    there.add(gang("elastic", "a", [2, 2, 4], band=LOW, elastic=True, minimum=1))
    there.cycle()
    there.add(gang("first", "a", [1]), gang("second", "b", [2]))

    decisions = there.cycle()

    assert {uid for evict in decisions.evicts for uid in evict.pods} == {"elastic-2"}
    there.settle(20)
    assert {"first", "second"} <= there.running()


def test_surplus_borrows_while_min_members_borrow() -> None:
    """Were it, the gang as a whole could not be called in, and whoever is guaranteed its room would wait for ever."""
    there = make_cluster(2, quota("a", 8), quota("c", 4))
    there.add(gang("most", "c", [4, 4, 4], minimum=2))
    there.cycle()
    assert there.borrowed("most") == {True}
    for name in ("one", "two"):
        there.add(gang(name, "a", [4]))
        there.cycle()

    there.settle(20)

    assert there.running() >= {"one", "two"}


def test_pods_inside_cells_are_not_evicted() -> None:
    there = make_cluster(2, quota("a", 8), quota("b", 8))
    there.add(gang("one", "a", [8]), gang("more", "a", [8]))
    there.cycle()
    assert there.borrowed("one") | there.borrowed("more") == {False, True}
    there.add(gang("theirs", "b", [8]))

    [evict] = there.cycle().evicts

    assert there.borrowed(evict.gang) == set()
    there.settle(20)
    assert there.borrowed("theirs") == {False}
    assert len(there.running()) == 2


def test_borrowing_replacement_pod_is_evicted_without_its_gang() -> None:
    there = make_cluster(2, quota("a", 8, cells=(4, 4)), quota("b", 8))
    there.add(gang("pair", "a", [4, 4]))
    there.cycle()
    failed = there.gangs["pair"].pods[1]
    there.gangs["pair"] = replace(there.gangs["pair"], pods=there.gangs["pair"].pods[:1], minimum=1)
    there.add(gang("next", "a", [4]))
    there.cycle()
    assert there.borrowed("next") == {False}
    anew = Pod(uid="anew", shape=failed.shape, rank=1)
    there.gangs["pair"] = replace(there.gangs["pair"], pods=(*there.gangs["pair"].pods, anew), minimum=2)
    there.cycle()
    assert there.borrowed("pair") == {False, True}

    there.add(gang("high", "b", [8]))
    decisions = decide(there.snapshot(), there.now)

    [evict] = decisions.evicts
    assert (evict.gang, evict.pods, evict.makes_room_for) == ("pair", ("anew",), "high")
    assert not decisions.plans["high"].borrowed


def test_borrowing_gang_is_promoted_when_cells_are_freed() -> None:
    there = make_cluster(2, quota("a", 8), quota("b", 8))
    there.add(gang("one", "a", [8], created=1.0), gang("more", "a", [8], created=2.0))
    there.cycle()
    assert there.borrowed("more") == {True}
    del there.gangs["one"]
    there.add(gang("low", "b", [8], band=LOW, restart_cost=1e6))
    there.cycle()
    there.add(gang("theirs", "b", [8]))

    [evict] = there.cycle().evicts

    assert evict.gang == "low"


def test_pods_inside_cells_keep_running_after_node_loss() -> None:
    there = make_cluster(2, quota("a", 8), quota("b", 8))
    there.add(gang("one", "a", [8]))
    there.cycle()
    [on] = there.placed("one").values()
    dead = [replace(each, usable=each.name == on) for each in there.pool.nodes]
    there.pool = replace(there.pool, nodes=tuple(dead))

    decisions = there.cycle()

    assert decisions == Decisions(losses=decisions.losses)
    assert [(loss.tenant, loss.units) for loss in decisions.losses] == [("a", 8)]


def test_promoted_gang_is_not_evicted() -> None:
    there = make_cluster(3, quota("a", 16), quota("b", 8), quota("c"))
    there.add(gang("first", "b", [8], created=1.0))
    there.cycle()
    there.add(gang("low", "c", [8], band=LOW, restart_cost=1e6))
    there.cycle()
    there.add(gang("second", "b", [8], created=2.0))
    there.cycle()
    assert there.borrowed("second") == {True}
    del there.gangs["first"]
    there.add(gang("both", "a", [8, 8]))

    decisions = there.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["low"]
    assert there.borrowed("second") == {False}
