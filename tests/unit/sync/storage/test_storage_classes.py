"""Storage classes of a tenant: those that its policy permits, under its names, without provisioning details."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.storage.controllers import create_class
from tests.unit.sync.world import World, start_world
from vkgateway.kinds.volumes.translation.views import PROVISIONER
from vkgateway.kube.resources import NODES, STORAGE_CLASSES

DEFAULT = "storageclass.kubernetes.io/is-default-class"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.policy = {"storage_classes": ("local",)}
        yield world


def class_names(world: World) -> dict[str, dict[str, Any]]:
    return {document["metadata"]["name"]: document for document in world.tenant_server.store.all(STORAGE_CLASSES)}


async def test_tenant_sees_its_permitted_classes_without_parameters(world: World) -> None:
    create_class(world, parameters={"server": "10.0.0.1"}, mountOptions=["hard"], allowVolumeExpansion=True)
    create_class(world, "gold")
    async with world.run_gateway():
        await wait_until(lambda: class_names(world))
        await world.wait_settled()

    assert list(class_names(world)) == ["local"]
    created = class_names(world)["local"]
    assert {key: created[key] for key in created if key not in ("metadata", "apiVersion", "kind")} == {
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }
    assert created["metadata"]["annotations"] == {DEFAULT: "false"}


@pytest.mark.parametrize(
    ("default", "expected"),
    [("", {"local": "true", "quick": "false"}), ("quick", {"local": "false", "quick": "true"})],
)
async def test_default_class_is_set_by_policy_or_compute_cluster(
    world: World, default: str, expected: dict[str, str]
) -> None:
    world.policy |= {"storage_class_names": {"quick": "fast"}, "default_storage_class": default}
    create_class(world, metadata={"name": "local", "annotations": {DEFAULT: "true"}})
    create_class(world, "fast", wait_for_consumer=False)
    async with world.run_gateway():
        await wait_until(lambda: len(class_names(world)) == 2)

    assert {
        name: created["metadata"]["annotations"][DEFAULT] for name, created in class_names(world).items()
    } == expected
    assert class_names(world)["quick"]["volumeBindingMode"] == "Immediate"


async def test_changes_and_manual_edits_are_corrected(world: World) -> None:
    create_class(world)
    create_class(world, "fast")
    world.policy = {"storage_classes": ("*",)}
    async with world.run_gateway() as sync:
        await wait_until(lambda: len(class_names(world)) == 2)
        world.compute_server.store.delete(STORAGE_CLASSES, "fast")
        await wait_until(lambda: list(class_names(world)) == ["local"])
        world.tenant_server.store.update(
            STORAGE_CLASSES, class_names(world)["local"] | {"reclaimPolicy": "Retain"}, name="local"
        )
        world.tenant_server.fail("PUT", "/storageclasses/local", status=422, reason="Invalid")
        sync.reconcilers.classes.enqueue()
        await wait_until(lambda: class_names(world).get("local", {}).get("reclaimPolicy") == "Delete")


async def test_own_class_of_the_tenant_is_left_alone(world: World) -> None:
    world.tenant_server.store.create(
        STORAGE_CLASSES, {"metadata": {"name": "local"}, "provisioner": "mine.example.org"}
    )
    world.tenant_server.store.create(
        STORAGE_CLASSES, {"metadata": {"name": "other"}, "provisioner": "mine.example.org"}
    )
    create_class(world)
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.tenant_volumes.claims.is_complete)
        await wait_until(
            lambda: [one for one in world.tenant_server.requests if one.startswith("POST") and "storageclasses" in one]
        )
        await world.wait_settled()

    assert {created["provisioner"] for created in class_names(world).values()} == {"mine.example.org"}


async def test_class_no_longer_permitted_is_deleted(world: World) -> None:
    create_class(world)
    async with world.run_gateway() as sync:
        await wait_until(lambda: class_names(world))
        sync.update_tenant(
            replace(sync.scope.tenant, storage_classes=()), links=sync.scope.links, bindings=dict(sync.scope.bindings)
        )
        await wait_until(lambda: class_names(world) == {})


async def test_class_topology_restricts_pods_to_pools_with_volumes(world: World) -> None:
    node = world.compute_server.store.get(NODES, "gpu-host-17")
    node = node | {"metadata": node["metadata"] | {"labels": {"gpu": "a100", "zone": "b"}}}
    world.compute_server.store.update(NODES, node, name="gpu-host-17")
    create_class(world, allowedTopologies=[{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}])
    async with world.run_gateway():
        await wait_until(lambda: class_names(world))
        await world.wait_settled()

    (term,) = class_names(world)["local"]["allowedTopologies"]
    assert [entry["values"] for entry in term["matchLabelExpressions"]] == [["local"], ["none"]]
