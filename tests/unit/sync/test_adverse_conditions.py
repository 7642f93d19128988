"""Clock skew, starting servers and deleted compute objects fail no pod."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.fakes.clock import AdjustedClock
from tests.fakes.store import Refusal
from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, COMPUTE_NODE, NODE, TENANT, World, start_world
from vkgateway.api.names import POD_SERVICE_ACCOUNT
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.pods import reconciler
from vkgateway.kube.resources import PODS, SERVICE_ACCOUNTS, Resource

HOUR = timedelta(hours=1)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


def refuse_pods(world: World, message: str, *, times: int = 1) -> list[str]:
    """Have the compute cluster refuse its next pods; return the list to which their names are added."""
    refused: list[str] = []
    create = world.compute_server.store.create

    def refusing(resource: Resource, document: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        if resource is PODS and len(refused) < times:
            refused.append(document["metadata"]["name"])
            raise Refusal(403, "Forbidden", message)
        return create(resource, document, namespace)

    world.compute_server.store.create = refusing  # type: ignore[method-assign]
    return refused


@pytest.mark.parametrize(
    "words",
    [
        'pods is forbidden: User "vkgateway" cannot create resource "pods" in API group "" in the namespace "a--b"',
        'pods "web" is forbidden: not yet ready to handle request',
        'pods "web" is forbidden: no PriorityClass with name vkgateway-guaranteed was found',
        'pods "web" is forbidden: status unknown for quota: backstop, resources: cpu',
    ],
)
async def test_transient_refusal_is_retried(world: World, words: str) -> None:
    refused = refuse_pods(world, words)
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        await world.wait_settled()
    assert refused == ["web"]
    assert world.pod_phase() == "Pending"
    assert all("vkgateway" not in message or "PriorityClass" in message for _, message in world.events())


async def test_deleted_namespace_objects_are_recreated_for_a_pod(world: World) -> None:
    world.create_pod("first")
    async with world.run_gateway():
        await world.wait_forwarded("first")
        world.compute_server.store.delete(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, COMPUTE_NAMESPACE)
        refuse_pods(world, 'pods "second" is forbidden: error looking up service account: not found')
        world.create_pod("second")
        await world.wait_forwarded("second")
    assert world.compute_server.store.find(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, COMPUTE_NAMESPACE) is not None


def compute_deletions(world: World) -> int:
    return sum(request.startswith("DELETE") and "/pods/" in request for request in world.compute_server.requests)


def touch_pod(world: World, value: str) -> None:
    """Update a compute pod's status as its kubelet."""
    pod = copy.deepcopy(world.compute_pod())
    assert pod is not None
    pod["status"]["message"] = value
    world.compute_server.store.update(PODS, pod, name="web", namespace=COMPUTE_NAMESPACE, status=True)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_clock_skew_of_the_compute_cluster_does_not_affect_deletion(world: World, ahead: timedelta) -> None:
    world.compute_server.store.now = lambda: datetime.now(UTC) + ahead
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        world.delete_pod(grace=30)
        await wait_until(lambda: compute_deletions(world))
        for value in ("one", "two"):
            touch_pod(world, value)
            await wait_until(lambda value=value: (world.tenant_pod() or {})["status"].get("message") == value)  # type: ignore[misc]
        assert compute_deletions(world) == 1
        world.delete_pod(grace=5)
        await wait_until(lambda: compute_deletions(world) == 2)
    compute_pod = world.compute_pod()
    assert compute_pod is not None
    assert 1 <= compute_pod["metadata"]["deletionGracePeriodSeconds"] <= 5


async def test_slow_gateway_clock_does_not_extend_the_grace_period() -> None:
    async with start_world(clock=AdjustedClock(skew=-3600)) as world:
        world.create_pod()
        async with world.run_gateway():
            await world.wait_forwarded()
            world.run_pod()
            await wait_until(lambda: world.pod_phase() == "Running")
            world.delete_pod(grace=30)
            await wait_until(lambda: compute_deletions(world))
            await world.wait_settled()
        compute_pod = world.compute_pod()
    assert compute_pod is not None
    assert compute_pod["metadata"]["deletionGracePeriodSeconds"] == 30


async def test_pod_without_virtual_node_may_change(world: World) -> None:
    def defects() -> float:
        return REGISTRY.get_sample_value("vkgateway_work_retries_total", {"reason": "defect"}) or 0.0

    world.create_pod()
    async with world.run_gateway() as sync:
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        assert world.link is not None
        before = defects()
        context = TenantContext(name=TENANT, api_host="10.213.0.1", api_port=6443)
        sync.update_tenant(context, links={"local": world.link}, bindings={})
        pod = copy.deepcopy(world.tenant_pod())
        assert pod is not None
        pod["metadata"]["labels"] = {"colour": "blue"}
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        touch_pod(world, "still here")
        await wait_until(lambda: (world.tenant_pod() or {})["status"].get("message") == "still here")
        await world.wait_settled()
        assert defects() == before
        sync.update_tenant(context, links={"local": world.link}, bindings={NODE: world.make_binding(world.link)})
        await wait_until(lambda: (world.compute_pod() or {})["metadata"]["labels"].get("colour") == "blue")
    compute_pod = world.compute_pod()
    assert compute_pod is not None
    assert compute_pod["spec"]["nodeName"] == COMPUTE_NODE


@pytest.mark.parametrize("above", ["bound", "deleting", "gone"])
async def test_pod_of_a_lost_node_is_removed_after_a_forced_deletion(
    world: World, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        if above != "bound":
            world.delete_pod(grace=0 if above == "gone" else 30)
            await wait_until(lambda: (world.compute_pod() or {})["metadata"].get("deletionTimestamp"))
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE, grace=0)
        await world.wait_settled()
        assert world.compute_pod() is not None
        monkeypatch.setattr(reconciler, "_KUBELET_SECONDS", 0.1)
        touch_pod(world, "seen")
        await wait_until(lambda: world.compute_pod() is None)
        if above == "bound":
            assert world.pod_phase() == "Failed"
        else:
            await wait_until(lambda: world.tenant_pod() is None)
