"""Removal of our finalizers retains finalizers that others add at the same time."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import wait_until
from tests.unit.background import in_background
from tests.unit.sync.storage.controllers import (
    change_compute_claim,
    create_claim,
    create_class,
    provision_volume,
    tenant_volumes,
)
from tests.unit.sync.world import World, start_world
from vkgateway.kube.resources import PERSISTENT_VOLUMES, PODS, Resource
from vkgateway.tenants.teardown import remove_tenant

THEIRS = "backup.example.com/hold"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


async def add_finalizer(
    server: FakeApiServer, resource: Resource, found: Callable[[], dict[str, Any] | None]
) -> list[str]:
    """Add a finalizer while a patch of ours is in flight; return the finalizers after the patch."""

    def finalizers() -> list[str]:
        present: list[str] = (found() or {"metadata": {}})["metadata"].get("finalizers", [])
        return present

    patch = f"{resource.plural}/"
    arrived = server.hold("PATCH", patch)
    await wait_until(lambda: any(one.startswith("PATCH") and patch in one for one in server.requests))
    document = copy.deepcopy(found())
    assert document is not None
    metadata = document["metadata"]
    metadata["finalizers"].append(THEIRS)
    server.store.update(resource, document, name=metadata["name"], namespace=metadata.get("namespace", ""))
    arrived.set()
    # Other writes, such as heartbeats of nodes, may come before.
    await wait_until(lambda: finalizers() != metadata["finalizers"])
    return finalizers()


async def test_finalizer_of_an_ended_pod_is_removed_despite_a_conflict(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        world.delete_pod()
        await wait_until(lambda: "deletionTimestamp" in (world.compute_pod() or {})["metadata"])
        world.compute_server.requests.clear()
        remaining = asyncio.create_task(add_finalizer(world.compute_server, PODS, world.compute_pod))
        world.end_pod()
        assert await remaining == [THEIRS]
        await wait_until(lambda: world.tenant_pod() is None)


async def test_finalizer_is_removed_with_the_tenant_despite_a_conflict(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        link = world.link
        assert link is not None
        await world.stop_tenant()
        world.compute_server.requests.clear()
        remaining = asyncio.create_task(add_finalizer(world.compute_server, PODS, world.compute_pod))
        async with in_background(remove_tenant(link, "alpha")):
            assert await remaining == [THEIRS]


async def test_finalizer_of_a_lost_volume_is_removed_despite_a_conflict(world: World) -> None:
    world.policy = {"storage_classes": ("local",)}
    create_class(world)
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
        world.tenant_server.requests.clear()
        remaining = asyncio.create_task(
            add_finalizer(world.tenant_server, PERSISTENT_VOLUMES, lambda: tenant_volumes(world)[0])
        )
        change_compute_claim(world, phase="Lost")
        assert await remaining == [THEIRS]
