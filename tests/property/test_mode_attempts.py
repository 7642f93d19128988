"""Attempts at another scheduler over random stories with crashes: every gang starts as a whole, and nothing is left."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

from tests.unit.modes.world import World, random_world, writes
from vkgateway.scheduler.backends.attempt import AttemptState
from vkgateway.scheduler.core.snapshot import PodState

CASES = int(os.environ.get("VKGATEWAY_CASES", "200"))


def interrupted_cycle(world: World, random: Random) -> None:
    """Run a cycle that ends after some of its decisions and writes: the gateway was killed."""
    result = world.plan()
    if random.random() < 0.8:
        world.carry_out(result.decisions)
    done = list(writes(result))
    for write in done[: random.randint(0, len(done))]:
        world.write(write)
        world.check()


def random_event(world: World, random: Random) -> None:
    """Change something outside the gateway."""
    name = random.choice(sorted(world.gangs))
    gang = world.gangs[name]
    kind = random.random()
    if kind < 0.3:
        world.schedule()
    elif kind < 0.45:
        attempt = world.attempt_of(name)
        if attempt is not None and attempt.state is AttemptState.ADMITTED:
            world.evict(name)
    elif kind < 0.6 and gang.pods:
        gone = random.choice(gang.pods).uid
        if any(pod.state is not PodState.WAITING for pod in gang.pods):
            world.shrunk.add(gang.id)
        world.remove(lambda pod: pod.uid == gone)
    elif kind < 0.8:
        world.recreate(name)
    elif kind < 0.88:
        fail_or_repair_node(world, random)
    else:
        world.now += random.choice((1.0, 5.0, 20.0))
        world.end_pods()


@pytest.mark.parametrize("seed", range(CASES))
def test_slots_of_ended_pods_are_returned_and_never_used_again(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    for name, gang in world.gangs.items():
        # A part of the gang suffices, or its pods end one by one.
        world.gangs[name] = replace(gang, minimum=random.randint(1, len(gang.pods)))
    for _ in range(40):
        running = [pod.uid for gang in world.gangs.values() for pod in gang.pods if pod.state is PodState.PLACED]
        if running and random.random() < 0.3:
            uid = random.choice(running)
            world.shrunk.update(gang.id for gang in world.gangs.values() if uid in {pod.uid for pod in gang.pods})
            world.complete(uid)
        else:
            random_event(world, random)
        if random.random() < 0.4:
            interrupted_cycle(world, random)
        else:
            world.cycle()
        world.check()


def fail_or_repair_node(world: World, random: Random) -> None:
    """Change whether a node is usable. The scheduler moves slots from a node that failed, not from a cordoned one."""
    node = f"n{random.randrange(world.nodes)}"
    if node in world.down:
        world.down.remove(node)
        return
    world.down.add(node)
    if random.random() < 0.3:
        return
    for name in sorted(world.gangs):
        attempt = world.attempt_of(name)
        if attempt is not None and attempt.state is AttemptState.ADMITTED:
            world.shrunk.add(world.gangs[name].id)
            world.move_slots(name)


@pytest.mark.parametrize("seed", range(CASES))
def test_gangs_start_as_a_whole_and_leave_nothing(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    for _ in range(40):
        random_event(world, random)
        if random.random() < 0.4:
            interrupted_cycle(world, random)
        else:
            world.cycle()
        world.check()
    assert all(document["metadata"]["name"] == name for name, document in world.asked.items())
    world.down.clear()
    world.remove(lambda pod: True)
    world.settle()
    assert not world.attempts


@pytest.mark.parametrize("seed", range(CASES // 2))
def test_every_gang_that_fits_the_empty_pool_starts(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    for _ in range(10):
        random_event(world, random)
        interrupted_cycle(world, random)
    world.down.clear()
    for name in sorted(world.gangs):
        world.remove(lambda pod: True)
        world.settle()
        world.recreate(name)
        world.settle()
        count, size = world.gangs[name].minimum, world.sizes[name]
        fits = count <= world.nodes * (8 // size)
        assert set(world.states(name)) == ({"placed"} if fits else {"waiting"})
