"""Pods that use claims: they start once each claim has something below, and say what they wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.sync.storage.players import above, bind_above, claim, mounted, offer, reasons, release, volume, volumes
from tests.unit.sync.world import World, until, world
from vkgateway.kube.resources import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS

DATA: dict[str, Any] = {"name": "disk", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        made.policy = {"storage_classes": ("local",)}
        offer(made)
        yield made


async def test_a_pod_starts_once_its_claim_is_shown_a_volume_though_nothing_is_made_below_yet(here: World) -> None:
    claim(here)
    async with here.gateway():
        await volume(here)
        bind_above(here)
        here.create(volumes=[DATA])
        pod = await here.forwarded()

    assert pod["spec"]["volumes"] == [DATA]
    assert reasons(here, "MissingDependency") == []


async def test_a_generic_ephemeral_volume_is_from_the_claim_that_the_tenants_controller_made(here: World) -> None:
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local"}}
    claim(here, "web-scratch")
    async with here.gateway():
        await volume(here)
        bind_above(here, "web-scratch")
        here.create(volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}])
        pod = await here.forwarded()

    assert pod["spec"]["volumes"] == [{"name": "scratch", "persistentVolumeClaim": {"claimName": "web-scratch"}}]


async def test_a_claim_that_is_called_otherwise_below_is_found_there(here: World) -> None:
    claim(here)
    async with here.gateway():
        await mounted(here)
        kept = dict(volumes(here)[0])
        kept["spec"] = {**kept["spec"], "persistentVolumeReclaimPolicy": "Retain"}
        here.above.store.update(PERSISTENT_VOLUMES, kept, name=kept["metadata"]["name"])
        release(here)
        claim(here)
        await until(lambda: len(volumes(here)) == 2)
        bind_above(here)
        here.create(volumes=[DATA])
        pod = await here.forwarded()

    (used,) = pod["spec"]["volumes"]
    assert used["persistentVolumeClaim"]["claimName"].startswith("data-")
    assert used["persistentVolumeClaim"]["readOnly"]


async def test_a_pod_waits_and_says_for_what_until_it_is_there(here: World) -> None:
    here.create(volumes=[DATA])
    async with here.gateway():
        (words,) = await until(lambda: reasons(here, "MissingDependency"))
        assert words == 'persistentvolumeclaim "data" not found'
        claim(here)
        await volume(here)
        await here.settled()
        assert here.compute_pod() is None
        bind_above(here)
        await here.forwarded()


async def test_a_volume_of_somebody_else_is_not_mounted(here: World) -> None:
    source = claim(here)
    reserved = {"namespace": "default", "name": "data", "uid": source["metadata"]["uid"]}
    other = {"nfs": {"server": "10.0.0.1", "path": "/"}, "claimRef": reserved, "capacity": {"storage": "1Gi"}}
    here.above.store.create(
        PERSISTENT_VOLUMES, {"metadata": {"name": "mine"}, "spec": other | {"accessModes": ["ReadWriteOnce"]}}
    )
    bind_to(here, "mine")
    here.create(volumes=[DATA])
    async with here.gateway():
        (words,) = await until(lambda: reasons(here, "MissingDependency"))
        await here.settled()
    assert "is bound to mine, which is no volume of the platform's" in words
    assert here.compute_pod() is None


async def test_a_volume_stays_in_its_namespace(here: World) -> None:
    """Also where the tenant hands it to a claim elsewhere, or writes a volume with its handle by hand."""
    source = claim(here)
    here.above.store.create(NAMESPACES, {"metadata": {"name": "other"}})
    async with here.gateway():
        await mounted(here)
        document = {
            "metadata": {"name": "data", "annotations": {}},
            "spec": {"volumeName": volumes(here)[0]["metadata"]["name"]},
            "status": {"phase": "Bound"},
        }
        here.above.store.create(PERSISTENT_VOLUME_CLAIMS, document, "other")
        here.above.store.create(
            PODS,
            {
                "metadata": {"name": "thief"},
                "spec": {"containers": [{"name": "c"}], "nodeName": "a100.local", "volumes": [DATA]},
            },
            "other",
        )
        (words,) = await until(lambda: reasons(here, "MissingDependency"))
    assert words == 'persistentvolumeclaim "data" is bound to a volume that stays in namespace default'
    assert source["metadata"]["uid"] == (above(here) or {})["metadata"]["uid"]


def bind_to(here: World, name: str) -> None:
    found = dict(above(here) or {})
    found["spec"] = {**found["spec"], "volumeName": name}
    found["status"] = {"phase": "Bound"}
    here.above.store.update(PERSISTENT_VOLUME_CLAIMS, found, name="data", namespace="default")
