"""Pods that take long to terminate: guarantees evict other pods, and their free neighborhood is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.sim import (
    LOW,
    Cluster,
    gang,
    held,
    make_cluster,
    quota,
)
from vkgateway.arbiter.decisions import PendingReason
from vkgateway.arbiter.snapshot import PodState


@pytest.mark.parametrize("deadline", [3600.0, -3600.0], ids=["long grace", "overdue"])
def test_guarantee_does_not_wait_for_slow_termination(deadline: float) -> None:
    there = make_cluster(1, quota("a", 4), quota("b"), quota("c", 4))
    there.add(gang("inside", "c", [4]), gang("low", "b", [4], band=LOW))
    there.cycle()
    [pod] = there.gangs["inside"].pods
    ending = replace(pod, state=PodState.ENDING, deadline=there.now + deadline)
    there.gangs["inside"] = replace(there.gangs["inside"], pods=(ending,))
    there.add(gang("high", "a", [4]))

    decisions = there.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["low"]
    assert held(decisions)["high"].likely == there.now + 15


def test_soon_ending_pod_is_awaited_without_eviction() -> None:
    there = make_cluster(1, quota("a", 4), quota("b"), quota("c", 4))
    there.add(gang("inside", "c", [4]), gang("low", "b", [4], band=LOW))
    there.cycle()
    [pod] = there.gangs["inside"].pods
    there.gangs["inside"] = replace(there.gangs["inside"], pods=(replace(pod, state=PodState.ENDING, deadline=1012.0),))
    there.add(gang("high", "a", [4]))

    decisions = there.cycle()

    assert not decisions.evicts
    assert held(decisions)["high"].likely == 1012.0


def gang_awaiting_end(deadline: float) -> Cluster:
    """A gang of `a` waits for one of `c` that is ending, and low work stands beside it; nobody has been told to go."""
    there = make_cluster(1, quota("a", 4), quota("b"), quota("c", 4))
    there.add(gang("inside", "c", [4]), gang("low", "b", [4], band=LOW))
    there.cycle()
    [pod] = there.gangs["inside"].pods
    ending = replace(pod, state=PodState.ENDING, deadline=deadline)
    there.gangs["inside"] = replace(there.gangs["inside"], pods=(ending,), grace=3600.0)
    there.add(gang("high", "a", [4]))
    return there


def test_victim_is_not_spared_when_slow_termination_nears_its_end() -> None:
    there = gang_awaiting_end(deadline=1000.0 + 46)
    there.cycle()
    assert there.gangs["low"].pods[0].state is PodState.NOTIFIED

    there.now += 5
    decisions = there.cycle()

    assert not decisions.reprieves
    there.settle(15)
    assert there.placed("high")
    assert there.gangs["inside"].pods


def test_victims_are_evicted_when_awaited_pod_is_overdue() -> None:
    there = gang_awaiting_end(deadline=1012.0)
    assert not there.cycle().evicts

    there.now += 73
    decisions = there.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["low"]
    assert not there.cycle().evicts


def test_slow_termination_is_awaited_without_other_victims() -> None:
    there = make_cluster(1, quota("a", 8), quota("c"))
    there.add(gang("other", "c", [8]))
    there.cycle()
    [pod] = there.gangs["other"].pods
    there.gangs["other"] = replace(there.gangs["other"], pods=(replace(pod, state=PodState.ENDING, deadline=5000.0),))
    there.add(gang("high", "a", [8]))

    decisions = there.cycle()

    assert held(decisions)["high"].likely == 5000.0
    assert held(there.cycle())["high"].code is PendingReason.EVICTION


def end_pod(there: Cluster, name: str, deadline: float) -> None:
    """The only pod of a gang is being deleted."""
    [pod] = there.gangs[name].pods
    there.gangs[name] = replace(there.gangs[name], pods=(replace(pod, state=PodState.ENDING, deadline=deadline),))


def node_with_ending_pod(deadline: float) -> Cluster:
    """On the one node four GPUs are free, four come free, and a gang that borrows waits for all eight."""
    there = make_cluster(1, quota("a"), quota("b"), quota("c", 4), recreate=False)
    there.add(gang("inside", "c", [4]))
    there.cycle()
    end_pod(there, "inside", deadline)
    there.add(gang("large", "a", [8]))
    there.cycle()
    return there


@pytest.mark.parametrize("deadline", [1000.0 + 3600, 1000.0 - 3600], ids=["long grace", "hangs"])
def test_capacity_next_to_slow_termination_is_used(deadline: float) -> None:
    there = node_with_ending_pod(deadline)
    there.add(gang("small", "b", [2], run_limit=600.0))

    there.cycle()

    assert there.placed("small")


def test_capacity_next_to_soon_ending_pod_is_reserved() -> None:
    there = node_with_ending_pod(1000.0 + 20)
    there.add(gang("small", "b", [2], run_limit=600.0))

    there.cycle()

    assert not there.placed("small")
    there.settle(30)
    assert there.placed("large")


def test_nothing_is_reserved_next_to_hanging_pod() -> None:
    there = node_with_ending_pod(1000.0 + 20)
    there.add(gang("small", "b", [2]))
    there.now += 81

    decisions = there.cycle()

    assert there.placed("small")
    assert held(decisions)["large"].earliest is None
