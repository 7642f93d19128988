"""Storage classes in a tenant: those that its policy allows, under its names, and nothing of how volumes are made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sync.storage.players import offer
from tests.unit.sync.world import World, until, world
from vkgateway.kube.resources import NODES, STORAGE_CLASSES
from vkgateway.translate.storage.views import PROVISIONER

DEFAULT = "storageclass.kubernetes.io/is-default-class"


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        made.policy = {"storage_classes": ("local",)}
        yield made


def classes(here: World) -> dict[str, dict[str, Any]]:
    return {document["metadata"]["name"]: document for document in here.above.store.all(STORAGE_CLASSES)}


async def test_the_tenant_sees_what_it_may_have_and_nothing_of_how_it_is_made(here: World) -> None:
    offer(here, parameters={"server": "10.0.0.1"}, mountOptions=["hard"], allowVolumeExpansion=True)
    offer(here, "gold")
    async with here.gateway():
        await until(lambda: classes(here))
        await here.settled()

    assert list(classes(here)) == ["local"]
    made = classes(here)["local"]
    assert {key: made[key] for key in made if key not in ("metadata", "apiVersion", "kind")} == {
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }
    assert made["metadata"]["annotations"] == {DEFAULT: "false"}


@pytest.mark.parametrize(
    ("default", "expected"),
    [("", {"local": "true", "quick": "false"}), ("quick", {"local": "false", "quick": "true"})],
)
async def test_which_is_the_default_says_the_policy_or_else_the_compute_cluster(
    here: World, default: str, expected: dict[str, str]
) -> None:
    here.policy |= {"storage_class_names": {"quick": "fast"}, "default_storage_class": default}
    offer(here, metadata={"name": "local", "annotations": {DEFAULT: "true"}})
    offer(here, "fast", waits=False)
    async with here.gateway():
        await until(lambda: len(classes(here)) == 2)

    assert {name: made["metadata"]["annotations"][DEFAULT] for name, made in classes(here).items()} == expected
    assert classes(here)["quick"]["volumeBindingMode"] == "Immediate"


async def test_what_changes_below_or_was_meddled_with_above_is_made_right(here: World) -> None:
    offer(here)
    offer(here, "fast")
    here.policy = {"storage_classes": ("*",)}
    async with here.gateway() as sync:
        await until(lambda: len(classes(here)) == 2)
        here.below.store.delete(STORAGE_CLASSES, "fast")
        await until(lambda: list(classes(here)) == ["local"])
        here.above.store.update(STORAGE_CLASSES, classes(here)["local"] | {"reclaimPolicy": "Retain"}, name="local")
        here.above.fail("PUT", "/storageclasses/local", status=422, reason="Invalid")
        sync.storage.enqueue_classes()
        await until(lambda: classes(here).get("local", {}).get("reclaimPolicy") == "Delete")


async def test_a_class_of_the_tenants_own_is_left_alone(here: World) -> None:
    here.above.store.create(STORAGE_CLASSES, {"metadata": {"name": "local"}, "provisioner": "mine.example.org"})
    here.above.store.create(STORAGE_CLASSES, {"metadata": {"name": "other"}, "provisioner": "mine.example.org"})
    offer(here)
    async with here.gateway() as sync:
        await until(lambda: sync.storage.tenant_volumes.claims.is_complete)
        await until(lambda: [one for one in here.above.requests if one.startswith("POST") and "storageclasses" in one])
        await here.settled()

    assert {made["provisioner"] for made in classes(here).values()} == {"mine.example.org"}


async def test_what_the_policy_takes_back_goes(here: World) -> None:
    offer(here)
    async with here.gateway() as sync:
        await until(lambda: classes(here))
        sync.update_tenant(replace(sync.tenant, storage_classes=()), links=sync.links, bindings=dict(sync.bindings))
        await until(lambda: classes(here) == {})


async def test_where_only_some_pools_can_have_volumes_the_tenants_scheduler_knows(here: World) -> None:
    node = here.below.store.get(NODES, "gpu-host-17")
    node = node | {"metadata": node["metadata"] | {"labels": {"gpu": "a100", "zone": "b"}}}
    here.below.store.update(NODES, node, name="gpu-host-17")
    offer(here, allowedTopologies=[{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}])
    async with here.gateway():
        await until(lambda: classes(here))
        await here.settled()

    (term,) = classes(here)["local"]["allowedTopologies"]
    assert [entry["values"] for entry in term["matchLabelExpressions"]] == [["local"], ["none"]]
