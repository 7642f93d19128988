"""Preemption plans: when they are kept, moved or dropped, and when victims are reprieved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import (
    KEY,
    LOW,
    OTHER,
    Cluster,
    gpu_shape,
    make_cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
)
from vkgateway.api.objects import Taint
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import PodState, Requirement


def cluster_with_plan() -> Cluster:
    """Return a cluster of one node with a low gang that was notified for a guaranteed gang."""
    cluster = make_cluster(1, make_quota("a", 8), make_quota("b"))
    cluster.add(make_gang("low", "b", [8], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("high", "a", [8]))
    cluster.cycle()
    assert cluster.gangs["low"].pods[0].state is PodState.NOTIFIED
    return cluster


def test_victim_is_reprieved_when_preemptor_is_deleted() -> None:
    cluster = cluster_with_plan()
    cluster.advance(5)
    del cluster.gangs["high"]

    [reprieve] = cluster.cycle().reprieves

    assert (reprieve.gang, reprieve.pods) == ("low", ("low-0",))
    assert cluster.running_gangs() == {"low"}


def test_victim_is_reprieved_when_no_longer_needed() -> None:
    cluster = make_cluster(2, make_quota("a", 8), make_quota("b"))
    cluster.add(make_gang("low", "b", [8], band=LOW), make_gang("other", "b", [8], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("high", "a", [8]))
    [evict] = cluster.cycle().evicts
    stays = "other" if evict.gang == "low" else "low"
    del cluster.gangs[stays]

    decisions = cluster.cycle()

    assert [reprieve.gang for reprieve in decisions.reprieves] == [evict.gang]
    assert cluster.running_gangs() == {"high", evict.gang}


def test_no_pod_starts_in_other_domain_while_gang_may_be_reprieved() -> None:
    """The preemptor finally starts elsewhere: the waiting pod would fit there, too, but the first pod stays."""
    cluster = Cluster(
        [make_node("n0", 4, rack="r0"), make_node("n1", rack="r1")],
        [make_quota("a"), make_quota("b", 4), make_quota("c")],
    )
    cluster.add(make_gang("full", "c", [8], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("low", "a", [1, 4], minimum=1, band=LOW, required_level="rack"))
    cluster.cycle()
    cluster.add(make_gang("owner", "b", [4]))
    assert [evict.gang for evict in cluster.cycle().evicts] == ["low"]
    del cluster.gangs["full"]

    decisions = cluster.cycle()

    assert [reprieve.gang for reprieve in decisions.reprieves] == ["low"]
    assert cluster.placed_nodes("low") == {"low-0": "n0"}
    assert cluster.placed_nodes("owner") == {"owner-0": "n1"}


@pytest.mark.parametrize("low", [True, False])
def test_guaranteed_plan_is_dropped_without_guarantee(low: bool) -> None:
    cluster = cluster_with_plan()
    cluster.keep_low()
    if low:
        cluster.gangs["high"] = replace(cluster.gangs["high"], band=LOW)
    else:
        cluster.quotas = (make_quota("a"), make_quota("b"))

    decisions = cluster.cycle()

    assert not decisions.plans
    assert [(each.gang, each.pods) for each in decisions.reprieves] == [("low", ("low-0",))]
    assert reports_by_gang(decisions)["high"].code is PendingReason.ROOM
    cluster.quotas = (make_quota("a", 8), make_quota("b"))
    cluster.add(make_gang("theirs", "a", [8], priority=1))
    assert cluster.cycle().plans.keys() == {"theirs"}


def test_no_pod_is_evicted_for_its_own_gang() -> None:
    cluster = make_cluster(1, make_quota("a", 4), make_quota("b", 4))
    cluster.add(make_gang("own", "a", [8, 4], minimum=1))
    cluster.cycle()
    cluster.add(make_gang("theirs", "b", [4]))
    cluster.cycle()
    assert cluster.gangs["own"].pods[0].evicted_for == "theirs"
    assert cluster.gangs["own"].plan is not None, "it starts on the rest of the room"
    del cluster.gangs["theirs"]

    decisions = cluster.cycle()

    assert not decisions.plans
    assert [(each.gang, each.pods) for each in decisions.reprieves] == [("own", ("own-0",))]
    assert cluster.placed_nodes("own") == {"own-0": "n0"}


def test_evicted_gang_restarts_on_remaining_capacity() -> None:
    cluster = make_cluster(1, make_quota("a", 4), make_quota("b", 4), recreate=False)
    cluster.add(make_gang("own", "a", [8, 4], minimum=1))
    cluster.cycle()
    cluster.add(make_gang("theirs", "b", [4]))

    cluster.run_for(17)

    assert cluster.running_gangs() == {"own", "theirs"}
    assert cluster.placed_nodes("own") == {"own-1": "n0"}


def test_lost_plan_causes_no_further_eviction() -> None:
    cluster = make_cluster(3, make_quota("a", 16), make_quota("b"))
    cluster.add(*(make_gang(f"low{index}", "b", [8], band=LOW) for index in range(3)))
    cluster.cycle()
    cluster.add(make_gang("high", "a", [8, 8]))
    assert len(cluster.cycle().evicts) == 2
    cluster.gangs["high"] = replace(cluster.gangs["high"], plan=None)

    decisions = cluster.cycle()

    assert (decisions.evicts, decisions.reprieves) == ((), ())
    assert decisions.plans


def test_freed_capacity_stays_reserved_for_preemptor() -> None:
    cluster = make_cluster(2, make_quota("a", 16), make_quota("b"), recreate=True)
    cluster.add(make_gang("low", "b", [8], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("high", "a", [8, 8]))
    cluster.cycle()
    cluster.add(make_gang("late", "b", [8], band=LOW))

    cluster.run_for(20)

    assert cluster.running_gangs() == {"high"}


@pytest.mark.parametrize(
    "change",
    [{"taints": (Taint(key="team", value="b", effect="NoSchedule"),)}, {"labels": {"rack": "r1"}}],
    ids=["taint", "label"],
)
def test_plan_moves_when_node_becomes_infeasible(change: dict[str, object]) -> None:
    cluster = make_cluster(2, make_quota("a", 8), make_quota("b"))
    cluster.add(make_gang("low0", "b", [8], band=LOW), make_gang("low1", "b", [8], band=LOW))
    cluster.cycle()
    shape = replace(gpu_shape(8), terms=((Requirement(key="rack", operator="In", values=("r0",)),),))
    cluster.add(make_gang("high", "a", [shape]))
    first = cluster.cycle()
    [planned] = first.plans["high"].nodes.values()

    changed = (replace(each, **change) if each.name == planned else each for each in cluster.pool.nodes)  # type: ignore[arg-type]
    cluster.pool = replace(cluster.pool, nodes=tuple(changed))
    then = cluster.cycle()

    [elsewhere] = then.plans["high"].nodes.values()
    assert elsewhere != planned
    assert [each.gang for each in then.reprieves] == [each.gang for each in first.evicts]
    cluster.run_for(20)
    assert set(cluster.placed_nodes("high").values()) == {elsewhere}


def test_plan_moves_when_node_leaves_required_domain() -> None:
    cluster = Cluster(
        [make_node(f"n{at}", rack=f"r{at // 2}") for at in range(4)], [make_quota("a", 16), make_quota("b")]
    )
    cluster.add(*(make_gang(f"low{at}", "b", [8], band=LOW) for at in range(4)))
    cluster.cycle()
    cluster.add(make_gang("high", "a", [8, 8], required_level="rack"))
    planned = set(cluster.cycle().plans["high"].nodes.values())

    moved = min(planned)
    changed = (replace(each, labels={"rack": "r9"}) if each.name == moved else each for each in cluster.pool.nodes)
    cluster.pool = replace(cluster.pool, nodes=tuple(changed))

    assert planned.isdisjoint(cluster.cycle().plans["high"].nodes.values())


def test_moved_plan_keeps_its_part_of_the_guarantee() -> None:
    """It moves to the node of another plan. Surplus of its tenant, which grows after that, has to borrow."""
    cluster = Cluster(
        [make_node("n0"), make_node("n1"), make_node("n2", 1)],
        [make_quota("a", 6), make_quota("b", 4), make_quota("c")],
    )
    cluster.add(make_gang("small", "c", [6], band=LOW), make_gang("large", "c", [8], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("first", "a", [4]), make_gang("second", "b", [4]))
    cluster.add(make_gang("surplus", "a", [2, 1], elastic=True, minimum=1))

    decisions = cluster.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["large"], "both plans fit there, so the small gang stays"
    assert {name: plan.borrowed for name, plan in decisions.plans.items()} == {"first": False, "second": False}
    assert {pod.uid: pod.borrowed for pod in cluster.gangs["surplus"].pods} == {"surplus-0": False, "surplus-1": True}
    assert cluster.count_guarantees().units_left("a") == 4000, "just enough for the plan"


def test_plan_is_dropped_when_gang_excludes_its_pool() -> None:
    cluster = Cluster(
        [make_node("n0")], [make_quota("a", 8), make_quota("b"), make_quota("b", pool=OTHER)], more=[make_node("m0")]
    )
    cluster.add(make_gang("low", "b", [8], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("high", "a", [8], pools=(KEY, OTHER)))
    assert "high" in cluster.cycle().plans

    cluster.gangs["high"] = replace(cluster.gangs["high"], pools=(OTHER,))
    decisions = cluster.cycle()

    assert not decisions.plans
    assert [each.gang for each in decisions.reprieves] == ["low"]


def test_plan_is_dropped_when_lowered_limit_forbids_it() -> None:
    cluster = make_cluster(2, make_quota("a", 4), make_quota("b", limit=12), size=4)
    cluster.add(make_gang("low", "b", [4, 4], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("high", "a", [4]), make_gang("next", "b", [4]))
    assert cluster.cycle().plans["next"].borrowed

    cluster.quotas = (make_quota("a", 4), make_quota("b", limit=4))
    assert "next" in decide(cluster.snapshot(), cluster.now).plans  # within the limit after the others have terminated
    cluster.quotas = (make_quota("a", 4), make_quota("b", limit=3))
    assert "next" not in decide(cluster.snapshot(), cluster.now).plans


def test_victims_notified_first_terminate_first() -> None:
    cluster = make_cluster(1, make_quota("c", 6), make_quota("a"))
    cluster.add(make_gang("elastic", "a", [2] * 4, elastic=True, minimum=1, band=LOW))
    cluster.cycle()
    arrival = cluster.now
    cluster.add(make_gang("first", "c", [2]))
    cluster.run_for(4)
    cluster.add(make_gang("second", "a", [2]))

    cluster.run_for(20)

    assert cluster.start_times["first"] == arrival + 15
    assert cluster.start_times["second"] == arrival + 4 + 15


def test_later_plan_does_not_delay_earlier_plan() -> None:
    cluster = make_cluster(1, make_quota("b", 8), make_quota("c"))
    cluster.add(make_gang("g0", "c", [1], band=LOW), make_gang("g1", "c", [2, 2], minimum=1))
    cluster.cycle()
    arrival = cluster.now
    cluster.add(make_gang("g3", "b", [1] * 4))
    [evict] = cluster.cycle().evicts
    assert evict.gang == "g0"
    cluster.run_for(4)
    cluster.add(make_gang("g5", "b", [1]))

    decisions = cluster.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["g1"]
    assert not decisions.reprieves
    cluster.run_for(20)
    assert cluster.start_times["g3"] == arrival + 15


def test_victim_of_other_preemptor_keeps_its_deadline() -> None:
    cluster = make_cluster(1, make_quota("a", 2), make_quota("b", 2), make_quota("c", 4), make_quota("d"))
    cluster.add(make_gang("low", "d", [2, 2, 2, 2], band=LOW, elastic=True, minimum=1))
    cluster.cycle()
    cluster.add(make_gang("one", "a", [2]))
    cluster.cycle()
    cluster.now += 5
    cluster.add(make_gang("two", "b", [2]))
    cluster.cycle()
    cluster.now += 1
    del cluster.gangs["one"], cluster.gangs["two"]
    cluster.add(make_gang("both", "c", [4]))

    decisions = cluster.cycle()

    assert [(evict.pods, evict.deadline) for evict in decisions.evicts] == [(("low-3",), 1010.0), (("low-2",), 1015.0)]
    assert {evict.makes_room_for for evict in decisions.evicts} == {"both"}
