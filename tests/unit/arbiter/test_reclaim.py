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
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions, PendingReason
from vkgateway.scheduler.core.snapshot import Pod


def test_borrowing_gang_is_evicted_when_guarantee_is_reclaimed() -> None:
    cluster = make_cluster(2, make_quota("a", 16), make_quota("b"))
    cluster.add(make_gang("low", "b", [8, 8], band=LOW))
    cluster.cycle()
    assert cluster.borrowed_marks("low") == {True}
    cluster.add(make_gang("high", "a", [8]))

    decisions = cluster.cycle()

    [evict] = decisions.evicts
    assert (evict.gang, evict.whole, evict.makes_room_for, evict.deadline) == ("low", True, "high", cluster.now + 10)
    report = reports_by_gang(decisions)["high"]
    assert report.code is PendingReason.EVICTION
    assert report.likely == cluster.now + 15
    arrival = cluster.now
    cluster.run_for(20)
    assert cluster.start_times["high"] == arrival + 15
    assert cluster.borrowed_marks("high") == {False}


def test_surplus_is_evicted_before_whole_gangs_and_regrows() -> None:
    cluster = make_cluster(2, make_quota("a", 8), make_quota("b"))
    cluster.add(make_gang("elastic", "b", [4] * 4, band=LOW, elastic=True, minimum=2))
    cluster.cycle()
    assert len(cluster.placed_nodes("elastic")) == 4
    cluster.add(make_gang("high", "a", [8]))
    cluster.run_times["high"] = 60

    [evict] = cluster.cycle().evicts

    assert (evict.pods, evict.whole, evict.lost) == (("elastic-2", "elastic-3"), False, 0)
    cluster.run_for(30)
    assert cluster.running_gangs() == {"elastic", "high"}
    assert len(cluster.placed_nodes("elastic")) == 2
    cluster.run_for(70)
    assert len(cluster.placed_nodes("elastic")) == 4


