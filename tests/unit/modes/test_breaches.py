"""How long a breach lasts: a gang of which the scheduler evicted single pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.modes.external_world import ExternalWorld

RETRY = 10.0


@pytest.fixture
def world() -> ExternalWorld:
    return ExternalWorld()


def breach_since(world: ExternalWorld, name: str) -> float | None:
    """Return when a pod of a broken gang existed last; None: the gang is not broken."""
    found = world.given().breaches.get(world.gang(name).id)
    return found.last_pod if found is not None else None


def test_breach_ends_when_the_gang_has_its_minimum_again(world: ExternalWorld) -> None:
    """A pod that its tenant deletes later breaks nothing."""
    world.add("elastic", "b", [8, 8, 8], minimum=2, elastic=True)
    world.settle()
    world.preempt("elastic")
    assert breach_since(world, "elastic") is not None, "the pod terminates"
    world.end_everything()
    assert breach_since(world, "elastic") is None
    gone = world.gang("elastic").pods[0].uid
    world.remove(lambda pod: pod.uid == gone)
    assert not world.plan().decisions.evicts


def test_breach_lasts_while_pods_exist_and_until_the_gang_may_start(world: ExternalWorld) -> None:
    world.add("train", "b", [8, 8])
    world.settle()
    world.preempt("train")
    world.cycle()
    world.now += 5.0
    ended = world.now
    assert breach_since(world, "train") == ended
    world.end_everything()
    world.recreate("train")
    world.now += RETRY - 1
    assert breach_since(world, "train") == ended
    world.now += 1
    assert breach_since(world, "train") is None


def test_breach_outlasts_the_moment_without_any_pod(world: ExternalWorld) -> None:
    """A controller may replace pods only after their end."""
    world.add("train", "b", [8, 8])
    world.settle()
    world.preempt("train")
    world.cycle()
    ended, gang = world.now, world.gang("train")
    world.gangs["train"] = replace(gang, pods=())
    world.now += 1.0
    assert breach_since(world, "train") == ended
    world.recreate("train")
    assert breach_since(world, "train") == ended
    world.gangs["train"] = replace(gang, pods=())
    world.now += RETRY
    assert breach_since(world, "train") is None, "gangs that never return are forgotten"
