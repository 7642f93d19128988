"""Pods that take long to terminate: guarantees evict other pods, and their free neighborhood is used."""

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
from vkgateway.arbiter.decisions import PendingReason
from vkgateway.arbiter.snapshot import PodState


@pytest.mark.parametrize("deadline", [3600.0, -3600.0], ids=["long grace", "overdue"])
def test_guarantee_does_not_wait_for_slow_termination(deadline: float) -> None:
    there = make_cluster(1, make_quota("a", 4), make_quota("b"), make_quota("c", 4))
    there.add(make_gang("inside", "c", [4]), make_gang("low", "b", [4], band=LOW))
    there.cycle()
    [pod] = there.gangs["inside"].pods
    ending = replace(pod, state=PodState.ENDING, deadline=there.now + deadline)
    there.gangs["inside"] = replace(there.gangs["inside"], pods=(ending,))
    there.add(make_gang("high", "a", [4]))

    decisions = there.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["low"]
    assert reports_by_gang(decisions)["high"].likely == there.now + 15


def test_soon_ending_pod_is_awaited_without_eviction() -> None:
    there = make_cluster(1, make_quota("a", 4), make_quota("b"), make_quota("c", 4))
    there.add(make_gang("inside", "c", [4]), make_gang("low", "b", [4], band=LOW))
    there.cycle()
    [pod] = there.gangs["inside"].pods
    there.gangs["inside"] = replace(there.gangs["inside"], pods=(replace(pod, state=PodState.ENDING, deadline=1012.0),))
    there.add(make_gang("high", "a", [4]))

    decisions = there.cycle()

    assert not decisions.evicts
    assert reports_by_gang(decisions)["high"].likely == 1012.0


def gang_awaiting_end(deadline: float) -> Cluster:
    """A gang of `a` waits for one of `c` that is ending, and low work stands beside it; nobody has been told to go."""
    there = make_cluster(1, make_quota("a", 4), make_quota("b"), make_quota("c", 4))
    there.add(make_gang("inside", "c", [4]), make_gang("low", "b", [4], band=LOW))
    there.cycle()
    [pod] = there.gangs["inside"].pods
    ending = replace(pod, state=PodState.ENDING, deadline=deadline)
    there.gangs["inside"] = replace(there.gangs["inside"], pods=(ending,), grace=3600.0)
    there.add(make_gang("high", "a", [4]))
    return there


def test_victim_is_not_spared_when_slow_termination_nears_its_end() -> None:
    there = gang_awaiting_end(deadline=1000.0 + 46)
    there.cycle()
    assert there.gangs["low"].pods[0].state is PodState.NOTIFIED

    there.now += 5
    decisions = there.cycle()

    assert not decisions.reprieves
    there.run_for(15)
    assert there.placed_nodes("high")
    assert there.gangs["inside"].pods


def test_victims_are_evicted_when_awaited_pod_is_overdue() -> None:
    there = gang_awaiting_end(deadline=1012.0)
    assert not there.cycle().evicts

    there.now += 73
    decisions = there.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["low"]
    assert not there.cycle().evicts


def test_slow_termination_is_awaited_without_other_victims() -> None:
    there = make_cluster(1, make_quota("a", 8), make_quota("c"))
    there.add(make_gang("other", "c", [8]))
    there.cycle()
    [pod] = there.gangs["other"].pods
    there.gangs["other"] = replace(there.gangs["other"], pods=(replace(pod, state=PodState.ENDING, deadline=5000.0),))
    there.add(make_gang("high", "a", [8]))

    decisions = there.cycle()

    assert reports_by_gang(decisions)["high"].likely == 5000.0
    assert reports_by_gang(there.cycle())["high"].code is PendingReason.EVICTION


def end_pod(there: Cluster, name: str, deadline: float) -> None:
    """The only pod of a gang is being deleted."""
    [pod] = there.gangs[name].pods
    there.gangs[name] = replace(there.gangs[name], pods=(replace(pod, state=PodState.ENDING, deadline=deadline),))


def node_with_ending_pod(deadline: float) -> Cluster:
    """On the one node four GPUs are free, four come free, and a gang that borrows waits for all eight."""
    there = make_cluster(1, make_quota("a"), make_quota("b"), make_quota("c", 4), recreate=False)
    there.add(make_gang("inside", "c", [4]))
    there.cycle()
    end_pod(there, "inside", deadline)
    there.add(make_gang("large", "a", [8]))
    there.cycle()
    return there


@pytest.mark.parametrize("deadline", [1000.0 + 3600, 1000.0 - 3600], ids=["long grace", "hangs"])
def test_capacity_next_to_slow_termination_is_used(deadline: float) -> None:
    there = node_with_ending_pod(deadline)
    there.add(make_gang("small", "b", [2], run_limit=600.0))

    there.cycle()

    assert there.placed_nodes("small")


def test_capacity_next_to_soon_ending_pod_is_reserved() -> None:
    there = node_with_ending_pod(1000.0 + 20)
    there.add(make_gang("small", "b", [2], run_limit=600.0))

    there.cycle()

    assert not there.placed_nodes("small")
    there.run_for(30)
    assert there.placed_nodes("large")


def test_nothing_is_reserved_next_to_hanging_pod() -> None:
    there = node_with_ending_pod(1000.0 + 20)
    there.add(make_gang("small", "b", [2]))
    there.now += 81

    decisions = there.cycle()

    assert there.placed_nodes("small")
    assert reports_by_gang(decisions)["large"].earliest is None
