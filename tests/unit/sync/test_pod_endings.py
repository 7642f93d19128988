"""Pods that the platform ended: their last log lines are recorded, and they stay visible for a while."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, start_world
from vkgateway.kube.resources import PODS
from vkgateway.sync.pods import mirror
from vkgateway.sync.views.annotations import LOG_TAILS

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
