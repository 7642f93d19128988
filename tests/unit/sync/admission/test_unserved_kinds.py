"""Pods with a gang mark of a kind that the tenant's server does not serve, or not yet."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.admission.cluster_helpers import (
    ADMITTED,
    GATE,
    bind_pod,
    event_messages,
    get_annotation,
    get_condition,
    get_pod,
    is_ungated,
    wait_ungated,
)
from tests.unit.sync.world import World, start_world
from vkgateway.api.names import BORROWED_ANNOTATION, COMPUTE_NODE_ANNOTATION
from vkgateway.kube.resources import CRDS, NAMESPACES, PODS, Resource
from vkgateway.runtime.views.pods import decode_tenant_pod
from vkgateway.scheduler.gangs import Kind
from vkgateway.scheduler.service import companion_objects
from vkgateway.tenants.tenant import TenantSync

POD_GROUPS = Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup")
LABELS = {"scheduling.x-k8s.io/pod-group": "web"}
CRD = {
    "metadata": {"name": "podgroups.scheduling.x-k8s.io"},
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "podgroups", "kind": "PodGroup"},
        "versions": [{"name": "v1alpha1", "served": True}],
    },
}


@pytest.fixture
async def world(told_soon: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(companion_objects, "_RETRY", 0.1)
    async with start_world() as world:
        world.compute_server.store.create(NAMESPACES, {"metadata": {"name": "default"}})
        yield world


def create_marked(world: World, name: str = "web", *, gpus: int = 0, **spec: Any) -> None:
    """Create a gated pod with the label, and by default without devices."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    metadata = {"name": name, "labels": LABELS}
    containers = [{"name": "main", "image": "x", "resources": {"limits": {"cpu": "1", **limits}}}]
    body = {"containers": containers, "enableServiceLinks": False, "schedulingGates": [GATE], **spec}
    world.tenant_server.store.create(PODS, {"metadata": metadata, "spec": body}, "default")


def create_group(world: World, minimum: int) -> None:
    world.tenant_server.store.create(
        POD_GROUPS, {"metadata": {"name": "web"}, "spec": {"minMember": minimum}}, "default"
    )


def is_member(sync: TenantSync, world: World, name: str = "web") -> bool:
    return (
        sync.reconcilers.admission.tenant_admission.gangs.find_member(get_pod(world, name)["metadata"]["uid"])
        is not None
    )


async def runs_ordinarily(world: World, name: str = "web") -> None:
    below = await world.wait_forwarded(name)
    assert get_annotation(below, COMPUTE_NODE_ANNOTATION) == ""
    assert get_annotation(below, BORROWED_ANNOTATION) == ""
    world.run_pod(name)
    await wait_until(lambda: world.pod_phase(name) == "Running")


async def test_pod_without_devices_starts_as_an_ordinary_pod(world: World) -> None:
    create_marked(world)
    async with world.run_gateway() as sync:
        await wait_ungated(world)
        assert get_condition(world, ADMITTED) is None
        bind_pod(world)
        await runs_ordinarily(world)
        assert not is_member(sync, world)
        assert sync.reconcilers.admission.tenant_admission.is_known


@pytest.mark.parametrize("by_hand", [False, True])
async def test_bound_ungated_pod_starts_as_an_ordinary_pod(world: World, by_hand: bool) -> None:
    world.limit = world.limit | {"cpu": 1500}
    containers = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}]
    world.create_pod(labels=LABELS, by_hand=by_hand, containers=containers)
    async with world.run_gateway() as sync:
        await runs_ordinarily(world)
        assert not is_member(sync, world)


@pytest.mark.parametrize("bound", [False, True])
async def test_failing_server_holds_the_pod_until_it_answers(world: World, bound: bool) -> None:
    fault = world.tenant_server.fail("GET", "/apis/scheduling.x-k8s.io", status=503, times=10_000)
    if bound:
        world.create_pod(labels=LABELS)
    else:
        create_marked(world)
    async with world.run_gateway() as sync:
        await wait_until(lambda: fault.hits > 3)
        await world.wait_settled()
        assert is_member(sync, world)
        assert world.compute_pod("web") is None
        assert bound or not is_ungated(world)

        world.tenant_server.heal()
        if not bound:
            await wait_ungated(world)
            bind_pod(world)
        await runs_ordinarily(world)
        assert not is_member(sync, world)


async def test_gang_created_with_its_kind_waits_despite_discovery_lag(world: World) -> None:
    world.tenant_server.store.create(CRDS, CRD)
    create_marked(world)
    async with world.run_gateway() as sync:
        await wait_until(lambda: is_member(sync, world))
        await world.wait_settled()
        assert not is_ungated(world)
        world.tenant_server.register(POD_GROUPS)
        await event_messages(world, "WaitingForMembers")
        assert not is_ungated(world)
        create_group(world, 1)
        await wait_ungated(world)


