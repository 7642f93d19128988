"""Places in the queue of another scheduler."""

from __future__ import annotations

from dataclasses import replace

from tests.support.machine import assert_linear
from tests.unit.arbiter.simulated_cluster import GPU, KEY, OTHER, gpu_shape, make_quota, reports_by_gang
from tests.unit.modes.world import World
from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState
from vkgateway.scheduler.backends.places import QueueUsage, queue_places
from vkgateway.scheduler.core.snapshot import Band, PoolKey


def pending(
    name: str, *, tenant: str = "a", gpus: int = 8, priority: int = 0, created: float = 0.0, pool: PoolKey = KEY
) -> tuple[Attempt, MilliResources]:
    """Return a pending attempt whose UID is its name, and its requests."""
    attempt = Attempt(
        name=name,
        uid=name,
        resource_version="1",
        tenant=tenant,
        pool=pool,
        digest="",
        state=AttemptState.PENDING,
        created=created,
        priority=priority,
    )
    return attempt, {GPU: gpus * 1000, "cpu": 4000}


def usage(guarantee: int, used: int = 0) -> QueueUsage:
    return QueueUsage({GPU: guarantee * 1000, "cpu": 64_000}, {GPU: used * 1000})


def order(places: dict[str, int]) -> list[str]:
    return sorted(places, key=lambda name: places[name])


def test_priority_comes_before_age() -> None:
    found = queue_places([pending("old"), pending("new", created=5, priority=1), pending("mid", created=3)], {})
    assert order(found) == ["new", "old", "mid"]
    assert sorted(found.values()) == [1, 2, 3]


def test_attempts_of_the_same_second_are_ordered_by_uid() -> None:
    assert order(queue_places([pending("c"), pending("a"), pending("b")], {})) == ["a", "b", "c"]


def test_gangs_within_their_guarantee_come_before_borrowing_gangs() -> None:
    waiting = [pending(f"b{index}", tenant="b", created=index) for index in range(3)]
    waiting += [pending(f"a{index}", created=10 + index) for index in range(3)]
    usages = {("a", KEY): usage(16), ("b", KEY): usage(0)}
    assert order(queue_places(waiting, usages)) == ["a0", "a1", "b0", "b1", "b2", "a2"]


def test_running_gangs_use_the_guarantee() -> None:
    waiting = [pending("b", tenant="b"), pending("a", created=10)]
    assert order(queue_places(waiting, {("a", KEY): usage(16, used=16)})) == ["b", "a"]
    assert order(queue_places(waiting, {("a", KEY): usage(16, used=8), ("b", KEY): usage(0)})) == ["a", "b"]


def test_a_borrowing_gang_comes_before_younger_gangs_of_its_tenant_even_within_the_guarantee() -> None:
    """A queue offers its first gang only."""
    waiting = [pending("large", gpus=32), pending("small", created=1), pending("other", tenant="b", created=2)]
    usages = {("a", KEY): usage(40, used=16), ("b", KEY): usage(0)}
    assert order(queue_places(waiting, usages)) == ["large", "small", "other"]


def test_each_pool_has_its_own_places() -> None:
    found = queue_places([pending("x"), pending("y", pool=OTHER), pending("z", created=1)], {})
    assert found == {"x": 1, "y": 1, "z": 2}


def test_planning_leaves_the_usage_unchanged() -> None:
    usages = {("a", KEY): usage(16)}
    queue_places([pending("x"), pending("y")], usages)
    assert usages == {("a", KEY): usage(16)}


def test_shown_place_of_a_guaranteed_gang_with_cpu() -> None:
    """A guarantee of devices includes cpu: the gang does not count as borrowing."""
    world = World(quotas=(make_quota("a", 16), make_quota("b")))
    world.add("full", "b", [8] * 4, band=Band.LOW)
    world.settle()
    for name, tenant in (("first", "b"), ("second", "a")):
        gang = world.add(name, tenant, [8])
        shape = gpu_shape(8, cpu=8)
        world.gangs[name] = replace(gang, pods=tuple(replace(pod, shape=shape) for pod in gang.pods))
        world.cycle()
    reports = reports_by_gang(world.plan().decisions)
    assert {name: reports[world.gang(name).id].place for name in ("first", "second")} == {"first": 2, "second": 1}


def test_queues_of_an_administrator_are_ordered_by_age() -> None:
    waiting = [pending("b", tenant="b"), pending("a", created=10)]
    assert order(queue_places(waiting, {})) == ["b", "a"]


def test_places_are_found_in_linear_time() -> None:
    """Half a second for 15,000 gangs would be too long."""
    assert_linear(_find_places, 1000)


def _find_places(gangs: int) -> None:
    waiting = [pending(f"g{index}", tenant=f"t{index % 30}", created=index) for index in range(gangs)]
    usages = {(f"t{index}", KEY): usage(800) for index in range(30)}
    assert len(queue_places(waiting, usages)) == gangs
