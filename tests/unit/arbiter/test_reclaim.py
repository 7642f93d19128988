"""Reclaim of guarantees: which borrowing pods are evicted, and which pods stay."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.simulated_cluster import (
    LOW,
    Cluster,
    make_cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
)
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.decisions import Decisions, PendingReason
from vkgateway.arbiter.snapshot import Pod


def test_borrowing_gang_is_evicted_when_guarantee_is_reclaimed() -> None:
    there = make_cluster(2, make_quota("a", 16), make_quota("b"))
    there.add(make_gang("low", "b", [8, 8], band=LOW))
    there.cycle()
    assert there.borrowed_marks("low") == {True}
    there.add(make_gang("high", "a", [8]))

    decisions = there.cycle()

    [evict] = decisions.evicts
    assert (evict.gang, evict.whole, evict.makes_room_for, evict.deadline) == ("low", True, "high", there.now + 10)
    hold = reports_by_gang(decisions)["high"]
    assert hold.code is PendingReason.EVICTION
    assert hold.likely == there.now + 15
    came = there.now
    there.run_for(20)
    assert there.start_times["high"] == came + 15
    assert there.borrowed_marks("high") == {False}


def test_surplus_is_evicted_before_whole_gangs_and_regrows() -> None:
    there = make_cluster(2, make_quota("a", 8), make_quota("b"))
    there.add(make_gang("elastic", "b", [4] * 4, band=LOW, elastic=True, minimum=2))
    there.cycle()
    assert len(there.placed_nodes("elastic")) == 4
    there.add(make_gang("high", "a", [8]))
    there.run_times["high"] = 60

    [evict] = there.cycle().evicts

    assert (evict.pods, evict.whole, evict.lost) == (("elastic-2", "elastic-3"), False, 0)
    there.run_for(30)
    assert there.running_gangs() == {"elastic", "high"}
    assert len(there.placed_nodes("elastic")) == 2
    there.run_for(70)
    assert len(there.placed_nodes("elastic")) == 4


def test_lowest_ranks_of_surplus_are_reprieved() -> None:
    there = make_cluster(1, make_quota("a", 4), make_quota("b"))
    there.add(make_gang("elastic", "b", [1, 2, 2], elastic=True, minimum=1, band=LOW))
    there.cycle()
    there.add(make_gang("other", "b", [3], band=LOW))
    there.cycle()
    there.add(make_gang("owner", "a", [4]))
    [evict] = there.cycle().evicts
    assert (evict.gang, set(evict.pods)) == ("elastic", {"elastic-1", "elastic-2"})

    del there.gangs["other"]
    [reprieve] = there.cycle().reprieves

    assert reprieve.pods == ("elastic-1",)


def test_surplus_is_not_spared_while_its_gang_is_evicted() -> None:
    there = make_cluster(3, make_quota("a", 4), make_quota("b", 4), make_quota("c"), size=4)
    there.add(make_gang("elastic", "c", [4] * 3, band=LOW, elastic=True, minimum=2))
    there.cycle()
    there.add(make_gang("first", "a", [4]), make_gang("second", "b", [4]))

    decisions = there.cycle()

    assert {uid for evict in decisions.evicts for uid in evict.pods} == {"elastic-0", "elastic-1", "elastic-2"}
    assert not there.placed_nodes("elastic")


def test_preemptors_of_same_cycle_get_separate_victims() -> None:
    """Of two that go from one node each has to go for another gang; either would do for the guarantee by itself."""
    there = make_cluster(2, make_quota("a", 2), make_quota("b"), make_quota("c"))
    for name in ("old", "young"):
        there.add(make_gang(name, "c", [2, 4, 2], elastic=True, minimum=1, band=LOW))
        there.cycle()
        there.advance(1)
    there.add(make_gang("owner", "a", [2]), make_gang("borrows", "b", [4]))

    decisions = there.cycle()

    assert {each.makes_room_for: each.pods for each in decisions.evicts} == {
        "owner": ("young-2",),
        "borrows": ("young-1",),
    }


def test_no_eviction_for_cell_that_other_plan_seems_to_hold() -> None:
    there = Cluster(
        [make_node("n0"), make_node("n1", 4), make_node("n2", 4)],
        [make_quota("a", 1), make_quota("b", 6), make_quota("c", 8)],
    )
    there.add(make_gang("elastic", "a", [2, 2, 4], band=LOW, elastic=True, minimum=1))
    there.cycle()
    there.add(make_gang("first", "a", [1]), make_gang("second", "b", [2]))

    decisions = there.cycle()

    assert {uid for evict in decisions.evicts for uid in evict.pods} == {"elastic-2"}
    there.run_for(20)
    assert {"first", "second"} <= there.running_gangs()


def test_surplus_borrows_while_min_members_borrow() -> None:
    """Were it, the gang as a whole could not be called in, and whoever is guaranteed its room would wait for ever."""
    there = make_cluster(2, make_quota("a", 8), make_quota("c", 4))
    there.add(make_gang("most", "c", [4, 4, 4], minimum=2))
    there.cycle()
    assert there.borrowed_marks("most") == {True}
    for name in ("one", "two"):
        there.add(make_gang(name, "a", [4]))
        there.cycle()

    there.run_for(20)

    assert there.running_gangs() >= {"one", "two"}


def test_pods_inside_cells_are_not_evicted() -> None:
    there = make_cluster(2, make_quota("a", 8), make_quota("b", 8))
    there.add(make_gang("one", "a", [8]), make_gang("more", "a", [8]))
    there.cycle()
    assert there.borrowed_marks("one") | there.borrowed_marks("more") == {False, True}
    there.add(make_gang("theirs", "b", [8]))

    [evict] = there.cycle().evicts

    assert there.borrowed_marks(evict.gang) == set()
    there.run_for(20)
    assert there.borrowed_marks("theirs") == {False}
    assert len(there.running_gangs()) == 2


def test_borrowing_replacement_pod_is_evicted_without_its_gang() -> None:
    there = make_cluster(2, make_quota("a", 8, cells=(4, 4)), make_quota("b", 8))
    there.add(make_gang("pair", "a", [4, 4]))
    there.cycle()
    failed = there.gangs["pair"].pods[1]
    there.gangs["pair"] = replace(there.gangs["pair"], pods=there.gangs["pair"].pods[:1], minimum=1)
    there.add(make_gang("next", "a", [4]))
    there.cycle()
    assert there.borrowed_marks("next") == {False}
    anew = Pod(uid="anew", shape=failed.shape, rank=1)
    there.gangs["pair"] = replace(there.gangs["pair"], pods=(*there.gangs["pair"].pods, anew), minimum=2)
    there.cycle()
    assert there.borrowed_marks("pair") == {False, True}

    there.add(make_gang("high", "b", [8]))
    decisions = decide(there.snapshot(), there.now)

    [evict] = decisions.evicts
    assert (evict.gang, evict.pods, evict.makes_room_for) == ("pair", ("anew",), "high")
    assert not decisions.plans["high"].borrowed


def test_borrowing_gang_is_promoted_when_cells_are_freed() -> None:
    there = make_cluster(2, make_quota("a", 8), make_quota("b", 8))
    there.add(make_gang("one", "a", [8], created=1.0), make_gang("more", "a", [8], created=2.0))
    there.cycle()
    assert there.borrowed_marks("more") == {True}
    del there.gangs["one"]
    there.add(make_gang("low", "b", [8], band=LOW, restart_cost=1e6))
    there.cycle()
    there.add(make_gang("theirs", "b", [8]))

    [evict] = there.cycle().evicts

    assert evict.gang == "low"


def test_pods_inside_cells_keep_running_after_node_loss() -> None:
    there = make_cluster(2, make_quota("a", 8), make_quota("b", 8))
    there.add(make_gang("one", "a", [8]))
    there.cycle()
    [on] = there.placed_nodes("one").values()
    dead = [replace(each, usable=each.name == on) for each in there.pool.nodes]
    there.pool = replace(there.pool, nodes=tuple(dead))

    decisions = there.cycle()

    assert decisions == Decisions(losses=decisions.losses)
    assert [(loss.tenant, loss.units) for loss in decisions.losses] == [("a", 8)]


def test_promoted_gang_is_not_evicted() -> None:
    there = make_cluster(3, make_quota("a", 16), make_quota("b", 8), make_quota("c"))
    there.add(make_gang("first", "b", [8], created=1.0))
    there.cycle()
    there.add(make_gang("low", "c", [8], band=LOW, restart_cost=1e6))
    there.cycle()
    there.add(make_gang("second", "b", [8], created=2.0))
    there.cycle()
    assert there.borrowed_marks("second") == {True}
    del there.gangs["first"]
    there.add(make_gang("both", "a", [8, 8]))

    decisions = there.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["low"]
    assert there.borrowed_marks("second") == {False}
