"""Random stories with a scheduler that evicts single pods, and with crashes: no gang runs on below its minimum."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.property.test_mode_attempts import interrupted_cycle
from tests.unit.modes.world import SingleEvictions, World, random_world
from vkgateway.scheduler.backends.attempt import AttemptState
from vkgateway.scheduler.core.snapshot import PodState

CASES = int(os.environ.get("VKGATEWAY_CASES", "200"))


def random_event(world: World, random: Random) -> None:
    """Change something outside the gateway."""
    name = random.choice(sorted(world.gangs))
    gang = world.gangs[name]
    placed = [pod for pod in gang.pods if pod.state is PodState.PLACED]
    kind = random.random()
    if kind < 0.3:
        world.schedule()
    elif kind < 0.5 and placed:
        world.shrunk.add(gang.id)
        world.evict_pod(random.choice(placed).uid)
    elif kind < 0.6 and placed:
        gone = random.choice(placed).uid
        world.shrunk.add(gang.id)
        world.remove(lambda pod: pod.uid == gone)
    elif kind < 0.8:
        world.recreate(name)
    else:
        world.now += random.choice((1.0, 5.0, 20.0))
        world.end_pods()
        world.end_evicted_pods()


def check_evictions(world: World) -> None:
    """Run a cycle, and check which pods it evicts, and which it leaves."""
    before = {name: world.attempt_of(name) for name in world.gangs}
    result = world.cycle()
    by_id = {gang.id: name for name, gang in world.gangs.items()}
    for evict in result.decisions.evicts:
        attempt = before[by_id[evict.gang]]
        assert evict.gang in world.breaches or attempt is None or attempt.state is not AttemptState.ADMITTED
    for gang in world.gangs.values():
        placed = sum(pod.state is PodState.PLACED for pod in gang.pods)
        if gang.id in world.breaches:
            assert placed == 0 or placed >= gang.minimum, f"a part of {gang.id} runs on"


@pytest.mark.parametrize("seed", range(CASES))
def test_no_gang_runs_on_below_its_minimum_after_an_eviction(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    world.mode = SingleEvictions()
    for _ in range(40):
        random_event(world, random)
        if random.random() < 0.3:
            interrupted_cycle(world, random)
        check_evictions(world)
        world.check_nodes()
    world.remove(lambda pod: True)
    world.now += 30.0
    world.settle()
    assert not world.attempts


@pytest.mark.parametrize("seed", range(CASES))
def test_gateway_that_is_killed_before_the_next_cycle_misses_no_eviction(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    world.mode = SingleEvictions()
    for _ in range(30):
        random_event(world, random)
        if random.random() < 0.4:
            # The end of the evicted pod is mirrored, and no cycle follows it.
            world.now += 5.0
            world.end_evicted_pods()
            world.restart()
            if random.random() < 0.5:
                world.recreate(random.choice(sorted(world.gangs)))
        check_evictions(world)
        for gang in world.gangs.values():
            placed = [pod for pod in gang.pods if pod.state is PodState.PLACED]
            evicted_at = world.signs.get(gang.id, 0.0)
            is_part = 0 < len(placed) < gang.minimum and all(pod.since <= evicted_at for pod in placed)
            assert not is_part, f"a part of {gang.id} runs on"
        world.check_nodes()


@pytest.mark.parametrize("seed", range(CASES // 4))
def test_restart_evicts_no_gang_that_runs_again(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    world.mode = SingleEvictions()
    for _ in range(20):
        random_event(world, random)
        world.cycle()
    for name in sorted(world.gangs):
        world.recreate(name)
    for _ in range(4):
        world.settle(seconds=15.0)
        world.end_evicted_pods()
    before = {name: world.states(name) for name in world.gangs}
    world.restart()
    world.settle()
    assert {name: world.states(name) for name in world.gangs} == before


@pytest.mark.parametrize("seed", range(CASES // 2))
def test_every_broken_gang_starts_again(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    world.mode = SingleEvictions()
    for _ in range(20):
        random_event(world, random)
        world.cycle()
    for name in sorted(world.gangs):
        world.remove(lambda pod: True)
        world.settle()
        world.recreate(name)
        for _ in range(3):
            world.settle(seconds=15.0)
        count, size = world.gangs[name].minimum, world.sizes[name]
        fits = count <= world.nodes * (8 // size)
        assert set(world.states(name)) == ({"placed"} if fits else {"waiting"})
