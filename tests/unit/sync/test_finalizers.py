"""Tests that our finalizers go without those that others put on in the same moment."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.background import in_background
from tests.unit.sync.storage.players import change_below, claim, mounted, offer, volumes
from tests.unit.sync.world import World, until, world
from vkgateway.kube.resources import PERSISTENT_VOLUMES, PODS, Resource
from vkgateway.sync.teardown import remove_tenant

THEIRS = "backup.example.com/hold"


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


async def race(server: FakeApiServer, resource: Resource, found: Callable[[], dict[str, Any] | None]) -> list[str]:
    """Put a finalizer on while a patch of ours is under way; returns what is on once it has arrived."""
    patch = f"{resource.plural}/"
    arrived = server.hold("PATCH", patch)
    await until(lambda: any(one.startswith("PATCH") and patch in one for one in server.requests))
    document = copy.deepcopy(found())
    assert document is not None
    metadata = document["metadata"]
    metadata["finalizers"].append(THEIRS)
    server.store.update(resource, document, name=metadata["name"], namespace=metadata.get("namespace", ""))
    before = server.store.version
    arrived.set()
    await until(lambda: server.store.version > before)
    left: list[str] = (found() or {"metadata": {}})["metadata"].get("finalizers", [])
    return left


async def test_of_a_pod_that_ended(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        here.delete()
        await until(lambda: "deletionTimestamp" in (here.compute_pod() or {})["metadata"])
        here.below.requests.clear()
        left = asyncio.create_task(race(here.below, PODS, here.compute_pod))
        here.end()
        assert await left == [THEIRS]
        await until(lambda: here.tenant_pod() is None)


async def test_of_a_pod_whose_tenant_goes(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        link = here.link
        assert link is not None
        await here.leave()
        here.below.requests.clear()
        left = asyncio.create_task(race(here.below, PODS, here.compute_pod))
        async with in_background(remove_tenant(link, "alpha")):
            assert await left == [THEIRS]


async def test_of_a_volume_that_is_lost(here: World) -> None:
    here.policy = {"storage_classes": ("local",)}
    offer(here)
    claim(here)
    async with here.gateway():
        await mounted(here)
        here.above.requests.clear()
        left = asyncio.create_task(race(here.above, PERSISTENT_VOLUMES, lambda: volumes(here)[0]))
        change_below(here, phase="Lost")
        assert await left == [THEIRS]
