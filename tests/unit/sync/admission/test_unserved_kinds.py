"""Pods with the mark of a gang over both servers, where the tenant's does not serve the mark's kind, or not yet."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.sync.admission.platform import (
    ADMITTED,
    GATE,
    annotation,
    bind,
    condition,
    is_let_go,
    let_go,
    pod,
    told,
)
from tests.unit.sync.world import World, until, world
from vkgateway.kube.resources import CRDS, NAMESPACES, PODS, Resource
from vkgateway.model.names import BORROWED_ANNOTATION, COMPUTE_NODE_ANNOTATION
from vkgateway.sync.admission import companion_objects
from vkgateway.sync.tenant import TenantSync
from vkgateway.sync.views.pods import decode_tenant_pod
from vkgateway.translate.gangs import Kind

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
async def here(told_soon: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(companion_objects, "_RETRY", 0.1)
    async with world() as made:
        made.below.store.create(NAMESPACES, {"metadata": {"name": "default"}})
        yield made


def marked(here: World, name: str = "web", *, gpus: int = 0, **spec: Any) -> None:
    """A gated pod with the label, and without devices unless it is given some."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    metadata = {"name": name, "labels": LABELS}
    containers = [{"name": "main", "image": "x", "resources": {"limits": {"cpu": "1", **limits}}}]
    body = {"containers": containers, "enableServiceLinks": False, "schedulingGates": [GATE], **spec}
    here.above.store.create(PODS, {"metadata": metadata, "spec": body}, "default")


def group(here: World, minimum: int) -> None:
    here.above.store.create(POD_GROUPS, {"metadata": {"name": "web"}, "spec": {"minMember": minimum}}, "default")


def is_member(sync: TenantSync, here: World, name: str = "web") -> bool:
    return sync.pods.admission.tenant_admission.gangs.find_member(pod(here, name)["metadata"]["uid"]) is not None


async def runs_as_any_other(here: World, name: str = "web") -> None:
    below = await here.forwarded(name)
    assert annotation(below, COMPUTE_NODE_ANNOTATION) == ""
    assert annotation(below, BORROWED_ANNOTATION) == ""
    here.run(name)
    await until(lambda: here.phase(name) == "Running")


async def test_a_pod_without_devices_starts_as_any_other(here: World) -> None:
    marked(here)
    async with here.gateway() as sync:
        await let_go(here)
        assert condition(here, ADMITTED) is None
        bind(here)
        await runs_as_any_other(here)
        assert not is_member(sync, here)
        assert sync.pods.admission.tenant_admission.is_known


@pytest.mark.parametrize("by_hand", [False, True])
async def test_so_does_one_that_has_a_node_and_no_gate(here: World, by_hand: bool) -> None:
    here.limit = here.limit | {"cpu": 1500}
    containers = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}]
    here.create(labels=LABELS, by_hand=by_hand, containers=containers)
    async with here.gateway() as sync:
        await runs_as_any_other(here)
        assert not is_member(sync, here)


@pytest.mark.parametrize("bound", [False, True])
async def test_a_failing_server_holds_it_until_the_server_tells(here: World, bound: bool) -> None:
    fault = here.above.fail("GET", "/apis/scheduling.x-k8s.io", status=503, times=10_000)
    if bound:
        here.create(labels=LABELS)
    else:
        marked(here)
    async with here.gateway() as sync:
        await until(lambda: fault.hits > 3)
        await here.settled()
        assert is_member(sync, here)
        assert here.compute_pod("web") is None
        assert bound or not is_let_go(here)

        here.above.heal()
        if not bound:
            await let_go(here)
            bind(here)
        await runs_as_any_other(here)
        assert not is_member(sync, here)


async def test_a_gang_that_was_created_with_its_kind_waits_though_discovery_lags_behind(here: World) -> None:
    here.above.store.create(CRDS, CRD)
    marked(here)
    async with here.gateway() as sync:
        await until(lambda: is_member(sync, here))
        await here.settled()
        assert not is_let_go(here)
        here.above.register(POD_GROUPS)
        await told(here, "WaitingForMembers")
        assert not is_let_go(here)
        group(here, 1)
        await let_go(here)


