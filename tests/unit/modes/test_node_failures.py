"""Nodes that fail or are cordoned under gangs of another scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import reports_by_gang
from tests.unit.modes.world import World
from vkgateway.scheduler.backends.gang_split import assign_slots, displaced_pods
from vkgateway.scheduler.backends.pod_sets import pod_set_name
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import Pod, PodState, Requirement


@pytest.fixture
def world() -> World:
    """Return a pool in which a gang runs on the nodes n0 and n1."""
    world = World()
    world.sizes["train"] = 8
    world.add("train", "a", [8, 8])
    world.settle()
    assert [pod.node for pod in world.gang("train").pods] == ["n0", "n1"]
    return world


def slots_of(world: World, name: str) -> set[str]:
    """Return the nodes on which a gang has slots."""
    attempt = world.attempt_of(name)
    assert attempt is not None
    return {node for nodes in attempt.slots.values() for node, count in nodes.items() if count}


def test_replacement_of_a_lost_pod_takes_the_moved_slot(world: World) -> None:
    world.down.add("n0")
    world.move_slots("train")
    world.remove(lambda pod: pod.node == "n0")
    world.recreate("train")
    world.settle()
    assert sorted(pod.node for pod in world.gang("train").pods) == ["n1", "n2"]
    assert len(world.attempts) == 1


def test_pod_whose_slot_moved_runs_until_its_node_is_assigned_to_another_gang(world: World) -> None:
    world.down.add("n0")
    world.move_slots("train")
    world.down.clear()
    assert not world.cycle().decisions.evicts
    other = world.add("other", "b", [8])
    world.settle()
    assert slots_of(world, "other") == {"n0"}
    assert world.states("train") == ["notified", "placed"]
    assert world.gang("train").pods[0].evicted_for == other.id
    assert world.states("other") == ["waiting"]
    assert reports_by_gang(world.plan().decisions)[other.id].code is PendingReason.EVICTION
    assert not world.plan().decisions.evicts
    world.settle(seconds=10.0)
    world.settle()
    assert world.states("other") == ["placed"]
    world.check_nodes()


def test_gang_without_another_node_is_evicted_and_starts_again_as_a_whole(world: World) -> None:
    world.add("fills", "b", [8, 8])
    world.settle()
    world.down.add("n0")
    assert not world.move_slots("train")
    (evict,) = world.cycle().decisions.evicts
    assert (evict.whole, len(evict.pods), evict.makes_room_for) == (True, 2, "")
    world.settle(seconds=10.0)
    world.recreate("train")
    world.settle()
    assert world.states("train") == ["waiting", "waiting"]
    world.down.clear()
    world.settle()
    assert world.states("train") == ["placed", "placed"]


def test_cordoned_node_keeps_its_pods(world: World) -> None:
    world.down.add("n0")
    assert not world.cycle().decisions.evicts
    assert world.states("train") == ["placed", "placed"]


def test_gang_leaves_a_cordoned_node_where_its_replacement_cannot_start(world: World) -> None:
    world.down.add("n0")
    world.remove(lambda pod: pod.node == "n0")
    world.recreate("train")
    (evict,) = world.cycle().decisions.evicts
    assert (evict.whole, evict.makes_room_for) == (True, "")
    world.settle(seconds=10.0)
    world.recreate("train")
    world.settle()
    assert sorted(pod.node for pod in world.gang("train").pods) == ["n1", "n2"]


def test_gang_that_was_admitted_to_a_node_before_its_cordon_asks_again() -> None:
    world = World()
    world.add("train", "a", [8])
    world.cycle()
    world.schedule()
    world.down.add("n0")
    assert [one.name for one in world.cycle().releases]
    world.settle()
    assert [pod.node for pod in world.gang("train").pods] == ["n1"]


def test_gang_waits_while_nodes_are_assigned_that_do_not_exist_in_the_pool() -> None:
    """Asking again could lead to the same nodes."""
    world = World()
    gang = world.add("train", "a", [8])
    world.cycle()
    world.schedule()
    attempt = world.attempt_of("train")
    assert attempt is not None
    world.change(attempt.name, slots={pod_set_name(gang.pods[0]): {"elsewhere": 1}})
    result = world.cycle()
    assert not result.releases
    assert "do not exist" in reports_by_gang(result.decisions)[gang.id].message
    assert world.states("train") == ["waiting"]


def test_gang_does_not_wait_for_the_end_of_pods_on_a_failed_node(world: World) -> None:
    gang = world.gang("train")
    world.down.add("n0")
    world.evict("train")
    dying = tuple(replace(pod, state=PodState.ENDING, deadline=world.now + 30) for pod in gang.pods[:1])
    world.gangs["train"] = replace(gang, pods=dying)
    world.recreate("train")
    world.gangs["train"] = replace(world.gang("train"), pods=(*dying, *replacements(world)))
    world.settle()
    assert world.states("train") == ["ending", "waiting", "waiting"]
    world.now += 31
    world.settle()
    assert world.states("train") == ["ending", "placed", "placed"]


def replacements(world: World) -> list[Pod]:
    """Return new pods for the whole gang."""
    waiting = [pod for pod in world.gang("train").pods if pod.state is PodState.WAITING]
    return [waiting[0], replace(waiting[0], uid="another", rank=1)]


def test_pod_that_was_bound_to_one_of_several_virtual_nodes_keeps_its_slot(world: World) -> None:
    """Its node constraints changed since its gang was admitted."""
    term = (Requirement(key="zone", operator="In", values=("z0",)),)
    gang = world.gang("train")
    bound = tuple(replace(pod, shape=replace(pod.shape, terms=(term,))) for pod in gang.pods)
    assert pod_set_name(bound[0]) != pod_set_name(gang.pods[0])
    world.gangs["train"] = replace(gang, pods=bound)
    world.down.add("n0")
    world.move_slots("train")
    world.remove(lambda pod: pod.node == "n0")
    waiting = replace(gang.pods[0], uid="new", node="", pool=None, state=PodState.WAITING)
    world.gangs["train"] = replace(gang, pods=(*world.gang("train").pods, waiting))
    assert not world.cycle().decisions.evicts
    assert sorted(pod.node for pod in world.gang("train").pods) == ["n1", "n2"]


def test_only_pods_without_a_slot_on_their_node_are_displaced(world: World) -> None:
    pods = world.gang("train").pods
    name = pod_set_name(pods[0])
    assert displaced_pods({name: {"n1": 1, "n2": 1}}, pods) == [pods[0]]
    assert displaced_pods({name: {"": 2}}, pods) == []
    waiting = replace(pods[0], uid="new", node="", state=PodState.WAITING)
    assert assign_slots({name: {"n2": 1, "n1": 1}}, pods[1:], [waiting]) == {"new": "n2"}
    assert assign_slots({name: {"n2": 1, "n1": 1}}, pods, [waiting]) == {}
