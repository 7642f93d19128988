"""Pods that use claims: they start once each claim has something below, and say what they wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.sync.storage.players import (
    above,
    bind_above,
    bind_below,
    claim,
    mounted,
    offer,
    reasons,
    release,
    volume,
    volumes,
)
from tests.unit.sync.world import World, compute_node, until, world
from vkgateway.kube.resources import NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS

pytestmark = pytest.mark.usefixtures("told_soon")

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
    assert reasons(here, "PersistentVolumeClaimNotReady") == []


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
        await until(lambda: 'persistentvolumeclaim "data" not found' in reasons(here, "PersistentVolumeClaimNotReady"))
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
        told = "is bound to mine, which is not a volume of the platform"
        await until(lambda: any(told in words for words in reasons(here, "PersistentVolumeClaimNotReady")))
        await here.settled()
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
        told = 'persistentvolumeclaim "data" is bound to a volume that stays in namespace default'
        await until(lambda: told in reasons(here, "PersistentVolumeClaimNotReady"))
    assert source["metadata"]["uid"] == (above(here) or {})["metadata"]["uid"]


async def test_a_pod_that_asks_for_devices_is_placed_where_its_volume_is(here: World) -> None:
    for name in ("gpu-host-18", "gpu-host-19"):
        node = compute_node(name)
        node["metadata"]["labels"]["kubernetes.io/hostname"] = name
        here.below.store.create(NODES, node)
    place = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-host-19"]}
    devices = [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    claim(here)
    async with here.gateway() as sync:
        await volume(here)
        bind_above(here)
        bind_below(here, nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}})
        await until(lambda: sync.storage.claim_users.is_location_known((above(here) or {})["metadata"]["uid"]))
        here.create(containers=devices, volumes=[DATA])
        pod = await here.forwarded()

    assert pod["metadata"]["annotations"]["vkgateway.io/compute-node"] == "gpu-host-19"


async def test_pods_that_wait_are_looked_at_again_once_it_is_known_where_their_volume_is(here: World) -> None:
    claim(here)
    gated: dict[str, Any] = {
        "schedulingGates": [{"name": "vkgateway.io/admission"}, {"name": "mine.example.org/later"}],
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    }
    place = {"key": "zone", "operator": "In", "values": ["b"]}
    async with here.gateway() as sync:
        await volume(here)
        bind_above(here)
        uid = here.create(node="", volumes=[DATA], **gated)["metadata"]["uid"]
        gangs = sync.pods.admission.tenant_admission.gangs
        await until(lambda: gangs.find_member(uid))
        assert gangs.find_member(uid).shape.terms == ()  # type: ignore[union-attr]
        bind_below(here, nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}})
        (term,) = await until(lambda: gangs.find_member(uid).shape.terms)  # type: ignore[union-attr]
    assert [(one.key, one.values) for one in term] == [("zone", ("b",))]


def bind_to(here: World, name: str) -> None:
    found = dict(above(here) or {})
    found["spec"] = {**found["spec"], "volumeName": name}
    found["status"] = {"phase": "Bound"}
    here.above.store.update(PERSISTENT_VOLUME_CLAIMS, found, name="data", namespace="default")


async def test_nothing_is_remembered_of_pods_that_went_while_they_waited(here: World) -> None:
    wanted = [{"name": f"d{number}", "persistentVolumeClaim": {"claimName": f"none{number}"}} for number in range(3)]
    here.create(volumes=wanted)
    here.create("other", volumes=wanted[:1])
    async with here.gateway() as sync:
        users = sync.storage.claim_users
        await until(lambda: len(users._waiting.get(("default", "none0"), ())) == 2)
        here.delete(grace=0)
        await until(lambda: users._waiting == {("default", "none0"): {("default", "other")}})
        here.delete("other", grace=0)
        await until(lambda: not (users._waiting or users._claims_by_pod or users._waiting_since))


async def test_nothing_is_remembered_of_volumes_that_went(here: World) -> None:
    claim(here)
    async with here.gateway() as sync:
        await mounted(here)
        await until(lambda: sync.storage._located_volumes)
        release(here)
        await until(lambda: volumes(here) == [] and not sync.storage._located_volumes)
