"""Pools that enforce run limits evict gangs whose run reaches its limit."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.unit.arbiter.limit_stories import INVARIANTS
from tests.unit.arbiter.simulated_cluster import (
    KEY,
    OTHER,
    Cluster,
    make_cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
    with_pod_pools,
)
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import GUARANTEED, LOW, Band, Gang, PodState

START = 1000.0
"""First time of the clusters."""


def limited_cluster(*gangs: Gang, guarantee: int = 0, **defaults: float) -> Cluster:
    """Return a cluster of two nodes that enforces limits, after the cycle that starts these gangs."""
    cluster = make_cluster(2, make_quota("a", guarantee), make_quota("b"))
    cluster.enforce_limits(**defaults)
    cluster.add(*gangs)
    cluster.cycle()
    return cluster


def cycle_at(cluster: Cluster, seconds: float) -> list[tuple[str, float, float]]:
    """Decide some seconds after the start; return gang, limit and deadline (since the start) of each eviction."""
    cluster.advance(START + seconds - cluster.now)
    decisions = cluster.cycle()
    return [(evict.gang, evict.reached_limit, evict.deadline - START) for evict in decisions.evicts]


def test_gang_is_deleted_at_its_limit() -> None:
    cluster = limited_cluster(make_gang("runs", "a", [8, 8], run_limit=100.0))

    assert cycle_at(cluster, 89.0) == []
    assert cycle_at(cluster, 90.0) == [("runs", 100.0, 100.0)]
    assert {pod.state for pod in cluster.gangs["runs"].pods} == {PodState.NOTIFIED}
    assert cycle_at(cluster, 95.0) == []
    cluster.advance(10.0)
    assert {pod.state for pod in cluster.gangs["runs"].pods} == {PodState.ENDING}


def test_pool_that_does_not_enforce_limits_evicts_no_gang() -> None:
    cluster = make_cluster(1, make_quota("a"))
    cluster.pool = replace(cluster.pool, default_limits={GUARANTEED: 50.0})
    cluster.add(make_gang("runs", "a", [8], run_limit=100.0), make_gang("waits", "a", [8], band=LOW))
    cluster.cycle()

    assert cycle_at(cluster, 1000.0) == []


@pytest.mark.parametrize(("band", "limit"), [(GUARANTEED, 200.0), (LOW, 60.0)])
def test_default_of_the_band_applies_to_gangs_without_declared_limit(band: Band, limit: float) -> None:
    declared = make_gang("declares", "a", [8], band=band, run_limit=500.0)
    cluster = limited_cluster(make_gang("runs", "a", [8], band=band), declared, guaranteed=200.0, low=60.0)

    assert cycle_at(cluster, limit - 11.0) == []
    assert cycle_at(cluster, limit - 10.0) == [("runs", limit, limit)]
    assert cycle_at(cluster, 489.0) == []
    assert cycle_at(cluster, 490.0)[-1] == ("declares", 500.0, 500.0)


def test_band_without_default_has_no_limit() -> None:
    cluster = limited_cluster(make_gang("runs", "a", [8]), low=60.0)

    assert cycle_at(cluster, 5000.0) == []


def test_late_notice_is_not_shortened() -> None:
    cluster = limited_cluster(make_gang("runs", "a", [8], run_limit=100.0))

    assert cycle_at(cluster, 300.0) == [("runs", 100.0, 310.0)]


def test_limit_shorter_than_the_notice_is_announced_after_the_start() -> None:
    cluster = limited_cluster(make_gang("runs", "a", [8], run_limit=4.0))

    assert cluster.cycle().evicts == ()
    assert cycle_at(cluster, 0.5) == [("runs", 4.0, 4.5)]


def test_brief_notice_before_a_brief_limit() -> None:
    brief = {"brief_run": 60.0, "brief_notice": 2.0}
    cluster = limited_cluster(
        make_gang("short", "a", [8], run_limit=50.0, **brief), make_gang("long", "a", [8], run_limit=70.0, **brief)
    )

    assert cycle_at(cluster, 47.0) == []
    assert cycle_at(cluster, 48.0) == [("short", 50.0, 50.0)]
    assert cycle_at(cluster, 60.0) == [("long", 70.0, 70.0)]


def test_elastic_gang_is_evicted_whole_when_its_first_pods_reach_the_limit() -> None:
    gang = make_gang("grows", "a", [8, 8], minimum=1, elastic=True, run_limit=100.0)
    cluster = make_cluster(1, make_quota("a"))
    cluster.enforce_limits()
    cluster.add(gang)
    cluster.cycle()
    cluster.pool = replace(cluster.pool, nodes=(*cluster.pool.nodes, make_node("n1")))
    assert cycle_at(cluster, 50.0) == []
    assert len(cluster.placed_nodes("grows")) == 2

    assert cycle_at(cluster, 90.0) == [("grows", 100.0, 100.0)]
    assert cluster.placed_nodes("grows") == {}


def test_no_pod_starts_before_the_run_has_ended_as_a_whole() -> None:
    gang = make_gang("runs", "a", [8, 8, 8], minimum=1, elastic=True, run_limit=100.0)
    cluster = limited_cluster(gang)
    cycle_at(cluster, 90.0)

    cluster.pool = replace(cluster.pool, nodes=(*cluster.pool.nodes, make_node("n2")))
    decisions = cluster.cycle()

    assert not decisions.admits
    assert reports_by_gang(decisions)["runs"].message == (
        "its run reached the run limit; it starts again when 2 pods have terminated"
    )


def test_gang_in_several_pools_keeps_the_shortest_limit() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a"), make_quota("a", pool=OTHER)], more=[make_node("m0")])
    cluster.enforce_limits(guaranteed=100.0)
    cluster.other = replace(cluster.other, default_limits={GUARANTEED: 40.0})
    cluster.add(with_pod_pools(make_gang("spans", "a", [8, 8]), (KEY,), (OTHER,)))
    cluster.cycle()
    assert len(cluster.placed_nodes("spans")) == 2

    assert cycle_at(cluster, 29.0) == []
    assert cycle_at(cluster, 30.0) == [("spans", 40.0, 40.0)]
    assert cluster.placed_nodes("spans") == {}


def test_eviction_at_the_limit_is_not_reprieved() -> None:
    """A gang of a guarantee needs the pods' nodes, and is deleted under notice; then no plan needs the eviction."""
    cluster = limited_cluster(make_gang("runs", "b", [8, 8], run_limit=100.0), guarantee=16)
    cluster.advance(85.0)
    cluster.add(make_gang("needs", "a", [8, 8]))
    assert [evict.makes_room_for for evict in cluster.cycle().evicts] == ["needs"]
    assert cycle_at(cluster, 91.0) == [("runs", 100.0, 95.0)], "an earlier deadline stays"

    del cluster.gangs["needs"]
    assert cluster.cycle().reprieves == ()
    assert {pod.state for pod in cluster.gangs["runs"].pods} == {PodState.NOTIFIED}