async def test_once_the_kind_is_installed_new_pods_wait_and_those_that_run_go_on_also_over_a_restart(
    here: World,
) -> None:
    marked(here, "old")
    async with here.gateway():
        await let_go(here, "old")
        bind(here, "old")
        await runs_as_any_other(here, "old")

        here.above.register(POD_GROUPS)
        marked(here, "new")
        assert "PodGroup web" in await told(here, "WaitingForMembers", "new")
    async with here.gateway() as sync:
        await until(lambda: sync.pods.admission.tenant_admission.is_known)
        await here.settled()
        assert not is_member(sync, here, "old")
        assert is_member(sync, here, "new")
        group(here, 1)
        await let_go(here, "new")
        assert condition(here, ADMITTED, "old") is None
        assert annotation(here.compute_pod("old"), BORROWED_ANNOTATION) == ""


async def test_a_pod_that_runs_without_the_arbiter_is_left_to_itself_though_it_is_seen_below_late(here: World) -> None:
    here.create("old", labels=LABELS)
    async with here.gateway():
        await runs_as_any_other(here, "old")
    here.above.register(POD_GROUPS)
    here.below.hold("GET", "/api/v1/pods", times=2)
    async with here.gateway() as sync:
        await until(lambda: is_member(sync, here, "old"))
        here.below.heal()
        await until(lambda: not is_member(sync, here, "old"))
        await until(lambda: sync.pods.admission.tenant_admission.is_known)


async def test_a_pod_that_is_bound_is_not_taken_in_before_the_server_was_asked(here: World) -> None:
    """Whichever of its two reconcilers comes first, and whatever was heard of the kind before."""
    marked(here)
    async with here.gateway() as sync:
        await let_go(here)
        await here.settled()
        document = copy.deepcopy(pod(here))
        document["metadata"] |= {"name": "other", "uid": "other"}
        view = decode_tenant_pod(json.dumps(document).encode())
        desk = sync.pods.admission
        desk.observe_pod(document, view, governed=True)
        assert desk.tenant_admission.gangs.find_member("other") is None

        here.above.register(POD_GROUPS)
        marked(here, "next")
        await until(lambda: desk.companions.is_watched(Kind("scheduling.x-k8s.io", "PodGroup", "podgroups")))
        desk.observe_pod(document, view, governed=True)
        assert desk.tenant_admission.gangs.find_member("other") is not None


async def test_a_gang_that_runs_stays_a_gang_when_its_kind_is_taken_away_also_over_a_restart(here: World) -> None:
    here.above.register(POD_GROUPS)
    group(here, 1)
    marked(here)
    async with here.gateway():
        await let_go(here)
        bind(here)
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
    here.above.unregister(POD_GROUPS)
    async with here.gateway() as sync:
        await until(lambda: sync.pods.admission.tenant_admission.is_known)
        assert is_member(sync, here)
        marked(here, "new")
        await let_go(here, "new")


async def test_a_pod_with_devices_waits_and_reads_that_its_tenant_has_no_such_kind(here: World) -> None:
    marked(here, gpus=1)
    async with here.gateway() as sync:
        message = await told(here, "WaitingForMembers")
        assert "this cluster does not serve the kind PodGroup of scheduling.x-k8s.io" in message
        assert not is_let_go(here)

        here.above.register(POD_GROUPS)
        admission = sync.pods.admission.tenant_admission
        await until(
            lambda: all(
                "does not serve" not in waits.text for waits in admission.verdict_store.pending_messages.values()
            )
        )
        [waits] = admission.verdict_store.pending_messages.values()
        assert waits.text.startswith("PodGroup web (podgroups.scheduling.x-k8s.io) is not there")
        assert not is_let_go(here)
        group(here, 1)
        await let_go(here)


async def test_a_launcher_without_devices_of_such_pods_starts(here: World) -> None:
    marked(here, "worker", gpus=1)
    marked(here, "launcher")
    async with here.gateway():
        await let_go(here, "launcher")
        await told(here, "WaitingForMembers", "worker")


async def test_a_pod_that_is_made_again_is_judged_again(here: World) -> None:
    marked(here)
    async with here.gateway() as sync:
        await let_go(here)
        here.delete(grace=0)
        await until(lambda: not sync.pods.admission.gate_reconciler.ordinary._marks)
        here.above.register(POD_GROUPS)
        marked(here)
        await told(here, "WaitingForMembers")
        assert not is_let_go(here)
