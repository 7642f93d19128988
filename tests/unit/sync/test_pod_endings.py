"""Pods that the platform ended: their last log lines are recorded, and they stay visible for a while."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, start_world
from vkgateway.kinds.pods import mirror
from vkgateway.kube.resources import PODS
from vkgateway.runtime.views.annotations import EVICTED, LOG_TAILS

LOG = "step 41\nstep 42\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.compute_server.logs[COMPUTE_NAMESPACE, "web", "main"] = LOG
        yield world


def create_owned(world: World, kind: str, api_version: str = "apps/v1") -> None:
    """Create a pod with a controller."""
    pod = copy.deepcopy(world.tenant_pod() or {})
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": api_version, "kind": kind, "name": "web", "uid": "c", "controller": True}
    ]
    world.tenant_server.store.update(PODS, pod, name="web", namespace="default")


async def run_pod(world: World) -> None:
    await world.wait_forwarded()
    world.run_pod()
    await wait_until(lambda: world.pod_phase() == "Running")


def mark_evicted(world: World) -> None:
    """Record that the arbiter evicts the pod."""
    pod = copy.deepcopy(world.compute_pod() or {})
    pod["metadata"]["annotations"] |= {EVICTED: "PreemptionByVkgateway: makes room"}
    world.compute_server.store.update(PODS, pod, name="web", namespace=COMPUTE_NAMESPACE)


async def drain_pod(world: World) -> None:
    """Delete the compute pod as a node drain does, and end it."""
    world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE)
    await world.wait_settled()
    world.end_pod(code=143)
    await wait_until(lambda: world.compute_pod() is None)


def terminated_message(world: World) -> dict[str, Any]:
    (container,) = (world.tenant_pod() or {})["status"]["containerStatuses"]
    return dict(container["state"]["terminated"])


async def test_pod_deleted_in_the_compute_cluster_keeps_its_last_log_lines(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await run_pod(world)
        await drain_pod(world)
        assert terminated_message(world)["message"] == LOG


async def test_recorded_log_lines_survive_a_restart(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await run_pod(world)
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE)
        await wait_until(lambda: LOG_TAILS in (world.compute_pod() or {})["metadata"]["annotations"])
    world.compute_server.logs.clear()
    async with world.run_gateway():
        world.end_pod(code=143)
        await wait_until(lambda: world.pod_phase() == "Failed")
        assert terminated_message(world)["message"] == LOG
    assert LOG_TAILS not in str(world.tenant_pod()), "how it was kept does not show"


async def test_unreadable_log_does_not_block_deletion(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await run_pod(world)
        world.compute_server.fail("GET", f"{COMPUTE_NAMESPACE}/pods/web/log", status=500, times=100)
        await drain_pod(world)
        assert world.pod_phase() == "Failed"
        assert not terminated_message(world).get("message")


async def test_log_of_a_pod_deleted_by_its_tenant_is_not_read(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await run_pod(world)
        world.delete_pod()
        await world.wait_settled()
        world.end_pod(code=143)
        await wait_until(lambda: world.tenant_pod() is None)
    assert not any("/log" in request for request in world.compute_server.requests)


def is_disrupted(world: World) -> bool:
    conditions = (world.tenant_pod() or {})["status"].get("conditions") or ()
    return any(entry["type"] == "DisruptionTarget" and entry["status"] == "True" for entry in conditions)


@pytest.mark.parametrize("kind", ["ReplicaSet", "Job", "TrainJob"])
async def test_pod_with_a_controller_is_deleted_when_its_compute_pod_is(world: World, kind: str) -> None:
    """Its controller replaces it when its deletion begins; its kubelet may never report an end."""
    world.create_pod()
    create_owned(world, kind)
    async with world.run_gateway():
        await run_pod(world)
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE, grace=77)
        await wait_until(lambda: "deletionTimestamp" in (world.tenant_pod() or {})["metadata"])
        await world.wait_settled()
        assert (world.tenant_pod() or {})["metadata"]["deletionGracePeriodSeconds"] == 77
        assert is_disrupted(world)
        assert (world.compute_pod() or {})["metadata"]["deletionGracePeriodSeconds"] == 77, "not shortened"
        assert [reason for reason, _ in world.events()].count("DeletionByComputeCluster") == 1
        world.end_pod(code=143)
        await wait_until(lambda: world.tenant_pod() is None)


async def test_reason_of_the_compute_cluster_is_the_tenants(world: World) -> None:
    world.create_pod()
    create_owned(world, "ReplicaSet")
    async with world.run_gateway():
        await run_pod(world)
        pod = copy.deepcopy(world.compute_pod() or {})
        evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        pod["status"]["conditions"] = [*pod["status"].get("conditions", ()), evicted]
        world.compute_server.store.update(PODS, pod, name="web", namespace=COMPUTE_NAMESPACE, status=True)
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE)
        await wait_until(lambda: "deletionTimestamp" in (world.tenant_pod() or {})["metadata"])
        await world.wait_settled()
    conditions = (world.tenant_pod() or {})["status"]["conditions"]
    assert [entry["reason"] for entry in conditions if entry["type"] == "DisruptionTarget"] == ["EvictionByEvictionAPI"]


@pytest.mark.parametrize("is_evicted", [False, True], ids=["no controller", "by the arbiter"])
async def test_other_pods_are_deleted_only_if_the_kubelet_is_silent(
    world: World, monkeypatch: pytest.MonkeyPatch, is_evicted: bool
) -> None:
    world.create_pod()
    if is_evicted:
        create_owned(world, "ReplicaSet")
    async with world.run_gateway():
        await run_pod(world)
        if is_evicted:
            mark_evicted(world)
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE, grace=1)
        await world.wait_settled()
        assert "deletionTimestamp" not in (world.tenant_pod() or {})["metadata"]
    monkeypatch.setattr(mirror, "_SILENT_SECONDS", -1000.0)
    async with world.run_gateway():
        await wait_until(lambda: "deletionTimestamp" in (world.tenant_pod() or {})["metadata"])


@pytest.mark.parametrize(("kind", "api_version"), [("ReplicaSet", "apps/v1"), ("ReplicationController", "v1")])
async def test_ended_pod_is_removed_after_its_controller_replaced_it(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str, api_version: str
) -> None:
    monkeypatch.setattr(mirror, "SHOWN_SECONDS", 0.1)
    world.create_pod()
    create_owned(world, kind, api_version)
    deletion = world.tenant_server.hold("DELETE", "/pods/web")
    async with world.run_gateway():
        await run_pod(world)
        mark_evicted(world)
        await drain_pod(world)
        await wait_until(lambda: world.pod_phase() == "Failed")
        deletion.set()
        await wait_until(lambda: world.tenant_pod() is None)


@pytest.mark.parametrize(("kind", "api_version"), [("Job", "batch/v1"), ("ReplicaSet", "example.org/v1"), ("", "")])
async def test_ended_pod_stays_if_its_controller_may_count_it(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str, api_version: str
) -> None:
    """A Job's failure policy reads the pod; for a pod without a controller, it is the only record."""
    monkeypatch.setattr(mirror, "SHOWN_SECONDS", 0.0)
    world.create_pod()
    if kind:
        create_owned(world, kind, api_version)
    async with world.run_gateway():
        await run_pod(world)
        mark_evicted(world)
        await drain_pod(world)
        await world.wait_settled()
    assert world.pod_phase() == "Failed"