def test_gang_waits_for_an_eviction_at_the_limit_instead_of_evicting_others() -> None:
    cluster = limited_cluster(
        make_gang("ends", "b", [8], band=LOW, run_limit=100.0), make_gang("stays", "b", [8], band=LOW), guarantee=8
    )
    cycle_at(cluster, 90.0)
    cluster.add(make_gang("needs", "a", [8]))

    decisions = cluster.cycle()

    assert decisions.evicts == ()
    [node] = decisions.plans["needs"].nodes.values()
    assert {node} == {pod.node for pod in cluster.gangs["ends"].pods}
    cluster.run_for(20.0)
    assert {"needs", "stays"} <= cluster.running_gangs()


def test_evicted_pods_stay_inside_the_guarantee() -> None:
    cluster = limited_cluster(make_gang("runs", "a", [8], run_limit=100.0), guarantee=8)
    cycle_at(cluster, 90.0)

    assert [pod.borrowed for pod in cluster.gangs["runs"].pods] == [False]


def test_next_notice_is_the_first_of_running_and_starting_gangs() -> None:
    cluster = make_cluster(2, make_quota("a"))
    cluster.enforce_limits(low=300.0)
    cluster.add(make_gang("first", "a", [8], run_limit=200.0))
    assert cluster.cycle().next_notice == START + 190.0
    cluster.advance(10.0)
    cluster.add(make_gang("second", "a", [8], band=LOW, run_limit=50.0))
    assert cluster.cycle().next_notice == START + 50.0
    cycle_at(cluster, 50.0)

    assert cluster.cycle().next_notice == START + 190.0


def test_enforced_default_is_an_expected_end() -> None:
    cluster = limited_cluster(make_gang("runs", "a", [8]), make_gang("other", "a", [8]), guaranteed=100.0)
    cluster.add(make_gang("waits", "a", [8]))

    report = reports_by_gang(cluster.cycle())["waits"]

    assert (report.code, report.likely) == (PendingReason.ROOM, START + 100.0)


def test_cached_and_fresh_cycles_follow_changed_settings() -> None:
    cluster = limited_cluster(make_gang("runs", "a", [8]))
    for defaults in ({"guaranteed": 60.0}, {}, {"guaranteed": 40.0}):
        cluster.enforce_limits(**defaults)
        cluster.advance(5.0)
        snapshot = cluster.snapshot()
        assert decide(snapshot, cluster.now, cluster.cache) == decide(snapshot, cluster.now)
    cluster.pool = replace(cluster.pool, enforces_limits=False)
    assert cycle_at(cluster, 100.0) == []


@pytest.mark.parametrize("invariant", sorted(INVARIANTS))
@pytest.mark.parametrize("seed", range(3))
def test_stories(invariant: str, seed: int) -> None:
    """The property tests check more stories."""
    story, check = INVARIANTS[invariant](Random(seed))
    check(story)
