"""Volumes: for each claim one below, shown above without a word of where, and gone with it."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.background import in_background
from tests.unit.sync.storage.players import (
    above,
    below,
    bind_above,
    bind_below,
    change,
    change_below,
    claim,
    mounted,
    offer,
    reasons,
    release,
    retain,
    unprotect,
    volume,
    volumes,
)
from tests.unit.sync.world import BELOW, NODE, World, names, until, world
from vkgateway.kube.resources import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from vkgateway.model.names import COMPUTE_CLUSTER_LABEL, TENANT_LABEL
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.storage import volumes as sync_volumes
from vkgateway.sync.tenant import TenantSync
from vkgateway.translate.storage.views import PROVISIONER


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        made.policy = {"storage_classes": ("local", "fast")}
        offer(made)
        yield made


async def test_a_claim_is_made_below_and_shown_at_once_where_the_compute_cluster_waits_for_the_pod(here: World) -> None:
    source = claim(here)
    uid = source["metadata"]["uid"]
    async with here.gateway():
        found = await volume(here)
        made = below(here)

    assert made is not None
    assert made["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "storageClassName": "local",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    assert made["metadata"]["labels"] == {TENANT_LABEL: "alpha"}
    assert made["metadata"]["annotations"] == {
        "vkgateway.io/namespace": "default",
        "vkgateway.io/name": "data",
        "vkgateway.io/uid": uid,
    }
    assert found["metadata"]["name"] == f"pvc-{uid}"
    assert found["metadata"]["annotations"]["vkgateway.io/provisional"] == "true"
    assert found["spec"]["csi"] == {"driver": PROVISIONER, "volumeHandle": uid}
    assert found["spec"]["claimRef"]["uid"] == uid
    assert (found["spec"]["capacity"], found["spec"]["storageClassName"]) == ({"storage": "1Gi"}, "local")


async def test_what_is_true_of_it_is_told_once_it_is_known_and_nothing_of_where_it_is(here: World) -> None:
    claim(here)
    async with here.gateway():
        await volume(here)
        bind_above(here)
        bind_below(here, size="2Gi")
        await until(lambda: volumes(here)[0]["spec"]["capacity"] == {"storage": "2Gi"})
        await until(lambda: (above(here) or {})["status"]["capacity"] == {"storage": "2Gi"})
        assert "vkgateway.io/provisional" not in volumes(here)[0]["metadata"]["annotations"]

    told = json.dumps([volumes(here), above(here), here.events()])
    assert not [word for word in ("secret", "disk-", BELOW, "disks.example.org") if word in told]


async def test_where_volumes_are_made_at_once_the_claim_is_shown_the_true_one(here: World) -> None:
    offer(here, "fast", waits=False)
    claim(here, storage_class="fast")
    async with here.gateway():
        await until(lambda: below(here))
        await here.settled()
        assert volumes(here) == []
        bind_below(here, size="5Gi")
        found = await volume(here)

    assert found["spec"]["capacity"] == {"storage": "5Gi"}
    assert "vkgateway.io/provisional" not in found["metadata"]["annotations"]


async def test_nothing_is_made_before_the_tenants_own_controllers_ask(here: World) -> None:
    claim(here)
    change(here, annotations={"volume.kubernetes.io/storage-provisioner": ""})
    async with here.gateway() as sync:
        await until(lambda: sync.storage.tenant_volumes.is_complete)
        await here.settled()
        assert (below(here), volumes(here)) == (None, [])
        change(here, annotations={"volume.kubernetes.io/storage-provisioner": PROVISIONER})
        await until(lambda: below(here))


async def test_a_silent_compute_cluster_that_the_tenant_has_no_pools_of_holds_up_no_volume(here: World) -> None:
    async with here.gateway() as sync, here.below.client("away") as client:
        await until(lambda: sync.storage.tenant_volumes.is_watching)
        assert here.link is not None
        links = {"local": here.link, "away": ComputeLink("away", client)}
        sync.update_tenant(sync.tenant, links=links, bindings={NODE: here.binding(here.link)})
        claim(here)
        await volume(here)
        assert below(here) is not None


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
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
async def test_what_cannot_be_had_is_told_with_the_way_out(
    here: World, spec: dict[str, Any], reason: str, said: str
) -> None:
    claim(here, **spec)
    async with here.gateway():
        (words,) = await until(lambda: reasons(here, reason))
        await here.settled()

    assert said in words
    assert (below(here), volumes(here)) == (None, [])


async def test_classes_may_have_another_name_above(here: World) -> None:
    here.policy = {"storage_class_names": {"standard": "local"}}
    claim(here, storage_class="standard")
    async with here.gateway():
        found = await volume(here)

    assert (below(here) or {})["spec"]["storageClassName"] == "local"
    assert found["spec"]["storageClassName"] == "standard"


async def test_deleting_the_claim_deletes_the_data_and_only_then_the_volume(here: World) -> None:
    claim(here)
    async with here.gateway():
        await mounted(here)
        kept = copy.deepcopy(below(here) or {})
        kept["metadata"]["finalizers"] = ["kubernetes.io/pvc-protection"]
        here.below.store.update(PERSISTENT_VOLUME_CLAIMS, kept, name="data", namespace=BELOW)
        release(here)
        await until(lambda: (below(here) or {"metadata": {}})["metadata"].get("deletionTimestamp"))
        await here.settled()
        assert len(volumes(here)) == 1
        kept["metadata"]["finalizers"] = []
        del kept["metadata"]["resourceVersion"]
        here.below.store.update(PERSISTENT_VOLUME_CLAIMS, kept, name="data", namespace=BELOW)
        await until(lambda: volumes(here) == [])
    assert below(here) is None


async def test_a_claim_that_goes_before_anything_stands_behind_it_leaves_nothing(here: World) -> None:
    offer(here, "fast", waits=False)
    claim(here, storage_class="fast")
    async with here.gateway():
        await until(lambda: below(here))
        here.above.store.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        await until(lambda: below(here) is None)
    assert volumes(here) == []


async def test_a_volume_that_is_to_be_kept_is_kept_and_its_name_is_free_for_another(here: World) -> None:
    claim(here)
    async with here.gateway():
        await mounted(here)
        kept = copy.deepcopy(volumes(here)[0])
        kept["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
        here.above.store.update(PERSISTENT_VOLUMES, kept, name=kept["metadata"]["name"])
        release(here)
        await here.settled()
        assert below(here) is not None
        claim(here)
        await until(lambda: len(volumes(here)) == 2)
        first, second = sorted(names(here.below, PERSISTENT_VOLUME_CLAIMS))
        assert first == "data"
        assert second.startswith("data-")
        # Deleted by hand it goes, and takes its data along.
        here.above.store.delete(PERSISTENT_VOLUMES, kept["metadata"]["name"])
        await until(lambda: names(here.below, PERSISTENT_VOLUME_CLAIMS) == [second])
        await until(lambda: len(volumes(here)) == 1)


async def test_a_kept_volume_goes_once_nothing_is_left_of_it(here: World) -> None:
    now = [1_800_000_000.0]
    here.clock = lambda: now[0]
    claim(here)
    async with here.gateway() as sync:
        await mounted(here)
        kept = copy.deepcopy(volumes(here)[0])
        kept["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
        here.above.store.update(PERSISTENT_VOLUMES, kept, name=kept["metadata"]["name"])
        release(here)
        here.below.store.delete(PERSISTENT_VOLUME_CLAIMS, "data", BELOW)
        await here.settled()
        assert len(volumes(here)) == 1
        now[0] += 31
        sync.storage.compute_claim_changed(kept["spec"]["csi"]["volumeHandle"])
        await until(lambda: volumes(here) == [])


async def test_which_nodes_reach_a_volume_is_asked_once_and_what_it_says_is_kept(here: World) -> None:
    """Also by a gateway that may not read volumes: it says nothing of nodes then."""
    here.below.fail("GET", "/persistentvolumes/", status=403, reason="Forbidden", times=99)
    claim(here)
    async with here.gateway() as sync:
        sync.bindings["v100.local"] = replace(
            sync.bindings["a100.local"],
            pool=replace(
                sync.bindings["a100.local"].pool, name="v100", node_name="v100.local", node_selector={"x": "y"}
            ),
        )
        await mounted(here)
        assert "nodeAffinity" not in volumes(here)[0]["spec"]
        here.below.heal()
        claim(here, "second")
        await until(lambda: len(volumes(here)) == 2)
        bind_above(here, "second")
        place = {"key": "gpu", "operator": "In", "values": ["a100"]}
        bind_below(
            here,
            "second",
            nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}},
        )
        found = await until(lambda: [one for one in volumes(here) if "nodeAffinity" in one["spec"]])
        (term,) = found[0]["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": "vkgateway.io/pool", "operator": "In", "values": ["a100"]}]


async def test_a_second_compute_cluster_draws_no_pod_away_from_its_volume(here: World) -> None:
    claim(here)
    async with here.gateway() as sync, here.below.client("away") as client:
        await mounted(here)
        assert "nodeAffinity" not in volumes(here)[0]["spec"]
        assert here.link is not None
        away = ComputeLink("away", client)
        binding = here.binding(away)
        pool = replace(binding.pool, compute_cluster="away", node_name="a100.away")
        bindings = {NODE: here.binding(here.link), "a100.away": replace(binding, pool=pool)}
        sync.update_tenant(sync.tenant, links={"local": here.link, "away": away}, bindings=bindings)
        await until(lambda: "nodeAffinity" in volumes(here)[0]["spec"])
    (term,) = volumes(here)[0]["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "vkgateway.io/compute-cluster", "operator": "In", "values": ["local"]}]


async def test_a_silent_compute_cluster_keeps_no_data_in_others_from_going(here: World) -> None:
    claim(here)
    async with here.gateway() as sync, here.below.client("away") as client:
        await mounted(here)
        assert here.link is not None
        links = {"local": here.link, "away": ComputeLink("away", client)}
        sync.update_tenant(sync.tenant, links=links, bindings={NODE: here.binding(here.link)})
        release(here)
        await until(lambda: below(here) is None)
        await here.settled()
        # Whether there is anything of it in the other one is not known.
        assert len(volumes(here)) == 1


@asynccontextmanager
async def detached(here: World, sync: TenantSync, *, others: bool) -> AsyncIterator[None]:
    """The gateway knows no more of the compute cluster: its object was deleted, or its kubeconfig cannot be read."""
    async with FakeApiServer() as server, server.client("away") as client:
        away = ComputeLink("away", client)
        async with in_background(away.run()):
            await until(lambda: away.claims_trusted)
            links, bindings = dict(sync.links), dict(sync.bindings)
            sync.update_tenant(sync.tenant, links={"away": away} if others else {}, bindings={})
            yield
            sync.update_tenant(sync.tenant, links=links, bindings=bindings)


@pytest.mark.parametrize("others", [True, False])
async def test_of_a_detached_compute_cluster_no_volume_is_lost(here: World, *, others: bool) -> None:
    now = [1_800_000_000.0]
    here.clock = lambda: now[0]
    for name in ("data", "kept"):
        claim(here, name)
    async with here.gateway() as sync:
        await until(lambda: len(volumes(here)) == 2)
        for name in ("data", "kept"):
            bind_above(here, name)
            bind_below(here, name)
        await until(lambda: all(len(one["metadata"]["annotations"]) == 1 for one in volumes(here)))
        retain(here, "kept")
        release(here, "kept")
        await here.settled()
        async with detached(here, sync, others=others):
            for _ in range(3):
                now[0] += 31
                for uid in sync.storage.volumes.known_volumes():
                    sync.storage.compute_claim_changed(uid)
                await here.settled()
            assert len(volumes(here)) == 2
        await here.settled()
    assert len(volumes(here)) == 2
    assert (below(here) is not None, below(here, "kept") is not None) == (True, True)


async def test_data_in_a_detached_compute_cluster_goes_once_it_is_there_again(here: World) -> None:
    claim(here)
    async with here.gateway() as sync:
        await mounted(here)
        async with detached(here, sync, others=True):
            release(here)
            await here.settled()
            assert len(volumes(here)) == 1
        await until(lambda: below(here) is None and volumes(here) == [])


async def test_where_volumes_are_is_noted_on_those_that_were_made_before(here: World) -> None:
    def places() -> list[str | None]:
        return [one["metadata"].get("labels", {}).get(COMPUTE_CLUSTER_LABEL) for one in volumes(here)]

    for name in ("data", "kept"):
        claim(here, name)
    async with here.gateway():
        await until(lambda: len(volumes(here)) == 2)
        for name in ("data", "kept"):
            bind_above(here, name)
            bind_below(here, name)
        retain(here, "kept")
        release(here, "kept")
        assert places() == ["local", "local"]
    for one in copy.deepcopy(volumes(here)):
        del one["metadata"]["labels"]
        here.above.store.update(PERSISTENT_VOLUMES, one, name=one["metadata"]["name"])
    async with here.gateway():
        await until(lambda: places() == ["local", "local"])


async def test_deleting_the_volume_of_a_claim_waits_for_the_claim(here: World) -> None:
    claim(here)
    async with here.gateway():
        await mounted(here)
        name = volumes(here)[0]["metadata"]["name"]
        here.above.store.delete(PERSISTENT_VOLUMES, name)
        await here.settled()
        assert below(here) is not None
        release(here)
        await until(lambda: below(here) is None and volumes(here) == [])


async def test_data_is_not_removed_for_what_a_late_watch_does_not_show(here: World) -> None:
    claim(here)
    async with here.gateway() as sync:
        await mounted(here)
        sync.storage.tenant_volumes._keys.clear()
        here.above.store.delete(PERSISTENT_VOLUMES, volumes(here)[0]["metadata"]["name"])
        await until(lambda: any("/persistentvolumeclaims/data" in one for one in here.above.requests))
        await here.settled()
    assert below(here) is not None


async def test_what_grows_above_grows_below_and_how_that_goes_is_told(here: World) -> None:
    claim(here)
    async with here.gateway():
        await mounted(here)
        change(here, resources={"requests": {"storage": "3Gi"}})
        await until(lambda: (below(here) or {})["spec"]["resources"]["requests"]["storage"] == "3Gi")
        growing = {"type": "Resizing", "status": "True", "message": f"disk of {BELOW}/data"}
        change_below(here, conditions=[growing], allocatedResources={"storage": "3Gi"})
        await until(lambda: (above(here) or {})["status"].get("conditions"))
        told = (above(here) or {})["status"]
        assert told["conditions"] == [growing | {"message": "disk of default/data"}]
        assert told["allocatedResources"] == {"storage": "3Gi"}
        change_below(here, conditions=[], capacity={"storage": "3Gi"})
        await until(lambda: (above(here) or {})["status"]["capacity"] == {"storage": "3Gi"})
        await until(lambda: volumes(here)[0]["spec"]["capacity"] == {"storage": "3Gi"})
        assert "conditions" not in (above(here) or {})["status"]


async def test_a_refused_growth_is_told(here: World) -> None:
    claim(here)
    async with here.gateway():
        await mounted(here)
        here.below.fail("PATCH", "/persistentvolumeclaims/data", status=403, reason="Forbidden", times=9)
        change(here, resources={"requests": {"storage": "3Gi"}})
        (words,) = await until(lambda: reasons(here, "VolumeResizeFailed"))
    assert words.startswith("the compute cluster refused it")


async def test_a_refused_growth_is_tried_again(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_volumes, "_GROW_AGAIN", 0.05)
    claim(here)
    async with here.gateway():
        await mounted(here)
        quota = here.below.fail("PATCH", "/persistentvolumeclaims/data", status=403, reason="Forbidden")
        change(here, resources={"requests": {"storage": "3Gi"}})
        await until(lambda: quota.hits)
        await until(lambda: (below(here) or {})["spec"]["resources"]["requests"]["storage"] == "3Gi")


async def test_a_compute_cluster_that_is_starting_refuses_nothing(here: World) -> None:
    """Its admission plugins know nothing yet; neither of a new volume nor of one that grows is that told."""
    words = 'persistentvolumeclaims "data" is forbidden: not yet ready to handle request'
    claim(here)
    made = here.below.fail("POST", "/persistentvolumeclaims", status=403, reason="Forbidden")
    made.message = words
    async with here.gateway():
        await mounted(here)
        grown = here.below.fail("PATCH", "/persistentvolumeclaims/data", status=403, reason="Forbidden")
        grown.message = words
        change(here, resources={"requests": {"storage": "3Gi"}})
        await until(lambda: (below(here) or {})["spec"]["resources"]["requests"]["storage"] == "3Gi")
    assert (made.hits, grown.hits) == (1, 1)
    assert reasons(here, "ForwardingRefused") == reasons(here, "VolumeResizeFailed") == []


async def test_a_compute_claim_that_somebody_deleted_is_lost_above_after_a_while(here: World) -> None:
    now = [1_800_000_000.0]
    here.clock = lambda: now[0]
    claim(here)
    async with here.gateway() as sync:
        await mounted(here)
        here.below.store.delete(PERSISTENT_VOLUME_CLAIMS, "data", BELOW)
        uid = (above(here) or {})["metadata"]["uid"]
        await here.settled()
        assert len(volumes(here)) == 1
        now[0] += 31
        sync.storage.compute_claim_changed(uid)
        await until(lambda: volumes(here) == [])
        await here.settled()
    assert below(here) is None


async def test_a_compute_claim_that_held_nothing_yet_is_made_again(here: World) -> None:
    claim(here)
    async with here.gateway():
        await volume(here)
        bind_above(here)
        here.below.store.delete(PERSISTENT_VOLUME_CLAIMS, "data", BELOW)
        await until(lambda: below(here))
    assert len(volumes(here)) == 1


async def test_a_lost_compute_claim_is_lost_above(here: World) -> None:
    claim(here)
    async with here.gateway():
        await mounted(here)
        change_below(here, phase="Lost")
        await until(lambda: volumes(here) == [])
        await here.settled()
    assert volumes(here) == []


async def test_a_volume_that_went_by_force_comes_back_while_its_data_is_there(here: World) -> None:
    claim(here)
    async with here.gateway():
        await mounted(here)
        found = volumes(here)[0]
        unprotect(here, found["metadata"]["name"])
        freed = copy.deepcopy(here.above.store.get(PERSISTENT_VOLUMES, found["metadata"]["name"]))
        freed["metadata"]["finalizers"] = []
        here.above.store.update(PERSISTENT_VOLUMES, freed, name=found["metadata"]["name"])
        here.above.store.delete(PERSISTENT_VOLUMES, found["metadata"]["name"])
        await until(lambda: volumes(here) and volumes(here)[0]["metadata"]["uid"] != found["metadata"]["uid"])
    assert below(here) is not None


async def test_what_happened_while_the_gateway_was_away_is_made_good(here: World) -> None:
    for name in ("data", "gone", "grown"):
        claim(here, name)
    async with here.gateway():
        await until(lambda: len(volumes(here)) == 3)
        for name in ("data", "gone", "grown"):
            bind_above(here, name)
            bind_below(here, name)
        await until(lambda: all(len(one["metadata"]["annotations"]) == 1 for one in volumes(here)))
    release(here, "gone")
    change(here, "grown", resources={"requests": {"storage": "3Gi"}})
    claim(here, "new")
    async with here.gateway():
        await until(lambda: below(here, "gone") is None and below(here, "new") is not None and len(volumes(here)) == 3)
        await until(lambda: (below(here, "grown") or {})["spec"]["resources"]["requests"]["storage"] == "3Gi")
        await here.settled()
        before = len([one for one in here.below.requests + here.above.requests if not one.startswith("GET")])
    async with here.gateway() as sync:
        await until(lambda: sync.storage.tenant_volumes.is_complete)
        await here.settled()
    after = len([one for one in here.below.requests + here.above.requests if not one.startswith("GET")])
    assert after == before


async def test_a_volume_left_over_half_way_is_removed_though_there_is_no_claim_at_all(here: World) -> None:
    claim(here)
    async with here.gateway():
        await mounted(here)
    release(here)
    here.below.store.delete(PERSISTENT_VOLUME_CLAIMS, "data", BELOW)
    async with here.gateway():
        await until(lambda: volumes(here) == [])


async def test_data_without_claim_and_volume_is_kept(here: World) -> None:
    """A tenant whose store was set back, or lost, has its data still."""
    claim(here)
    async with here.gateway():
        await mounted(here)
    for resource in (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES):
        here.above.store.objects[resource].clear()
    here.above.store.compact()
    async with here.gateway() as sync:
        await until(lambda: sync.storage.tenant_volumes.is_complete)
        await here.settled()
    assert below(here) is not None


async def test_a_name_that_is_taken_below_is_left_alone(here: World) -> None:
    here.below.store.create(NAMESPACES, {"metadata": {"name": "elsewhere"}})
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.below.store.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "data"}, "spec": {}}, BELOW)
        claim(here)
        await here.settled()
    assert "labels" not in (below(here) or {})["metadata"]
    assert volumes(here) == []


async def test_a_tenant_that_may_have_no_volumes_and_runs_nothing_is_not_even_watched(here: World) -> None:
    here.policy = {}
    claim(here)
    async with here.gateway() as sync:
        await until(lambda: sync.is_complete)
        await here.settled()
    assert not [request for request in here.above.requests if "persistentvolume" in request]


async def test_without_a_claim_one_watch_more_is_all_it_costs(here: World) -> None:
    async with here.gateway() as sync:
        await until(lambda: sync.storage.tenant_volumes.claims.is_complete)
        await here.settled()
    asked = [request for request in here.above.requests if "/persistentvolumes" in request]
    assert asked == ["GET /api/v1/persistentvolumes?limit=1"]
