"""Changes of volumes: deletion, expansion, loss and outages."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator

import pytest

from tests.fakes.clock import EPOCH, FakeClock
from tests.support.waiting import wait_until
from tests.unit.sync.storage.controllers import (
    bind_compute_claim,
    bind_tenant_claim,
    change_claim,
    change_compute_claim,
    compute_claim,
    create_claim,
    create_class,
    event_messages,
    provision_volume,
    release_claim,
    tenant_claim,
    tenant_volumes,
    unprotect_volume,
    wait_volume,
)
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, start_world
from vkgateway.kinds.sources import COMPUTE_CLAIMS
from vkgateway.kinds.volumes import reconciler as sync_volumes
from vkgateway.kube.resources import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.policy = {"storage_classes": ("local", "fast")}
        create_class(world)
        yield world


async def test_deletion_of_a_bound_volume_waits_for_its_claim(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
        name = tenant_volumes(world)[0]["metadata"]["name"]
        world.tenant_server.store.delete(PERSISTENT_VOLUMES, name)
        await world.wait_settled()
        assert compute_claim(world) is not None
        release_claim(world)
        await wait_until(lambda: compute_claim(world) is None and tenant_volumes(world) == [])


async def test_data_is_not_deleted_because_of_watch_lag(world: World) -> None:
    create_claim(world)
    async with world.run_gateway() as sync:
        await provision_volume(world)
        sync.reconcilers.tenant_volumes._keys.clear()
        world.tenant_server.store.delete(PERSISTENT_VOLUMES, tenant_volumes(world)[0]["metadata"]["name"])
        await wait_until(lambda: any("/persistentvolumeclaims/data" in one for one in world.tenant_server.requests))
        await world.wait_settled()
    assert compute_claim(world) is not None


async def test_expansion_is_forwarded_and_its_progress_mirrored(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
        change_claim(world, resources={"requests": {"storage": "3Gi"}})
        await wait_until(lambda: (compute_claim(world) or {})["spec"]["resources"]["requests"]["storage"] == "3Gi")
        growing = {"type": "Resizing", "status": "True", "message": f"disk of {COMPUTE_NAMESPACE}/data"}
        change_compute_claim(world, conditions=[growing], allocatedResources={"storage": "3Gi"})
        await wait_until(lambda: (tenant_claim(world) or {})["status"].get("conditions"))
        status = (tenant_claim(world) or {})["status"]
        assert status["conditions"] == [growing | {"message": "disk of default/data"}]
        assert status["allocatedResources"] == {"storage": "3Gi"}
        change_compute_claim(world, conditions=[], capacity={"storage": "3Gi"})
        await wait_until(lambda: (tenant_claim(world) or {})["status"]["capacity"] == {"storage": "3Gi"})
        await wait_until(lambda: tenant_volumes(world)[0]["spec"]["capacity"] == {"storage": "3Gi"})
        assert "conditions" not in (tenant_claim(world) or {})["status"]


async def test_refused_expansion_is_reported(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
        world.compute_server.fail("PATCH", "/persistentvolumeclaims/data", status=403, reason="Forbidden", times=9)
        change_claim(world, resources={"requests": {"storage": "3Gi"}})
        (words,) = await wait_until(lambda: event_messages(world, "VolumeResizeFailed"))
    assert words.startswith("the compute cluster refused it")


async def test_refused_expansion_is_retried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_volumes, "_EXPANSION_RETRY", 0.05)
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
        quota = world.compute_server.fail("PATCH", "/persistentvolumeclaims/data", status=403, reason="Forbidden")
        change_claim(world, resources={"requests": {"storage": "3Gi"}})
        await wait_until(lambda: quota.hits)
        await wait_until(lambda: (compute_claim(world) or {})["spec"]["resources"]["requests"]["storage"] == "3Gi")


async def test_refusal_of_a_starting_cluster_is_not_reported(world: World) -> None:
    """Its admission plugins are not ready; neither a new volume nor an expansion reports that."""
    words = 'persistentvolumeclaims "data" is forbidden: not yet ready to handle request'
    create_claim(world)
    created = world.compute_server.fail("POST", "/persistentvolumeclaims", status=403, reason="Forbidden")
    created.message = words
    async with world.run_gateway():
        await provision_volume(world)
        grown = world.compute_server.fail("PATCH", "/persistentvolumeclaims/data", status=403, reason="Forbidden")
        grown.message = words
        change_claim(world, resources={"requests": {"storage": "3Gi"}})
        await wait_until(lambda: (compute_claim(world) or {})["spec"]["resources"]["requests"]["storage"] == "3Gi")
    assert (created.hits, grown.hits) == (1, 1)
    assert event_messages(world, "ForwardingRefused") == event_messages(world, "VolumeResizeFailed") == []


async def test_volume_with_a_deleted_compute_claim_is_lost_after_a_while(world: World) -> None:
    world.clock = clock = FakeClock(1_800_000_000.0, origin=EPOCH)
    create_claim(world)
    async with world.run_gateway() as sync:
        await provision_volume(world)
        world.compute_server.store.delete(PERSISTENT_VOLUME_CLAIMS, "data", COMPUTE_NAMESPACE)
        uid = (tenant_claim(world) or {})["metadata"]["uid"]
        await world.wait_settled()
        assert len(tenant_volumes(world)) == 1
        clock.seconds += 31
        sync.scope.watches.notify(COMPUTE_CLAIMS, uid)
        await wait_until(lambda: tenant_volumes(world) == [])
        await world.wait_settled()
    assert compute_claim(world) is None


async def test_empty_compute_claim_is_created_again(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await wait_volume(world)
        bind_tenant_claim(world)
        world.compute_server.store.delete(PERSISTENT_VOLUME_CLAIMS, "data", COMPUTE_NAMESPACE)
        await wait_until(lambda: compute_claim(world))
    assert len(tenant_volumes(world)) == 1


async def test_lost_compute_claim_loses_the_volume(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
        change_compute_claim(world, phase="Lost")
        await wait_until(lambda: tenant_volumes(world) == [])
        await world.wait_settled()
    assert tenant_volumes(world) == []


async def test_force_deleted_volume_is_recreated_while_its_data_exists(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
        found = tenant_volumes(world)[0]
        unprotect_volume(world, found["metadata"]["name"])
        freed = copy.deepcopy(world.tenant_server.store.get(PERSISTENT_VOLUMES, found["metadata"]["name"]))
        freed["metadata"]["finalizers"] = []
        world.tenant_server.store.update(PERSISTENT_VOLUMES, freed, name=found["metadata"]["name"])
        world.tenant_server.store.delete(PERSISTENT_VOLUMES, found["metadata"]["name"])
        await wait_until(
            lambda: tenant_volumes(world) and tenant_volumes(world)[0]["metadata"]["uid"] != found["metadata"]["uid"]
        )
    assert compute_claim(world) is not None


async def test_changes_during_an_outage_are_completed(world: World) -> None:
    for name in ("data", "gone", "grown"):
        create_claim(world, name)
    async with world.run_gateway():
        await wait_until(lambda: len(tenant_volumes(world)) == 3)
        for name in ("data", "gone", "grown"):
            bind_tenant_claim(world, name)
            bind_compute_claim(world, name)
        await wait_until(lambda: all(len(one["metadata"]["annotations"]) == 1 for one in tenant_volumes(world)))
    release_claim(world, "gone")
    change_claim(world, "grown", resources={"requests": {"storage": "3Gi"}})
    create_claim(world, "new")
    async with world.run_gateway():
        await wait_until(
            lambda: (
                compute_claim(world, "gone") is None
                and compute_claim(world, "new") is not None
                and len(tenant_volumes(world)) == 3
            )
        )
        await wait_until(
            lambda: (compute_claim(world, "grown") or {})["spec"]["resources"]["requests"]["storage"] == "3Gi"
        )
        await world.wait_settled()
        before = len(
            [one for one in world.compute_server.requests + world.tenant_server.requests if not one.startswith("GET")]
        )
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.tenant_volumes.is_complete)
        await world.wait_settled()
    after = len(
        [one for one in world.compute_server.requests + world.tenant_server.requests if not one.startswith("GET")]
    )
    assert after == before


async def test_half_deleted_volume_without_any_claim_is_removed(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
    release_claim(world)
    world.compute_server.store.delete(PERSISTENT_VOLUME_CLAIMS, "data", COMPUTE_NAMESPACE)
    async with world.run_gateway():
        await wait_until(lambda: tenant_volumes(world) == [])


async def test_data_without_claim_and_volume_is_retained(world: World) -> None:
    """A tenant whose datastore was restored or lost still has its data."""
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
    for resource in (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES):
        world.tenant_server.store.objects[resource].clear()
    world.tenant_server.store.compact()
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.tenant_volumes.is_complete)
        await world.wait_settled()
    assert compute_claim(world) is not None


async def test_taken_name_is_left_alone(world: World) -> None:
    world.compute_server.store.create(NAMESPACES, {"metadata": {"name": "elsewhere"}})
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.compute_server.store.create(
            PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "data"}, "spec": {}}, COMPUTE_NAMESPACE
        )
        create_claim(world)
        await world.wait_settled()
    assert "labels" not in (compute_claim(world) or {})["metadata"]
    assert tenant_volumes(world) == []


async def test_tenant_without_volumes_and_pods_is_not_watched(world: World) -> None:
    world.policy = {}
    create_claim(world)
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.is_complete)
        await world.wait_settled()
    assert not [request for request in world.tenant_server.requests if "persistentvolume" in request]


async def test_tenant_without_claims_costs_one_watch(world: World) -> None:
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.tenant_volumes.claims.is_complete)
        await world.wait_settled()
    asked = [request for request in world.tenant_server.requests if "/persistentvolumes" in request]
    assert asked == ["GET /api/v1/persistentvolumes?limit=1"]