async def test_pod_that_failed_by_itself_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "SHOWN_SECONDS", 0.0)
    world.create_pod()
    create_owned(world, "ReplicaSet")
    async with world.run_gateway():
        await run_pod(world)
        world.end_pod(code=1)
        await wait_until(lambda: world.pod_phase() == "Failed")
        await world.wait_settled()
    assert world.pod_phase() == "Failed"


async def test_status_follows_the_kubelet_after_the_end(world: World) -> None:
    """A kubelet reports that it evicted a pod, and later how the pod's containers ended."""
    world.create_pod()
    async with world.run_gateway():
        await run_pod(world)
        world.end_pod(code=1)
        await wait_until(lambda: world.pod_phase() == "Failed")
        world.end_pod(code=137)
        await wait_until(lambda: terminated_message(world)["exitCode"] == 137)
        # An older API server drops fields that it doesn't know.
        pod = copy.deepcopy(world.tenant_pod() or {})
        del pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"]
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default", status=True)
        await world.wait_settled()
    assert "reason" not in terminated_message(world), "each version of the end is written once"


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("later", [{}, None])
async def test_later_status_is_complete_although_the_watch_was_behind_the_earlier_one(
    world: World, later: dict[str, Any] | None, *, ended: bool
) -> None:
    """A kubelet removes the resources of a pod after it has reported them, of a running pod and of one that ended."""
    world.create_pod()
    async with world.run_gateway():
        await run_pod(world)
        await world.wait_settled()
        world.tenant_server.hold("GET", "/api/v1/pods", times=100)
        world.tenant_server.end_watches()
        set_resources(world, {"requests": {"memory": "1Gi"}})
        if ended:
            world.end_pod(code=1)
            await wait_until(lambda: world.pod_phase() == "Failed")
        await wait_until(lambda: tenant_resources(world))
        set_resources(world, later)
        await world.wait_settled()
        world.tenant_server.heal()
        await wait_until(lambda: not tenant_resources(world))


def set_resources(world: World, resources: dict[str, Any] | None) -> None:
    """Write the resources of the compute pod to its status, or remove them, as a kubelet does."""
    pod = copy.deepcopy(world.compute_pod() or {})
    pod["status"].pop("resources", None)
    if resources is not None:
        pod["status"]["resources"] = resources
    world.compute_server.store.update(PODS, pod, name="web", namespace=COMPUTE_NAMESPACE, status=True)


def tenant_resources(world: World) -> dict[str, Any]:
    return dict((world.tenant_pod() or {})["status"].get("resources", {}))