def test_lowest_ranks_of_surplus_are_reprieved() -> None:
    cluster = make_cluster(1, make_quota("a", 4), make_quota("b"))
    cluster.add(make_gang("elastic", "b", [1, 2, 2], elastic=True, minimum=1, band=LOW))
    cluster.cycle()
    cluster.add(make_gang("other", "b", [3], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("owner", "a", [4]))
    [evict] = cluster.cycle().evicts
    assert (evict.gang, set(evict.pods)) == ("elastic", {"elastic-1", "elastic-2"})

    del cluster.gangs["other"]
    [reprieve] = cluster.cycle().reprieves

    assert reprieve.pods == ("elastic-1",)


def test_surplus_is_not_spared_while_its_gang_is_evicted() -> None:
    cluster = make_cluster(3, make_quota("a", 4), make_quota("b", 4), make_quota("c"), size=4)
    cluster.add(make_gang("elastic", "c", [4] * 3, band=LOW, elastic=True, minimum=2))
    cluster.cycle()
    cluster.add(make_gang("first", "a", [4]), make_gang("second", "b", [4]))

    decisions = cluster.cycle()

    assert {uid for evict in decisions.evicts for uid in evict.pods} == {"elastic-0", "elastic-1", "elastic-2"}
    assert not cluster.placed_nodes("elastic")


def test_preemptors_of_same_cycle_get_separate_victims() -> None:
    """Two victims on one node are needed for different preemptors; either would suffice for the guarantee alone."""
    cluster = make_cluster(2, make_quota("a", 2), make_quota("b"), make_quota("c"))
    for name in ("old", "young"):
        cluster.add(make_gang(name, "c", [2, 4, 2], elastic=True, minimum=1, band=LOW))
        cluster.cycle()
        cluster.advance(1)
    cluster.add(make_gang("owner", "a", [2]), make_gang("borrows", "b", [4]))

    decisions = cluster.cycle()

    assert {each.makes_room_for: each.pods for each in decisions.evicts} == {
        "owner": ("young-2",),
        "borrows": ("young-1",),
    }


def test_no_eviction_for_cell_that_other_plan_seems_to_hold() -> None:
    cluster = Cluster(
        [make_node("n0"), make_node("n1", 4), make_node("n2", 4)],
        [make_quota("a", 1), make_quota("b", 6), make_quota("c", 8)],
    )
    cluster.add(make_gang("elastic", "a", [2, 2, 4], band=LOW, elastic=True, minimum=1))
    cluster.cycle()
    cluster.add(make_gang("first", "a", [1]), make_gang("second", "b", [2]))

    decisions = cluster.cycle()

    assert {uid for evict in decisions.evicts for uid in evict.pods} == {"elastic-2"}
    cluster.run_for(20)
    assert {"first", "second"} <= cluster.running_gangs()


def test_surplus_borrows_while_min_members_borrow() -> None:
    """Otherwise the whole gang could not be reclaimed, and the owner of the guarantee would wait forever."""
    cluster = make_cluster(2, make_quota("a", 8), make_quota("c", 4))
    cluster.add(make_gang("most", "c", [4, 4, 4], minimum=2))
    cluster.cycle()
    assert cluster.borrowed_marks("most") == {True}
    for name in ("one", "two"):
        cluster.add(make_gang(name, "a", [4]))
        cluster.cycle()

    cluster.run_for(20)

    assert cluster.running_gangs() >= {"one", "two"}


def test_pods_inside_cells_are_not_evicted() -> None:
    cluster = make_cluster(2, make_quota("a", 8), make_quota("b", 8))
    cluster.add(make_gang("one", "a", [8]), make_gang("more", "a", [8]))
    cluster.cycle()
    assert cluster.borrowed_marks("one") | cluster.borrowed_marks("more") == {False, True}
    cluster.add(make_gang("theirs", "b", [8]))

    [evict] = cluster.cycle().evicts

    assert cluster.borrowed_marks(evict.gang) == set()
    cluster.run_for(20)
    assert cluster.borrowed_marks("theirs") == {False}
    assert len(cluster.running_gangs()) == 2


def test_borrowing_replacement_pod_is_evicted_without_its_gang() -> None:
    cluster = make_cluster(2, make_quota("a", 8, cells=(4, 4)), make_quota("b", 8))
    cluster.add(make_gang("pair", "a", [4, 4]))
    cluster.cycle()
    failed = cluster.gangs["pair"].pods[1]
    cluster.gangs["pair"] = replace(cluster.gangs["pair"], pods=cluster.gangs["pair"].pods[:1], minimum=1)
    cluster.add(make_gang("next", "a", [4]))
    cluster.cycle()
    assert cluster.borrowed_marks("next") == {False}
    replacement = Pod(uid="replacement", shape=failed.shape, rank=1)
    cluster.gangs["pair"] = replace(cluster.gangs["pair"], pods=(*cluster.gangs["pair"].pods, replacement), minimum=2)
    cluster.cycle()
    assert cluster.borrowed_marks("pair") == {False, True}

    cluster.add(make_gang("high", "b", [8]))
    decisions = decide(cluster.snapshot(), cluster.now)

    [evict] = decisions.evicts
    assert (evict.gang, evict.pods, evict.makes_room_for) == ("pair", ("replacement",), "high")
    assert not decisions.plans["high"].borrowed


def test_borrowing_gang_is_promoted_when_cells_are_freed() -> None:
    cluster = make_cluster(2, make_quota("a", 8), make_quota("b", 8))
    cluster.add(make_gang("one", "a", [8], created=1.0), make_gang("more", "a", [8], created=2.0))
    cluster.cycle()
    assert cluster.borrowed_marks("more") == {True}
    del cluster.gangs["one"]
    cluster.add(make_gang("low", "b", [8], band=LOW, restart_cost=1e6))
    cluster.cycle()
    cluster.add(make_gang("theirs", "b", [8]))

    [evict] = cluster.cycle().evicts

    assert evict.gang == "low"


def test_pods_inside_cells_keep_running_after_node_loss() -> None:
    cluster = make_cluster(2, make_quota("a", 8), make_quota("b", 8))
    cluster.add(make_gang("one", "a", [8]))
    cluster.cycle()
    [on] = cluster.placed_nodes("one").values()
    dead = [replace(each, usable=each.name == on) for each in cluster.pool.nodes]
    cluster.pool = replace(cluster.pool, nodes=tuple(dead))

    decisions = cluster.cycle()

    assert decisions == Decisions(losses=decisions.losses)
    assert [(loss.tenant, loss.units) for loss in decisions.losses] == [("a", 8)]


def test_promoted_gang_is_not_evicted() -> None:
    cluster = make_cluster(3, make_quota("a", 16), make_quota("b", 8), make_quota("c"))
    cluster.add(make_gang("first", "b", [8], created=1.0))
    cluster.cycle()
    cluster.add(make_gang("low", "c", [8], band=LOW, restart_cost=1e6))
    cluster.cycle()
    cluster.add(make_gang("second", "b", [8], created=2.0))
    cluster.cycle()
    assert cluster.borrowed_marks("second") == {True}
    del cluster.gangs["first"]
    cluster.add(make_gang("both", "a", [8, 8]))

    decisions = cluster.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["low"]
    assert cluster.borrowed_marks("second") == {False}
