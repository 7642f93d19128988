"""Volumes: each claim gets a compute claim and a volume without its location, deleted with the claim."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import EPOCH, FakeClock
from tests.support.waiting import wait_until
from tests.unit.background import in_background
from tests.unit.sync.storage.controllers import (
    bind_compute_claim,
    bind_tenant_claim,
    change_claim,
    compute_claim,
    create_claim,
    create_class,
    event_messages,
    provision_volume,
    release_claim,
    retain_volume,
    tenant_claim,
    tenant_volumes,
    wait_volume,
)
from tests.unit.sync.world import COMPUTE_NAMESPACE, NODE, World, object_names, start_world
from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, TENANT_LABEL
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.catalogue import WATCHES
from vkgateway.kinds.sources import COMPUTE_CLAIMS
from vkgateway.kinds.volumes.translation.views import PROVISIONER
from vkgateway.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from vkgateway.tenants.tenant import TenantSync


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.policy = {"storage_classes": ("local", "fast")}
        create_class(world)
        yield world


async def test_claim_gets_a_provisional_volume_if_the_cluster_waits_for_a_consumer(world: World) -> None:
    source = create_claim(world)
    uid = source["metadata"]["uid"]
    async with world.run_gateway():
        found = await wait_volume(world)
        created = compute_claim(world)

    assert created is not None
    assert created["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "storageClassName": "local",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    assert created["metadata"]["labels"] == {TENANT_LABEL: "alpha"}
    assert created["metadata"]["annotations"] == {
        "vkgateway.io/namespace": "default",
        "vkgateway.io/name": "data",
        "vkgateway.io/uid": uid,
    }
    assert found["metadata"]["name"] == f"pvc-{uid}"
    assert found["metadata"]["annotations"]["vkgateway.io/provisional"] == "true"
    assert found["spec"]["csi"] == {"driver": PROVISIONER, "volumeHandle": uid}
    assert found["spec"]["claimRef"]["uid"] == uid
    assert (found["spec"]["capacity"], found["spec"]["storageClassName"]) == ({"storage": "1Gi"}, "local")


async def test_volume_facts_are_updated_without_its_location(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await wait_volume(world)
        bind_tenant_claim(world)
        bind_compute_claim(world, size="2Gi")
        await wait_until(lambda: tenant_volumes(world)[0]["spec"]["capacity"] == {"storage": "2Gi"})
        await wait_until(lambda: (tenant_claim(world) or {})["status"]["capacity"] == {"storage": "2Gi"})
        assert "vkgateway.io/provisional" not in tenant_volumes(world)[0]["metadata"]["annotations"]

    mirrored = json.dumps([tenant_volumes(world), tenant_claim(world), world.events()])
    assert not [word for word in ("secret", "disk-", COMPUTE_NAMESPACE, "disks.example.org") if word in mirrored]


async def test_immediate_binding_shows_the_real_volume(world: World) -> None:
    create_class(world, "fast", wait_for_consumer=False)
    create_claim(world, storage_class="fast")
    async with world.run_gateway():
        await wait_until(lambda: compute_claim(world))
        await world.wait_settled()
        assert tenant_volumes(world) == []
        bind_compute_claim(world, size="5Gi")
        found = await wait_volume(world)

    assert found["spec"]["capacity"] == {"storage": "5Gi"}
    assert "vkgateway.io/provisional" not in found["metadata"]["annotations"]


async def test_volume_is_not_provisioned_before_the_tenant_controllers_request_it(world: World) -> None:
    create_claim(world)
    change_claim(world, annotations={"volume.kubernetes.io/storage-provisioner": ""})
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.tenant_volumes.is_complete)
        await world.wait_settled()
        assert (compute_claim(world), tenant_volumes(world)) == (None, [])
        change_claim(world, annotations={"volume.kubernetes.io/storage-provisioner": PROVISIONER})
        await wait_until(lambda: compute_claim(world))


async def test_unreachable_cluster_without_pools_of_the_tenant_blocks_no_volume(world: World) -> None:
    async with world.run_gateway() as sync, world.compute_server.client("away") as client:
        await wait_until(lambda: sync.reconcilers.tenant_volumes.is_watching)
        assert world.link is not None
        links = {"local": world.link, "away": ComputeLink("away", client, kinds=WATCHES)}
        sync.update_tenant(sync.scope.tenant, links=links, bindings={NODE: world.make_binding(world.link)})
        create_claim(world)
        await wait_volume(world)
        assert compute_claim(world) is not None


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"storageClassName": "gold"}, "StorageClassRefused", "gold is not allowed for this tenant; allowed: fast"),
        (
            {"storageClassName": "fast"},
            "StorageClassMissing",
            "fast does not exist in the compute cluster of node a100",
        ),
        ({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}, "NotSupported", "a snapshot"),
        ({"dataSource": {"kind": "PersistentVolumeClaim", "name": "s"}}, "NotSupported", "another claim"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "NotSupported", "selector"),
    ],
)
async def test_refused_claim_gets_an_event_with_a_remedy(
    world: World, spec: dict[str, Any], reason: str, message: str
) -> None:
    create_claim(world, **spec)
    async with world.run_gateway():
        (words,) = await wait_until(lambda: event_messages(world, reason))
        await world.wait_settled()

    assert message in words
    assert (compute_claim(world), tenant_volumes(world)) == (None, [])


async def test_class_may_have_another_name_in_the_tenant_cluster(world: World) -> None:
    world.policy = {"storage_class_names": {"standard": "local"}}
    create_claim(world, storage_class="standard")
    async with world.run_gateway():
        found = await wait_volume(world)

    assert (compute_claim(world) or {})["spec"]["storageClassName"] == "local"
    assert found["spec"]["storageClassName"] == "standard"


async def test_claim_deletion_deletes_data_before_the_volume(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
        retained = copy.deepcopy(compute_claim(world) or {})
        retained["metadata"]["finalizers"] = ["kubernetes.io/pvc-protection"]
        world.compute_server.store.update(PERSISTENT_VOLUME_CLAIMS, retained, name="data", namespace=COMPUTE_NAMESPACE)
        release_claim(world)
        await wait_until(lambda: (compute_claim(world) or {"metadata": {}})["metadata"].get("deletionTimestamp"))
        await world.wait_settled()
        assert len(tenant_volumes(world)) == 1
        retained["metadata"]["finalizers"] = []
        del retained["metadata"]["resourceVersion"]
        world.compute_server.store.update(PERSISTENT_VOLUME_CLAIMS, retained, name="data", namespace=COMPUTE_NAMESPACE)
        await wait_until(lambda: tenant_volumes(world) == [])
    assert compute_claim(world) is None


async def test_claim_deleted_before_provisioning_leaves_nothing(world: World) -> None:
    create_class(world, "fast", wait_for_consumer=False)
    create_claim(world, storage_class="fast")
    async with world.run_gateway():
        await wait_until(lambda: compute_claim(world))
        world.tenant_server.store.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        await wait_until(lambda: compute_claim(world) is None)
    assert tenant_volumes(world) == []


async def test_retained_volume_stays_and_its_name_can_be_reused(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
        retained = copy.deepcopy(tenant_volumes(world)[0])
        retained["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
        world.tenant_server.store.update(PERSISTENT_VOLUMES, retained, name=retained["metadata"]["name"])
        release_claim(world)
        await world.wait_settled()
        assert compute_claim(world) is not None
        create_claim(world)
        await wait_until(lambda: len(tenant_volumes(world)) == 2)
        first, second = sorted(object_names(world.compute_server, PERSISTENT_VOLUME_CLAIMS))
        assert first == "data"
        assert second.startswith("data-")
        # A manual deletion removes it with its data.
        world.tenant_server.store.delete(PERSISTENT_VOLUMES, retained["metadata"]["name"])
        await wait_until(lambda: object_names(world.compute_server, PERSISTENT_VOLUME_CLAIMS) == [second])
        await wait_until(lambda: len(tenant_volumes(world)) == 1)


async def test_retained_volume_is_deleted_once_its_data_is_gone(world: World) -> None:
    world.clock = clock = FakeClock(1_800_000_000.0, origin=EPOCH)
    create_claim(world)
    async with world.run_gateway() as sync:
        await provision_volume(world)
        retained = copy.deepcopy(tenant_volumes(world)[0])
        retained["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
        world.tenant_server.store.update(PERSISTENT_VOLUMES, retained, name=retained["metadata"]["name"])
        release_claim(world)
        world.compute_server.store.delete(PERSISTENT_VOLUME_CLAIMS, "data", COMPUTE_NAMESPACE)
        await world.wait_settled()
        assert len(tenant_volumes(world)) == 1
        clock.seconds += 31
        sync.scope.watches.notify(COMPUTE_CLAIMS, retained["spec"]["csi"]["volumeHandle"])
        await wait_until(lambda: tenant_volumes(world) == [])


async def test_volume_nodes_are_read_once_and_recorded(world: World) -> None:
    """A gateway without permission to read volumes records no node restrictions."""
    world.compute_server.fail("GET", "/persistentvolumes/", status=403, reason="Forbidden", times=99)
    create_claim(world)
    async with world.run_gateway() as sync:
        sync.scope.bindings["v100.local"] = replace(
            sync.scope.bindings["a100.local"],
            pool=replace(
                sync.scope.bindings["a100.local"].pool, name="v100", node_name="v100.local", node_selector={"x": "y"}
            ),
        )
        await provision_volume(world)
        assert "nodeAffinity" not in tenant_volumes(world)[0]["spec"]
        world.compute_server.heal()
        create_claim(world, "second")
        await wait_until(lambda: len(tenant_volumes(world)) == 2)
        bind_tenant_claim(world, "second")
        place = {"key": "gpu", "operator": "In", "values": ["a100"]}
        bind_compute_claim(
            world,
            "second",
            nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}},
        )
        found = await wait_until(lambda: [one for one in tenant_volumes(world) if "nodeAffinity" in one["spec"]])
        (term,) = found[0]["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": "vkgateway.io/pool", "operator": "In", "values": ["a100"]}]


async def test_second_compute_cluster_does_not_attract_pods_from_their_volume(world: World) -> None:
    create_claim(world)
    async with world.run_gateway() as sync, world.compute_server.client("away") as client:
        await provision_volume(world)
        assert "nodeAffinity" not in tenant_volumes(world)[0]["spec"]
        assert world.link is not None
        away = ComputeLink("away", client, kinds=WATCHES)
        binding = world.make_binding(away)
        pool = replace(binding.pool, compute_cluster="away", node_name="a100.away")
        bindings = {NODE: world.make_binding(world.link), "a100.away": replace(binding, pool=pool)}
        sync.update_tenant(sync.scope.tenant, links={"local": world.link, "away": away}, bindings=bindings)
        await wait_until(lambda: "nodeAffinity" in tenant_volumes(world)[0]["spec"])
    (term,) = tenant_volumes(world)[0]["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "vkgateway.io/compute-cluster", "operator": "In", "values": ["local"]}]


async def test_unreachable_cluster_does_not_block_deletion_in_others(world: World) -> None:
    create_claim(world)
    async with world.run_gateway() as sync, world.compute_server.client("away") as client:
        await provision_volume(world)
        assert world.link is not None
        links = {"local": world.link, "away": ComputeLink("away", client, kinds=WATCHES)}
        sync.update_tenant(sync.scope.tenant, links=links, bindings={NODE: world.make_binding(world.link)})
        release_claim(world)
        await wait_until(lambda: compute_claim(world) is None)
        await world.wait_settled()
        # Whether the other cluster holds any of it is unknown.
        assert len(tenant_volumes(world)) == 1


@asynccontextmanager
async def detach_cluster(world: World, sync: TenantSync, *, others: bool) -> AsyncIterator[None]:
    """Detach the compute cluster: its object was deleted, or its kubeconfig cannot be read."""
    async with FakeApiServer() as server, server.client("away") as client:
        away = ComputeLink("away", client, kinds=WATCHES)
        async with in_background(away.run()):
            await wait_until(lambda: away.claims_trusted)
            links, bindings = dict(sync.scope.links), dict(sync.scope.bindings)
            sync.update_tenant(sync.scope.tenant, links={"away": away} if others else {}, bindings={})
            yield
            sync.update_tenant(sync.scope.tenant, links=links, bindings=bindings)


@pytest.mark.parametrize("others", [True, False])
async def test_volumes_of_a_detached_cluster_are_not_lost(world: World, *, others: bool) -> None:
    world.clock = clock = FakeClock(1_800_000_000.0, origin=EPOCH)
    for name in ("data", "kept"):
        create_claim(world, name)
    async with world.run_gateway() as sync:
        await wait_until(lambda: len(tenant_volumes(world)) == 2)
        for name in ("data", "kept"):
            bind_tenant_claim(world, name)
            bind_compute_claim(world, name)
        await wait_until(lambda: all(len(one["metadata"]["annotations"]) == 1 for one in tenant_volumes(world)))
        retain_volume(world, "kept")
        release_claim(world, "kept")
        await world.wait_settled()
        async with detach_cluster(world, sync, others=others):
            for _ in range(3):
                clock.seconds += 31
                for uid in sync.reconcilers.volumes.known_volumes():
                    sync.scope.watches.notify(COMPUTE_CLAIMS, uid)
                await world.wait_settled()
            assert len(tenant_volumes(world)) == 2
        await world.wait_settled()
    assert len(tenant_volumes(world)) == 2
    assert (compute_claim(world) is not None, compute_claim(world, "kept") is not None) == (True, True)


async def test_data_in_a_detached_cluster_is_deleted_after_reattachment(world: World) -> None:
    create_claim(world)
    async with world.run_gateway() as sync:
        await provision_volume(world)
        async with detach_cluster(world, sync, others=True):
            release_claim(world)
            await world.wait_settled()
            assert len(tenant_volumes(world)) == 1
        await wait_until(lambda: compute_claim(world) is None and tenant_volumes(world) == [])


async def test_older_volumes_get_a_cluster_label(world: World) -> None:
    def places() -> list[str | None]:
        return [one["metadata"].get("labels", {}).get(COMPUTE_CLUSTER_LABEL) for one in tenant_volumes(world)]

    for name in ("data", "kept"):
        create_claim(world, name)
    async with world.run_gateway():
        await wait_until(lambda: len(tenant_volumes(world)) == 2)
        for name in ("data", "kept"):
            bind_tenant_claim(world, name)
            bind_compute_claim(world, name)
        retain_volume(world, "kept")
        release_claim(world, "kept")
        assert places() == ["local", "local"]
    for one in copy.deepcopy(tenant_volumes(world)):
        del one["metadata"]["labels"]
        world.tenant_server.store.update(PERSISTENT_VOLUMES, one, name=one["metadata"]["name"])
    async with world.run_gateway():
        await wait_until(lambda: places() == ["local", "local"])