async def test_new_pods_wait_and_running_ones_continue_after_installation_of_the_kind(
    world: World,
) -> None:
    create_marked(world, "old")
    async with world.run_gateway():
        await wait_ungated(world, "old")
        bind_pod(world, "old")
        await runs_ordinarily(world, "old")

        world.tenant_server.register(POD_GROUPS)
        create_marked(world, "new")
        assert "PodGroup web" in await event_messages(world, "WaitingForMembers", "new")
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.admission.tenant_admission.is_known)
        await world.wait_settled()
        assert not is_member(sync, world, "old")
        assert is_member(sync, world, "new")
        create_group(world, 1)
        await wait_ungated(world, "new")
        assert get_condition(world, ADMITTED, "old") is None
        assert get_annotation(world.compute_pod("old"), BORROWED_ANNOTATION) == ""


async def test_ordinary_running_pod_stays_ordinary_despite_watch_lag(world: World) -> None:
    world.create_pod("old", labels=LABELS)
    async with world.run_gateway():
        await runs_ordinarily(world, "old")
    world.tenant_server.register(POD_GROUPS)
    world.compute_server.hold("GET", "/api/v1/pods", times=2)
    async with world.run_gateway() as sync:
        await wait_until(lambda: is_member(sync, world, "old"))
        world.compute_server.heal()
        await wait_until(lambda: not is_member(sync, world, "old"))
        await wait_until(lambda: sync.reconcilers.admission.tenant_admission.is_known)


async def test_bound_pod_is_not_added_before_the_kind_lookup(world: World) -> None:
    """For any order of the two reconcilers, and any earlier lookup of the kind."""
    create_marked(world)
    async with world.run_gateway() as sync:
        await wait_ungated(world)
        await world.wait_settled()
        document = copy.deepcopy(get_pod(world))
        document["metadata"] |= {"name": "other", "uid": "other"}
        view = decode_tenant_pod(json.dumps(document).encode())
        desk = sync.reconcilers.admission
        desk.observe_pod(document, view)
        assert desk.tenant_admission.gangs.find_member("other") is None

        world.tenant_server.register(POD_GROUPS)
        create_marked(world, "next")
        await wait_until(lambda: desk.companions.is_watched(Kind("scheduling.x-k8s.io", "PodGroup", "podgroups")))
        desk.observe_pod(document, view)
        assert desk.tenant_admission.gangs.find_member("other") is not None


async def test_running_gang_stays_a_gang_after_removal_of_its_kind(world: World) -> None:
    world.tenant_server.register(POD_GROUPS)
    create_group(world, 1)
    create_marked(world)
    async with world.run_gateway():
        await wait_ungated(world)
        bind_pod(world)
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
    world.tenant_server.unregister(POD_GROUPS)
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.admission.tenant_admission.is_known)
        assert is_member(sync, world)
        create_marked(world, "new")
        await wait_ungated(world, "new")


async def test_pod_with_devices_waits_with_the_missing_kind_as_reason(world: World) -> None:
    create_marked(world, gpus=1)
    async with world.run_gateway() as sync:
        message = await event_messages(world, "WaitingForMembers")
        assert "this cluster does not serve the kind PodGroup of scheduling.x-k8s.io" in message
        assert not is_ungated(world)

        world.tenant_server.register(POD_GROUPS)
        reasons = sync.reconcilers.admission.tenant_admission.reasons
        missing = "PodGroup web (podgroups.scheduling.x-k8s.io) does not exist"
        await wait_until(lambda: [one.text.startswith(missing) for one in reasons.pending_messages.values()] == [True])
        assert not is_ungated(world)
        create_group(world, 1)
        await wait_ungated(world)


async def test_launcher_without_devices_starts(world: World) -> None:
    create_marked(world, "worker", gpus=1)
    create_marked(world, "launcher")
    async with world.run_gateway():
        await wait_ungated(world, "launcher")
        await event_messages(world, "WaitingForMembers", "worker")


async def test_recreated_pod_is_judged_again(world: World) -> None:
    create_marked(world)
    async with world.run_gateway() as sync:
        await wait_ungated(world)
        world.delete_pod(grace=0)
        await wait_until(lambda: not sync.reconcilers.admission.member_reader.ordinary.marks)
        world.tenant_server.register(POD_GROUPS)
        create_marked(world)
        await event_messages(world, "WaitingForMembers")
        assert not is_ungated(world)
