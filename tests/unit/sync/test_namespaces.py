"""Compute namespaces: isolated before the first pod, repaired, and deleted with the tenant or its namespace."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.support.machine import patience
from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, NODE, World, object_names, start_world
from vkgateway.api.names import FENCE_ANNOTATION, POD_SERVICE_ACCOUNT, TENANT_LABEL
from vkgateway.kube import errors
from vkgateway.kube.resources import NAMESPACES, NETWORK_POLICIES, PODS, SECRETS, SERVICE_ACCOUNTS
from vkgateway.runtime.requests import ReconcileRequest
from vkgateway.tenants.teardown import remove_tenant
from vkgateway.tenants.tenant import SWEEP


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


async def test_namespace_is_isolated_before_its_first_pod(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()

    namespace = world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)
    assert namespace["metadata"]["labels"][TENANT_LABEL] == "alpha"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
    assert world.compute_server.store.find(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, COMPUTE_NAMESPACE) is not None
    assert len(world.compute_server.store.all(NETWORK_POLICIES)) >= 1


async def test_namespace_is_deleted_with_the_tenants_namespace(world: World) -> None:
    world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": "team"}})
    world.tenant_server.store.create(
        PODS, {"metadata": {"name": "a"}, "spec": {"nodeName": "a100.local", "containers": []}}, "team"
    )
    async with world.run_gateway():
        await wait_until(lambda: world.compute_server.store.find(PODS, "a", "alpha--team"))
        world.tenant_server.store.delete(PODS, "a", "team", grace=0)
        world.tenant_server.store.delete(NAMESPACES, "team")
        await wait_until(lambda: world.compute_server.store.find(NAMESPACES, "alpha--team") is None)
        await world.wait_settled()
        gc.collect()
        assert world.sync is not None
        assert not world.sync.reconcilers.namespaces._locks

    assert world.compute_server.store.find(PODS, "a", "alpha--team") is None


async def test_tenant_removal_removes_all_its_objects_and_no_others(world: World) -> None:
    world.compute_server.store.create(
        NAMESPACES, {"metadata": {"name": "beta--default", "labels": {TENANT_LABEL: "beta"}}}
    )
    world.compute_server.store.create(NAMESPACES, {"metadata": {"name": "mine", "labels": {TENANT_LABEL: "alpha"}}})
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        link = world.link
        assert link is not None
        await world.stop_tenant()
        removing = asyncio.create_task(remove_tenant(link, "alpha"))
        await wait_until(lambda: "deletionTimestamp" in (world.compute_pod() or {}).get("metadata", {}))
        assert "finalizers" not in (world.compute_pod() or {})["metadata"]
        assert world.compute_server.store.find(NAMESPACES, "alpha--default") is not None
        world.end_pod()
        async with asyncio.timeout(patience(30)):
            await removing

    remaining = {document["metadata"]["name"] for document in world.compute_server.store.all(NAMESPACES)}
    assert remaining == {"beta--default", "mine"}
    assert world.compute_server.store.all(PODS) == []
    deletes = [request.split("?")[0] for request in world.compute_server.requests if request.startswith("DELETE")]
    # A namespace that is deleted with pods is reconciled again only after half of their grace period.
    assert deletes == ["DELETE /api/v1/namespaces/alpha--default/pods/web", "DELETE /api/v1/namespaces/alpha--default"]


async def test_long_grace_period_does_not_block_tenant_removal(world: World) -> None:
    for name in ("a", "b"):
        world.create_pod(name, terminationGracePeriodSeconds=31_536_000)
    async with world.run_gateway():
        for name in ("a", "b"):
            await world.wait_forwarded(name)
            world.run_pod(name)
        world.delete_pod("a")
        await wait_until(lambda: "deletionTimestamp" in (world.compute_pod("a") or {}).get("metadata", {}))
        link = world.link
        assert link is not None
        await world.stop_tenant()
        removing = asyncio.create_task(remove_tenant(link, "alpha"))

        def graces() -> list[int | None]:
            pods = (world.compute_pod(name) or {"metadata": {}} for name in ("a", "b"))
            return [pod["metadata"].get("deletionGracePeriodSeconds") for pod in pods]

        await wait_until(lambda: graces() == [120, 120])
        for name in ("a", "b"):
            world.end_pod(name)
        async with asyncio.timeout(patience(30)):
            await removing


async def test_changed_pod_security_level_is_applied_to_existing_namespaces(world: World) -> None:
    def level() -> str:
        labels: dict[str, str] = world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)["metadata"]["labels"]
        return labels["pod-security.kubernetes.io/enforce"]

    world.create_pod("first")
    async with world.run_gateway() as sync:
        await world.wait_forwarded("first")
        assert level() == "baseline"
        link = world.link
        assert link is not None
        tenant = replace(sync.scope.tenant, pod_security="privileged")
        sync.update_tenant(tenant, links={"local": link}, bindings={NODE: world.make_binding(link)})
        world.create_pod("second", hostNetwork=True)
        await world.wait_forwarded("second")
        assert level() == "privileged"


async def test_deleted_isolation_policy_is_created_again(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        (policy,) = object_names(world.compute_server, NETWORK_POLICIES)
        world.compute_server.store.delete(NETWORK_POLICIES, policy, COMPUTE_NAMESPACE)
        assert world.sync is not None
        await world.sync.registry.handle_request(ReconcileRequest(SWEEP.name, key=True))
        assert object_names(world.compute_server, NETWORK_POLICIES) == [policy]


async def test_unrepairable_namespace_does_not_block_other_repairs(world: World) -> None:
    world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": "team"}})
    world.create_pod()
    spec = {"nodeName": "a100.local", "containers": []}
    world.tenant_server.store.create(PODS, {"metadata": {"name": "a"}, "spec": spec}, "team")
    async with world.run_gateway() as sync:
        await world.wait_forwarded()
        await wait_until(lambda: world.compute_server.store.find(PODS, "a", "alpha--team"))
        world.compute_server.store.delete(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, "alpha--team")
        marks = {"vkgateway.io/namespace": "default", "vkgateway.io/token-of": "gone", "vkgateway.io/uid": "u"}
        remaining = {"metadata": {"name": "gone-token", "labels": {TENANT_LABEL: "alpha"}, "annotations": marks}}
        world.compute_server.store.create(SECRETS, remaining, COMPUTE_NAMESPACE)
        link = world.link
        assert link is not None
        await wait_until(lambda: (COMPUTE_NAMESPACE, "gone-token") in link.copies["secrets"].store)
        world.compute_server.fail(
            "POST", f"/namespaces/{COMPUTE_NAMESPACE}/serviceaccounts", status=403, reason="Forbidden", times=100
        )
        with pytest.raises(errors.Forbidden):
            await sync.registry.handle_request(ReconcileRequest(SWEEP.name, key=True))
        assert world.compute_server.store.find(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, "alpha--team") is not None
        assert world.compute_server.store.find(SECRETS, "gone-token", COMPUTE_NAMESPACE) is None


def policy_writes(world: World) -> list[str]:
    """Return the writes of the compute namespace and of its isolation policies."""
    kinds = (f"/namespaces/{COMPUTE_NAMESPACE}", "/api/v1/namespaces", "/serviceaccounts", "/networkpolicies")
    writes = (one for one in world.compute_server.requests if not one.startswith("GET"))
    return [one for one in writes if one.split("?")[0].rsplit(" ", 1)[-1].endswith(kinds)]


async def test_restarted_gateway_does_not_rewrite_isolation_policies(world: World) -> None:
    world.create_pod("first")
    async with world.run_gateway():
        await world.wait_forwarded("first")
    assert policy_writes(world)
    world.compute_server.requests.clear()

    world.create_pod("second")
    async with world.run_gateway():
        await world.wait_forwarded("second")

    assert policy_writes(world) == []


@pytest.mark.parametrize("fence", ["another", None])
async def test_outdated_isolation_policy_is_replaced(world: World, fence: str | None) -> None:
    world.create_pod("first")
    async with world.run_gateway():
        await world.wait_forwarded("first")
    (policy,) = object_names(world.compute_server, NETWORK_POLICIES)
    world.compute_server.store.delete(NETWORK_POLICIES, policy, COMPUTE_NAMESPACE)
    namespace = world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)
    created = namespace["metadata"]["annotations"].pop(FENCE_ANNOTATION)
    if fence is not None:
        namespace["metadata"]["annotations"][FENCE_ANNOTATION] = fence
    world.compute_server.store.update(NAMESPACES, namespace, name=COMPUTE_NAMESPACE)

    world.create_pod("second")
    async with world.run_gateway():
        await world.wait_forwarded("second")

    assert object_names(world.compute_server, NETWORK_POLICIES) == [policy]
    assert (
        world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)["metadata"]["annotations"][FENCE_ANNOTATION]
        == created
    )
