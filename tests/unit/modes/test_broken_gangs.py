"""Gangs of which the scheduler evicted single pods: the rest is evicted, too, unless the gang keeps its minimum."""

from __future__ import annotations

import pytest

from tests.unit.arbiter.simulated_cluster import reports_by_gang
from tests.unit.modes.world import SingleEvictions, World
from vkgateway.scheduler.core.decisions import PendingReason


@pytest.fixture
def world() -> World:
    return World(mode=SingleEvictions())


def evict_one(world: World, name: str) -> None:
    """Let the scheduler delete the first pod of a running gang."""
    world.evict_pod(world.gang(name).pods[0].uid)


def test_rest_of_a_broken_gang_is_evicted_at_once(world: World) -> None:
    world.add("low", "b", [8, 8, 8])
    world.settle()
    evict_one(world, "low")
    (evict,) = world.plan().decisions.evicts
    assert evict.whole
    assert evict.pods == tuple(pod.uid for pod in world.gang("low").pods[1:])
    assert evict.deadline == world.now, "a gang that cannot work gets no notice"


def test_gang_that_keeps_its_minimum_goes_on(world: World) -> None:
    world.add("elastic", "b", [8, 8, 8], minimum=2)
    world.settle()
    evict_one(world, "elastic")
    result = world.plan()
    assert not result.decisions.evicts
    assert not result.releases


def test_pods_that_ended_otherwise_do_not_break_a_gang(world: World) -> None:
    """A tenant deleted a pod, or a node was lost: the scheduler evicted nothing."""
    world.add("train", "b", [8, 8, 8])
    world.settle()
    evict_one(world, "train")
    world.preempted.clear()
    assert not world.plan().decisions.evicts


def test_broken_gang_is_released_and_asked_for_again_after_a_while(world: World) -> None:
    gang = world.add("low", "b", [8, 8])
    world.settle()
    evict_one(world, "low")
    world.cycle()
    assert world.attempt_of("low") is not None, "its pods have not ended"
    world.remove(lambda pod: True)
    world.sizes["low"] = 8
    world.recreate("low")
    world.cycle()
    assert world.attempt_of("low") is None
    result = world.cycle()
    assert not result.creates
    assert reports_by_gang(result.decisions)[gang.id].code is PendingReason.ROOM
    world.now += 10.0
    world.settle()
    assert world.states("low") == ["placed", "placed"]


def test_next_attempt_of_a_broken_gang_is_not_broken(world: World) -> None:
    world.add("low", "b", [8, 8])
    world.settle()
    evict_one(world, "low")
    world.plan()
    attempt = world.attempt_of("low")
    assert attempt is not None
    world.change(attempt.name, uid="later")
    world.reserved["later"] = world.reserved[attempt.uid]
    assert not world.plan().decisions.evicts


def test_single_pod_is_asked_for_again_after_its_eviction(world: World) -> None:
    world.add("one", "b", [8])
    world.settle()
    evict_one(world, "one")
    world.remove(lambda pod: True)
    world.sizes["one"] = 8
    world.recreate("one")
    world.cycle()
    assert world.attempt_of("one") is None
    world.now += 10.0
    world.settle()
    assert world.states("one") == ["placed"]
