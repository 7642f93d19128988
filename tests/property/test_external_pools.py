"""Pools of an external scheduler over random stories: whole gangs within limits, and nothing written to a scheduler."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

from tests.unit.arbiter.simulated_cluster import GPU, make_quota
from tests.unit.modes.external_world import ExternalWorld
from vkgateway.scheduler.backends.gang_split import GangSplitter
from vkgateway.scheduler.backends.mode import ModeResult
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.snapshot import PodState

CASES = int(os.environ.get("VKGATEWAY_CASES", "200"))


def random_world(random: Random) -> ExternalWorld:
    limit = random.choice((None, 8, 16))
    world = ExternalWorld(nodes=random.randint(1, 4), quotas=(make_quota("a", 8), make_quota("b", limit=limit)))
    for index in range(random.randint(1, 6)):
        size, count = random.choice((1, 2, 4, 8)), random.choice((1, 1, 2, 3))
        name, elastic = f"g{index}", random.random() < 0.3
        world.sizes[name] = size
        world.add(
            name,
            random.choice(("a", "b")),
            [size] * count,
            minimum=random.randint(1, count) if elastic else count,
            elastic=elastic,
            maximum=random.choice((None, 2)) if elastic else None,
            priority=random.choice((0, 0, 5)),
            created=float(index),
        )
    return world


def random_event(world: ExternalWorld, random: Random) -> None:
    """Change something outside the gateway."""
    name = random.choice(sorted(world.gangs))
    gang = world.gangs[name]
    placed = [index for index, pod in enumerate(gang.pods) if pod.state is PodState.PLACED]
    kind = random.random()
    if kind < 0.25 and placed:
        world.preempt(name, index=random.choice(placed))
    elif kind < 0.4 and gang.pods:
        gone = random.choice(gang.pods).uid
        world.remove(lambda pod: pod.uid == gone)
    elif kind < 0.55:
        world.recreate(name)
    elif kind < 0.7:
        world.recreate_missing(name)
    elif kind < 0.85:
        world.end_everything()
    else:
        world.now += random.choice((1.0, 5.0, 20.0))
        world.end_pods()


def used_gpus(world: ExternalWorld, tenant: str) -> int:
    """Return the GPUs of the pods that were passed on."""
    gangs = (gang for gang in world.gangs.values() if gang.tenant == tenant)
    return sum(pod.shape.amount_of(GPU) for gang in gangs for pod in gang.pods if pod.pool is not None) // 1000


def check_result(world: ExternalWorld, result: ModeResult) -> None:
    """Check the decisions of a cycle, before they are carried out."""
    assert (result.creates, result.releases, result.pool_objects) == ((), (), ())
    gangs = {gang.id: gang for gang in world.gangs.values()}
    starting = {uid for admit in result.decisions.admits for uid in admit.nodes}
    for admit in result.decisions.admits:
        gang = gangs[admit.gang]
        after = [pod for pod in gang.pods if pod.state is PodState.PLACED or pod.uid in starting]
        is_running = any(pod.state is not PodState.WAITING for pod in gang.pods)
        assert is_running or has_min_members(gang, after), f"part of {gang.id} is passed on"
        breach = world.breaches.get(gang.id)
        assert breach is None or has_min_members(gang, [pod for pod in gang.pods if pod.state is PodState.PLACED])
    for evict in result.decisions.evicts:
        assert evict.gang in world.breaches, "only broken gangs are swept"


@pytest.mark.parametrize("seed", range(CASES))
def test_gangs_are_passed_on_whole_and_within_limits(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    limits = {quota.tenant: quota.limit.get(GPU, world.nodes * 8000) // 1000 for quota in world.quotas}
    for _ in range(40):
        before = {tenant: used_gpus(world, tenant) for tenant in limits}
        random_event(world, random)
        result = world.plan()
        check_result(world, result)
        if random.random() < 0.8:
            world.carry_out(result.decisions)
        for tenant, limit in limits.items():
            assert used_gpus(world, tenant) <= max(before[tenant], min(limit, world.nodes * 8))


@pytest.mark.parametrize("seed", range(CASES // 2))
def test_parts_of_gangs_are_those_of_the_implied_attempts(seed: int) -> None:
    """A split that knows the attempts from the beginning gives the same parts."""
    random = Random(seed)
    world = random_world(random)
    for _ in range(40):
        random_event(world, random)
        given = world.given()
        splitter = GangSplitter(world.mode, given)
        attempts = world.mode.implied_attempts(given, splitter)
        again = GangSplitter(world.mode, replace(given, attempts=attempts))
        for gang in given.snapshot.gangs:
            if gang.tenant in given.known_tenants:
                assert splitter.split_gang(gang) == again.split_gang(gang)
        world.cycle()


@pytest.mark.parametrize("seed", range(CASES // 2))
def test_every_gang_that_fits_starts_once_the_others_ended(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    for _ in range(10):
        random_event(world, random)
        world.carry_out(world.plan().decisions)
    for name in sorted(world.gangs):
        world.remove(lambda pod: True)
        world.now += 20.0
        world.plan()
        world.gangs[name] = replace(world.gang(name), maximum=None)
        world.recreate(name)
        world.settle()
        gang, size = world.gang(name), world.sizes[name]
        quota = next(quota for quota in world.quotas if quota.tenant == gang.tenant)
        most = min(quota.limit.get(GPU, 32_000_000) // 1000, world.nodes * 8)
        expected = {"placed"} if gang.minimum * size <= most else {"waiting"}
        assert set(world.states(name)) == expected
