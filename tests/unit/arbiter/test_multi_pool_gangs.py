"""Gangs whose pods name different pools: all parts start together, each by the rules of its pool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import (
    GPU,
    KEY,
    LOW,
    OTHER,
    Cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
    with_pod_pools,
)
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.reasons.report import build_report
from vkgateway.scheduler.core.snapshot import Node, PodState, Policy, PoolKey, Quota

FAR = ("elsewhere", "pool")


def make_two_pools(
    *quotas: Quota,
    nodes: tuple[Node, ...] = (make_node("n0"),),
    more: tuple[Node, ...] = (make_node("m0"),),
    **other: float,
) -> Cluster:
    """Return a cluster of two pools, a node of 8 in each, that tenants a and b may use without limit."""
    given = {(each.tenant, each.pool): each for each in quotas}
    found = [given.get((name, key), make_quota(name, pool=key)) for name in ("a", "b") for key in (KEY, OTHER)]
    policy = Policy(age_cap=other.get("age_cap", 3600.0))
    return Cluster(nodes, found, more=more, policy=policy)


def test_parts_start_together_each_in_its_pool() -> None:
    cluster = make_two_pools()
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 4]), (KEY,), (OTHER,)))

    decisions = cluster.cycle()

    assert {admit.pool: dict(admit.nodes) for admit in decisions.admits} == {KEY: {"x-0": "n0"}, OTHER: {"x-1": "m0"}}
    assert {admit.gang for admit in decisions.admits} == {"x"}


def test_no_part_starts_while_one_pool_lacks_capacity() -> None:
    cluster = make_two_pools()
    cluster.add(make_gang("full", "b", [8], pools=(OTHER,)))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [2, 2, 4]), (KEY,), (KEY,), (OTHER,)))

    decisions = cluster.cycle()

    assert not cluster.placed_nodes("x")
    report = reports_by_gang(decisions)["x"]
    assert report.code is PendingReason.ROOM
    assert report.message == (
        "needs 1 pod of nvidia.com/gpu 4 in other.compute (does not fit)"
        " and 2 pods of nvidia.com/gpu 2 in pool.compute (all fit)"
    )
    assert (report.pool, report.place, report.numbers) == (OTHER, 1, {"needed": 3.0, "fit": 2.0})


def test_each_pool_uses_its_own_guarantee() -> None:
    cluster = make_two_pools(make_quota("a", 8))
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 4]), (KEY,), (OTHER,)))

    cluster.cycle()

    assert {pod.uid: pod.borrowed for pod in cluster.gangs["x"].pods} == {"x-0": False, "x-1": True}


def test_victims_terminate_in_one_pool_while_other_pool_is_reserved() -> None:
    cluster = make_two_pools(make_quota("a", 8))
    cluster.add(make_gang("low", "b", [8], band=LOW))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 8]), (KEY,), (OTHER,)))

    decisions = cluster.cycle()
    cluster.add(make_gang("late", "b", [8], pools=(OTHER,)))

    assert [evict.gang for evict in decisions.evicts] == ["low"]
    assert reports_by_gang(decisions)["x"].message == (
        "starts on 1 node in other.compute and 1 node in pool.compute when 1 pod has terminated"
    )
    cluster.run_for(20)
    assert cluster.placed_nodes("x") == {"x-0": "n0", "x-1": "m0"}
    assert not cluster.placed_nodes("late")


def test_no_pod_is_evicted_if_other_pool_lacks_capacity() -> None:
    cluster = make_two_pools(make_quota("a", 8))
    cluster.add(make_gang("low", "b", [8], band=LOW), make_gang("full", "b", [8], pools=(OTHER,)))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 8]), (KEY,), (OTHER,)))

    assert not cluster.cycle().evicts


def test_victims_are_reprieved_when_capacity_of_other_pool_is_lost() -> None:
    cluster = make_two_pools(make_quota("a", 8), make_quota("b", 8, pool=OTHER))
    cluster.add(make_gang("low", "b", [8], band=LOW))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 8]), (KEY,), (OTHER,)))
    assert cluster.cycle().evicts
    cluster.add(make_gang("by_right", "b", [8], pools=(OTHER,)))

    decisions = cluster.cycle()

    assert [(each.gang, each.pods) for each in decisions.reprieves] == [("low", ("low-0",))]
    assert cluster.placed_nodes("by_right")
    assert not cluster.placed_nodes("x")


def test_gang_preempts_inside_guarantees_of_both_pools() -> None:
    cluster = make_two_pools(make_quota("a", 8), make_quota("a", 8, pool=OTHER))
    cluster.add(make_gang("low", "b", [8], band=LOW), make_gang("other", "b", [8], band=LOW, pools=(OTHER,)))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 8]), (KEY,), (OTHER,)))

    assert sorted(evict.gang for evict in cluster.cycle().evicts) == ["low", "other"]
    cluster.run_for(20)
    assert cluster.borrowed_marks("x") == {False}


def test_victim_is_evicted_in_all_its_pools_together() -> None:
    cluster = make_two_pools(make_quota("b", 8))
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 4], band=LOW), (KEY,), (OTHER,)))
    cluster.cycle()
    cluster.add(make_gang("by_right", "b", [8]))

    decisions = cluster.cycle()

    [evict] = decisions.evicts
    assert (evict.gang, sorted(evict.pods), evict.whole) == ("x", ["x-0", "x-1"], True)
    assert {pod.state for pod in cluster.gangs["x"].pods} == {PodState.NOTIFIED}
    assert not cluster.cycle().reprieves
    cluster.run_for(20)
    assert cluster.placed_nodes("by_right")
    assert not cluster.placed_nodes("x")


def test_preemption_cost_includes_pods_in_other_pools() -> None:
    cluster = make_two_pools(make_quota("b", 8), nodes=(make_node("n0"), make_node("n1")))
    cluster.add(
        with_pod_pools(make_gang("x", "a", [8, 8], band=LOW), (KEY,), (OTHER,)), make_gang("lone", "a", [8], band=LOW)
    )
    cluster.cycle()
    cluster.advance(100)
    cluster.add(make_gang("by_right", "b", [8]))

    assert [evict.gang for evict in cluster.cycle().evicts] == ["lone"]


def test_limit_applies_to_each_pool_separately() -> None:
    cluster = make_two_pools(make_quota("a", limit=4, pool=OTHER))
    cluster.add(
        with_pod_pools(make_gang("x", "a", [8, 4]), (KEY,), (OTHER,)),
        with_pod_pools(make_gang("y", "a", [0, 1]), (KEY,), (OTHER,)),
    )

    report = reports_by_gang(cluster.cycle())["y"]

    assert cluster.placed_nodes("x")
    assert report.code is PendingReason.QUOTA
    assert report.message == (
        "in other.compute: needs nvidia.com/gpu 1; in use in other.compute: nvidia.com/gpu 4; limit: nvidia.com/gpu 4; "
        "a limit of nvidia.com/gpu 5 is enough"
    )


def test_reservation_covers_full_pool_and_other_pool() -> None:
    cluster = make_two_pools()
    cluster.add(make_gang("ends", "b", [8], pools=(OTHER,), run_limit=100.0))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 8]), (KEY,), (OTHER,)))
    cluster.cycle()
    cluster.add(make_gang("long", "b", [8]), make_gang("short", "b", [8], run_limit=50.0))

    decisions = cluster.cycle()

    assert reports_by_gang(decisions)["x"].earliest == cluster.now + 100.0
    assert cluster.placed_nodes("short")
    assert reports_by_gang(decisions)["long"].code in (PendingReason.RESERVATION, PendingReason.ROOM)
    cluster.run_times |= {"ends": 100.0, "short": 50.0}
    cluster.run_for(110)
    assert cluster.placed_nodes("x")


def test_aged_gang_is_not_starved_in_either_pool() -> None:
    cluster = make_two_pools(age_cap=20.0)
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 8]), (KEY,), (OTHER,)))
    cluster.gangs["x"] = replace(cluster.gangs["x"], created=cluster.now)
    for number in range(60):
        for key in (KEY, OTHER):
            name = f"s{number}{key[1]}"
            cluster.add(make_gang(name, "b", [4], pools=(key,)))
            cluster.run_times[name] = 9.0
        cluster.cycle()
        cluster.advance(4)

    assert "x" in cluster.start_times


def test_replacement_pod_starts_in_its_pool_while_others_run() -> None:
    cluster = make_two_pools()
    cluster.add(with_pod_pools(make_gang("x", "a", [4, 4]), (KEY,), (OTHER,)))
    cluster.cycle()
    one = cluster.gangs["x"]
    fresh = replace(one.pods[1], uid="again", state=PodState.WAITING, pool=None, node="")
    cluster.gangs["x"] = replace(one, pods=(one.pods[0], fresh))

    assert [(each.pool, dict(each.nodes)) for each in cluster.cycle().admits] == [(OTHER, {"again": "m0"})]


def test_surplus_grows_and_is_reclaimed_per_pool() -> None:
    cluster = make_two_pools(make_quota("b", 4, pool=OTHER))
    cluster.add(with_pod_pools(make_gang("x", "a", [4, 4, 4], minimum=2, elastic=True), (KEY,), (OTHER,), (OTHER,)))
    cluster.cycle()
    assert len(cluster.placed_nodes("x")) == 3
    cluster.add(make_gang("by_right", "b", [4], pools=(OTHER,)))

    [evict] = cluster.cycle().evicts

    assert (evict.pods, evict.whole) == (("x-2",), False)


def test_surplus_starts_with_the_gang_in_the_other_pool_of_its_part() -> None:
    budget_used = replace(make_quota("a", 8), stopped=(GPU,)), replace(make_quota("a", 2, pool=OTHER), stopped=(GPU,))
    cluster = make_two_pools(*budget_used, nodes=(make_node("n0"), make_node("n1")))
    cluster.add(make_gang("beside", "b", [4], band=LOW, pools=(OTHER,)))
    cluster.cycle()
    pools = (KEY,), (OTHER,), (OTHER, KEY), (KEY, OTHER)
    cluster.add(with_pod_pools(make_gang("x", "a", [4, 1, 1, 2], minimum=3), *pools))

    cluster.cycle()

    placed = {pod.uid: (pod.pool, pod.borrowed) for pod in cluster.gangs["x"].pods}
    assert placed == {"x-0": (KEY, False), "x-1": (OTHER, False), "x-2": (OTHER, False), "x-3": (KEY, False)}


@pytest.mark.parametrize("full", [KEY, OTHER])
def test_pods_with_pool_choice_start_where_capacity_is_free(full: PoolKey) -> None:
    cluster = make_two_pools(nodes=(make_node("n0"), make_node("n1")), more=(make_node("m0"), make_node("m1")))
    cluster.add(make_gang("full", "b", [8], pools=(full,)))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 8, 8]), (KEY, OTHER), (KEY,), (OTHER,)))

    cluster.cycle()

    free = OTHER if full == KEY else KEY
    assert {pod.uid: pod.pool for pod in cluster.gangs["x"].pods} == {"x-0": free, "x-1": KEY, "x-2": OTHER}


def test_pods_with_common_pool_start_there_together() -> None:
    cluster = make_two_pools()
    cluster.add(with_pod_pools(make_gang("x", "a", [4, 4]), (KEY, OTHER), (OTHER,)))

    cluster.cycle()

    assert {pod.pool for pod in cluster.gangs["x"].pods} == {OTHER}


def test_pools_of_different_compute_clusters_are_invalid() -> None:
    cluster = make_two_pools()
    cluster.add(with_pod_pools(make_gang("x", "a", [4, 4]), (KEY,), (FAR,)))

    report = reports_by_gang(cluster.cycle())["x"]

    assert report.code is PendingReason.INVALID
    assert "pool.compute in compute cluster compute and pool.elsewhere in compute cluster elsewhere" in report.message
    assert "have all its pods select pools of the same one" in report.message


def test_lost_plan_is_recreated() -> None:
    """The gateway restarts in the middle of an eviction."""
    cluster = make_two_pools(make_quota("a", 8))
    cluster.add(make_gang("low", "b", [8], band=LOW))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 8]), (KEY,), (OTHER,)))
    before = cluster.cycle().plans["x"]
    cluster.gangs["x"] = replace(cluster.gangs["x"], plan=None)

    decisions = decide(cluster.snapshot(), cluster.now)

    assert not decisions.reprieves
    assert {each.pool: each.nodes for each in (decisions.plans["x"], *decisions.plans["x"].also)} == {
        each.pool: each.nodes for each in (before, *before.also)
    }


def test_skipped_gang_uses_capacity_freed_for_later_gang() -> None:
    """The gateway restarts in the middle of an eviction."""
    cluster = make_two_pools(make_quota("a", 4))
    cluster.quotas += (make_quota("c"),)
    cluster.add(make_gang("running", "c", [8], band=LOW))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [4, 4]), (KEY,), (OTHER,)))
    cluster.cycle()
    cluster.gangs["x"] = replace(cluster.gangs["x"], plan=None)
    cluster.add(replace(make_gang("first", "b", [4], band=LOW), created=1.0))

    decisions = cluster.cycle()

    assert decisions.plans.keys() == {"first", "x"}


def test_surplus_in_other_pool_is_evicted_with_min_members() -> None:
    cluster = make_two_pools()
    cluster.add(
        with_pod_pools(make_gang("low", "a", [4, 4, 4], band=LOW, minimum=2, elastic=True), (OTHER,), (OTHER,), (KEY,))
    )
    cluster.run_for(1)
    assert len(cluster.placed_nodes("low")) == 3
    cluster.add(make_gang("x", "a", [8], pools=(OTHER,)))

    cluster.cycle()

    assert {pod.state for pod in cluster.gangs["low"].pods} == {PodState.NOTIFIED}


def test_part_borrows_rather_than_take_cells_of_other_part() -> None:
    cluster = make_two_pools(
        make_quota("b", 8, pool=OTHER), make_quota("a", 1, pool=OTHER), more=(make_node("m0"), make_node("m1"))
    )
    cluster.add(make_gang("cell", "b", [4], pools=(OTHER,)), make_gang("full", "b", [7]))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [1, 1, 8]), (KEY,), (OTHER,), (KEY, OTHER)))

    cluster.cycle()

    assert cluster.placed_nodes("x") == {"x-0": "n0", "x-1": cluster.gangs["cell"].pods[0].node, "x-2": "m1"}
    assert cluster.borrowed_marks("x") == {True}


def test_no_gang_starts_on_cells_that_later_gang_needs() -> None:
    cluster = make_two_pools(make_quota("a", 8))
    cluster.add(replace(make_gang("first", "b", [8], band=LOW), created=1.0))
    cluster.add(with_pod_pools(make_gang("x", "a", [8, 4]), (KEY,), (OTHER,)))

    decisions = cluster.cycle()

    assert cluster.running_gangs() == {"x"}
    assert [report.gang for report in decisions.holds] == ["first"]


def test_report_counts_pods_in_their_own_pools() -> None:
    cluster = make_two_pools()
    cluster.add(make_gang("full", "b", [8], pools=(OTHER,)))
    cluster.cycle()
    cluster.add(with_pod_pools(make_gang("x", "a", [2, 4]), (KEY,), (OTHER,)))
    snapshot = cluster.snapshot()

    shown = build_report(snapshot, decide(snapshot, cluster.now), cluster.now)

    [one] = [each for each in shown.gangs if each.id == "x"]
    assert (one.pool, one.spread, one.waiting_units) == ("other.compute", ("pool.compute", "other.compute"), 6)
    assert {each.pool: each.waiting for each in shown.pools} == {"pool": 2, "other": 4}


def test_part_inside_guarantee_takes_no_reserve_that_another_part_must_leave() -> None:
    quotas = [make_quota(name, pool=key) for name in ("a", "b") for key in (KEY, OTHER) if (name, key) != ("a", OTHER)]
    nodes = make_node("m0"), make_node("m1")
    cluster = Cluster((make_node("n0", 4),), [*quotas, make_quota("a", 8, pool=OTHER)], more=nodes, reserve=1)
    cluster.add(with_pod_pools(make_gang("x", "a", [2, 8, 8]), (KEY,), (OTHER,), (OTHER, KEY)))

    decisions = cluster.cycle()

    assert not decisions.admits
    assert not decisions.plans, "no plan can become ready"
