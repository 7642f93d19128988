"""Pods that terminate slowly: guarantees evict other pods, and free capacity next to them is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import (
    LOW,
    Cluster,
    make_cluster,
    make_gang,
    make_quota,
    reports_by_gang,
)
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import PodState


@pytest.mark.parametrize("deadline", [3600.0, -3600.0], ids=["long grace", "overdue"])
def test_guarantee_does_not_wait_for_slow_termination(deadline: float) -> None:
    cluster = make_cluster(1, make_quota("a", 4), make_quota("b"), make_quota("c", 4))
    cluster.add(make_gang("inside", "c", [4]), make_gang("low", "b", [4], band=LOW))
    cluster.cycle()
    [pod] = cluster.gangs["inside"].pods
    ending = replace(pod, state=PodState.ENDING, deadline=cluster.now + deadline)
    cluster.gangs["inside"] = replace(cluster.gangs["inside"], pods=(ending,))
    cluster.add(make_gang("high", "a", [4]))

    decisions = cluster.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["low"]
    assert reports_by_gang(decisions)["high"].likely == cluster.now + 15


def test_soon_ending_pod_is_awaited_without_eviction() -> None:
    cluster = make_cluster(1, make_quota("a", 4), make_quota("b"), make_quota("c", 4))
    cluster.add(make_gang("inside", "c", [4]), make_gang("low", "b", [4], band=LOW))
    cluster.cycle()
    [pod] = cluster.gangs["inside"].pods
    cluster.gangs["inside"] = replace(
        cluster.gangs["inside"], pods=(replace(pod, state=PodState.ENDING, deadline=1012.0),)
    )
    cluster.add(make_gang("high", "a", [4]))

    decisions = cluster.cycle()

    assert not decisions.evicts
    assert reports_by_gang(decisions)["high"].likely == 1012.0


def gang_awaiting_end(deadline: float) -> Cluster:
    """Return a cluster in which a gang of `a` awaits an ending gang of `c`, next to low work without notices."""
    cluster = make_cluster(1, make_quota("a", 4), make_quota("b"), make_quota("c", 4))
    cluster.add(make_gang("inside", "c", [4]), make_gang("low", "b", [4], band=LOW))
    cluster.cycle()
    [pod] = cluster.gangs["inside"].pods
    ending = replace(pod, state=PodState.ENDING, deadline=deadline)
    cluster.gangs["inside"] = replace(cluster.gangs["inside"], pods=(ending,), grace=3600.0)
    cluster.add(make_gang("high", "a", [4]))
    return cluster


def test_victim_is_not_spared_when_slow_termination_nears_its_end() -> None:
    cluster = gang_awaiting_end(deadline=1000.0 + 46)
    cluster.cycle()
    assert cluster.gangs["low"].pods[0].state is PodState.NOTIFIED

    cluster.now += 5
    decisions = cluster.cycle()

    assert not decisions.reprieves
    cluster.run_for(15)
    assert cluster.placed_nodes("high")
    assert cluster.gangs["inside"].pods


def test_victims_are_evicted_when_awaited_pod_is_overdue() -> None:
    cluster = gang_awaiting_end(deadline=1012.0)
    assert not cluster.cycle().evicts

    cluster.now += 73
    decisions = cluster.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["low"]
    assert not cluster.cycle().evicts


def test_slow_termination_is_awaited_without_other_victims() -> None:
    cluster = make_cluster(1, make_quota("a", 8), make_quota("c"))
    cluster.add(make_gang("other", "c", [8]))
    cluster.cycle()
    [pod] = cluster.gangs["other"].pods
    cluster.gangs["other"] = replace(
        cluster.gangs["other"], pods=(replace(pod, state=PodState.ENDING, deadline=5000.0),)
    )
    cluster.add(make_gang("high", "a", [8]))

    decisions = cluster.cycle()

    assert reports_by_gang(decisions)["high"].likely == 5000.0
    assert reports_by_gang(cluster.cycle())["high"].code is PendingReason.EVICTION


def end_pod(cluster: Cluster, name: str, deadline: float) -> None:
    """Mark the only pod of a gang as ending."""
    [pod] = cluster.gangs[name].pods
    cluster.gangs[name] = replace(cluster.gangs[name], pods=(replace(pod, state=PodState.ENDING, deadline=deadline),))


def node_with_ending_pod(deadline: float) -> Cluster:
    """Return one node with four free GPUs and four that become free; a borrowing gang waits for all eight."""
    cluster = make_cluster(1, make_quota("a"), make_quota("b"), make_quota("c", 4), recreate=False)
    cluster.add(make_gang("inside", "c", [4]))
    cluster.cycle()
    end_pod(cluster, "inside", deadline)
    cluster.add(make_gang("large", "a", [8]))
    cluster.cycle()
    return cluster


@pytest.mark.parametrize("deadline", [1000.0 + 3600, 1000.0 - 3600], ids=["long grace", "hangs"])
def test_capacity_next_to_slow_termination_is_used(deadline: float) -> None:
    cluster = node_with_ending_pod(deadline)
    cluster.add(make_gang("small", "b", [2], run_limit=600.0))

    cluster.cycle()

    assert cluster.placed_nodes("small")


def test_capacity_next_to_soon_ending_pod_is_reserved() -> None:
    cluster = node_with_ending_pod(1000.0 + 20)
    cluster.add(make_gang("small", "b", [2], run_limit=600.0))

    cluster.cycle()

    assert not cluster.placed_nodes("small")
    cluster.run_for(30)
    assert cluster.placed_nodes("large")


def test_nothing_is_reserved_next_to_hanging_pod() -> None:
    cluster = node_with_ending_pod(1000.0 + 20)
    cluster.add(make_gang("small", "b", [2]))
    cluster.now += 81

    decisions = cluster.cycle()

    assert cluster.placed_nodes("small")
    assert reports_by_gang(decisions)["large"].earliest is None
