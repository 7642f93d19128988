"""Pods with claims start once each claim has a compute claim, and report the claims that they wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.storage.controllers import (
    bind_compute_claim,
    bind_tenant_claim,
    create_claim,
    create_class,
    event_messages,
    provision_volume,
    release_claim,
    tenant_claim,
    tenant_volumes,
    wait_volume,
)
from tests.unit.sync.world import World, make_node, start_world
from vkgateway.kube.resources import NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS

pytestmark = pytest.mark.usefixtures("told_soon")

DATA: dict[str, Any] = {"name": "disk", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.policy = {"storage_classes": ("local",)}
        create_class(world)
        yield world


async def test_pod_starts_once_its_claim_has_a_provisional_volume(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await wait_volume(world)
        bind_tenant_claim(world)
        world.create_pod(volumes=[DATA])
        pod = await world.wait_forwarded()

    assert pod["spec"]["volumes"] == [DATA]
    assert event_messages(world, "PersistentVolumeClaimNotReady") == []


async def test_generic_ephemeral_volume_uses_the_controllers_claim(world: World) -> None:
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local"}}
    create_claim(world, "web-scratch")
    async with world.run_gateway():
        await wait_volume(world)
        bind_tenant_claim(world, "web-scratch")
        world.create_pod(volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}])
        pod = await world.wait_forwarded()

    assert pod["spec"]["volumes"] == [{"name": "scratch", "persistentVolumeClaim": {"claimName": "web-scratch"}}]


async def test_renamed_compute_claim_is_found(world: World) -> None:
    create_claim(world)
    async with world.run_gateway():
        await provision_volume(world)
        remembered = dict(tenant_volumes(world)[0])
        remembered["spec"] = {**remembered["spec"], "persistentVolumeReclaimPolicy": "Retain"}
        world.tenant_server.store.update(PERSISTENT_VOLUMES, remembered, name=remembered["metadata"]["name"])
        release_claim(world)
        create_claim(world)
        await wait_until(lambda: len(tenant_volumes(world)) == 2)
        bind_tenant_claim(world)
        world.create_pod(volumes=[DATA])
        pod = await world.wait_forwarded()

    (used,) = pod["spec"]["volumes"]
    assert used["persistentVolumeClaim"]["claimName"].startswith("data-")
    assert used["persistentVolumeClaim"]["readOnly"]


async def test_pod_waits_for_its_claim_with_a_reason(world: World) -> None:
    world.create_pod(volumes=[DATA])
    async with world.run_gateway():
        await wait_until(
            lambda: 'persistentvolumeclaim "data" not found' in event_messages(world, "PersistentVolumeClaimNotReady")
        )
        create_claim(world)
        await wait_volume(world)
        await world.wait_settled()
        assert world.compute_pod() is None
        bind_tenant_claim(world)
        await world.wait_forwarded()


async def test_foreign_volume_is_not_mounted(world: World) -> None:
    source = create_claim(world)
    reserved = {"namespace": "default", "name": "data", "uid": source["metadata"]["uid"]}
    other = {"nfs": {"server": "10.0.0.1", "path": "/"}, "claimRef": reserved, "capacity": {"storage": "1Gi"}}
    world.tenant_server.store.create(
        PERSISTENT_VOLUMES, {"metadata": {"name": "mine"}, "spec": other | {"accessModes": ["ReadWriteOnce"]}}
    )
    bind_to_volume(world, "mine")
    world.create_pod(volumes=[DATA])
    async with world.run_gateway():
        message = "is bound to mine, which is not a volume of the platform"
        await wait_until(
            lambda: any(message in words for words in event_messages(world, "PersistentVolumeClaimNotReady"))
        )
        await world.wait_settled()
    assert world.compute_pod() is None


async def test_volume_stays_in_its_namespace(world: World) -> None:
    """Also if the tenant binds it to a claim elsewhere, or creates a volume with its handle manually."""
    source = create_claim(world)
    world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": "other"}})
    async with world.run_gateway():
        await provision_volume(world)
        document = {
            "metadata": {"name": "data", "annotations": {}},
            "spec": {"volumeName": tenant_volumes(world)[0]["metadata"]["name"]},
            "status": {"phase": "Bound"},
        }
        world.tenant_server.store.create(PERSISTENT_VOLUME_CLAIMS, document, "other")
        world.tenant_server.store.create(
            PODS,
            {
                "metadata": {"name": "thief"},
                "spec": {"containers": [{"name": "c"}], "nodeName": "a100.local", "volumes": [DATA]},
            },
            "other",
        )
        message = 'persistentvolumeclaim "data" is bound to a volume that stays in namespace default'
        await wait_until(lambda: message in event_messages(world, "PersistentVolumeClaimNotReady"))
    assert source["metadata"]["uid"] == (tenant_claim(world) or {})["metadata"]["uid"]


async def test_governed_pod_is_placed_where_its_volume_is(world: World) -> None:
    for name in ("gpu-host-18", "gpu-host-19"):
        node = make_node(name)
        node["metadata"]["labels"]["kubernetes.io/hostname"] = name
        world.compute_server.store.create(NODES, node)
    place = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-host-19"]}
    devices = [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    create_claim(world)
    async with world.run_gateway() as sync:
        await wait_volume(world)
        bind_tenant_claim(world)
        bind_compute_claim(world, nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}})
        await wait_until(
            lambda: sync.reconcilers.claim_users.is_location_known((tenant_claim(world) or {})["metadata"]["uid"])
        )
        world.create_pod(containers=devices, volumes=[DATA])
        pod = await world.wait_forwarded()

    assert pod["metadata"]["annotations"]["vkgateway.io/compute-node"] == "gpu-host-19"


async def test_pending_pods_are_enqueued_once_their_volumes_location_is_known(world: World) -> None:
    create_claim(world)
    gated: dict[str, Any] = {
        "schedulingGates": [{"name": "vkgateway.io/admission"}, {"name": "mine.example.org/later"}],
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    }
    place = {"key": "zone", "operator": "In", "values": ["b"]}
    async with world.run_gateway() as sync:
        await wait_volume(world)
        bind_tenant_claim(world)
        uid = world.create_pod(node="", volumes=[DATA], **gated)["metadata"]["uid"]
        gangs = sync.reconcilers.admission.tenant_admission.gangs
        await wait_until(lambda: gangs.find_member(uid))
        assert gangs.find_member(uid).shape.terms == ()  # type: ignore[union-attr]
        bind_compute_claim(world, nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}})
        (term,) = await wait_until(lambda: gangs.find_member(uid).shape.terms)  # type: ignore[union-attr]
    assert [(one.key, one.values) for one in term] == [("zone", ("b",))]


def bind_to_volume(world: World, name: str) -> None:
    found = dict(tenant_claim(world) or {})
    found["spec"] = {**found["spec"], "volumeName": name}
    found["status"] = {"phase": "Bound"}
    world.tenant_server.store.update(PERSISTENT_VOLUME_CLAIMS, found, name="data", namespace="default")


async def test_deleted_pending_pods_leave_nothing(world: World) -> None:
    wanted = [{"name": f"d{number}", "persistentVolumeClaim": {"claimName": f"none{number}"}} for number in range(3)]
    world.create_pod(volumes=wanted)
    world.create_pod("other", volumes=wanted[:1])
    async with world.run_gateway() as sync:
        users = sync.reconcilers.claim_users
        await wait_until(lambda: len(users._waiting.get(("default", "none0"), ())) == 2)
        world.delete_pod(grace=0)
        await wait_until(lambda: users._waiting == {("default", "none0"): {("default", "other")}})
        world.delete_pod("other", grace=0)
        await wait_until(lambda: not (users._waiting or users._claims_by_pod or users._waiting_since))


async def test_deleted_volumes_leave_nothing(world: World) -> None:
    create_claim(world)
    async with world.run_gateway() as sync:
        await provision_volume(world)
        await wait_until(lambda: sync.reconcilers.claim_users._located_volumes)
        release_claim(world)
        await wait_until(lambda: tenant_volumes(world) == [] and not sync.reconcilers.claim_users._located_volumes)
