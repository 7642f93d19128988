"""Clocks that differ, servers that have just started, and what others took away below: no pod pays for it."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.fakes.store import Refusal
from tests.unit.sync.world import BELOW, COMPUTE_NODE, NODE, TENANT, World, until, world
from vkgateway.kube.resources import PODS, SERVICE_ACCOUNTS, Resource
from vkgateway.model.names import POD_SERVICE_ACCOUNT
from vkgateway.sync.pods import reconciler
from vkgateway.translate.context import TenantContext

HOUR = timedelta(hours=1)


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def refuse_pods(here: World, message: str, *, times: int = 1) -> list[str]:
    """The compute cluster refuses its next pods; returns what is filled with their names."""
    refused: list[str] = []
    create = here.below.store.create

    def refusing(resource: Resource, document: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        if resource is PODS and len(refused) < times:
            refused.append(document["metadata"]["name"])
            raise Refusal(403, "Forbidden", message)
        return create(resource, document, namespace)

    here.below.store.create = refusing  # type: ignore[method-assign]
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
async def test_a_refusal_that_is_no_verdict_on_the_pod_is_tried_again(here: World, words: str) -> None:
    refused = refuse_pods(here, words)
    here.create()
    async with here.gateway():
        await here.forwarded()
        await here.settled()
    assert refused == ["web"]
    assert here.phase() == "Pending"
    assert all("vkgateway" not in message or "PriorityClass" in message for _, message in here.events())


async def test_what_was_deleted_of_a_compute_namespace_is_made_again_where_a_pod_needs_it(here: World) -> None:
    here.create("first")
    async with here.gateway():
        await here.forwarded("first")
        here.below.store.delete(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, BELOW)
        refuse_pods(here, 'pods "second" is forbidden: error looking up service account: not found')
        here.create("second")
        await here.forwarded("second")
    assert here.below.store.find(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, BELOW) is not None


def deletions(here: World) -> int:
    return sum(request.startswith("DELETE") and "/pods/" in request for request in here.below.requests)


def touch(here: World, value: str) -> None:
    """The kubelet tells something new of a compute pod."""
    pod = copy.deepcopy(here.compute_pod())
    assert pod is not None
    pod["status"]["message"] = value
    here.below.store.update(PODS, pod, name="web", namespace=BELOW, status=True)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_a_compute_clusters_clock_changes_nothing_in_a_deletion(here: World, ahead: timedelta) -> None:
    here.below.store.now = lambda: datetime.now(UTC) + ahead
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        here.delete(grace=30)
        await until(lambda: deletions(here))
        for value in ("one", "two"):
            touch(here, value)
            await until(lambda value=value: (here.tenant_pod() or {})["status"].get("message") == value)  # type: ignore[misc]
        assert deletions(here) == 1
        here.delete(grace=5)
        await until(lambda: deletions(here) == 2)
    below = here.compute_pod()
    assert below is not None
    assert 1 <= below["metadata"]["deletionGracePeriodSeconds"] <= 5


async def test_a_gateway_whose_clock_is_behind_gives_no_more_grace_than_the_tenant_did() -> None:
    async with world(clock=lambda: time.time() - 3600) as here:
        here.create()
        async with here.gateway():
            await here.forwarded()
            here.run()
            await until(lambda: here.phase() == "Running")
            here.delete(grace=30)
            await until(lambda: deletions(here))
            await here.settled()
        below = here.compute_pod()
    assert below is not None
    assert below["metadata"]["deletionGracePeriodSeconds"] == 30


async def test_a_pod_whose_virtual_node_is_gone_may_change_above(here: World) -> None:
    def defects() -> float:
        return REGISTRY.get_sample_value("vkgateway_work_retries_total", {"reason": "defect"}) or 0.0

    here.create()
    async with here.gateway() as sync:
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        assert here.link is not None
        before = defects()
        context = TenantContext(name=TENANT, api_host="10.213.0.1", api_port=6443)
        sync.update_tenant(context, links={"local": here.link}, bindings={})
        pod = copy.deepcopy(here.tenant_pod())
        assert pod is not None
        pod["metadata"]["labels"] = {"colour": "blue"}
        here.above.store.update(PODS, pod, name="web", namespace="default")
        touch(here, "still here")
        await until(lambda: (here.tenant_pod() or {})["status"].get("message") == "still here")
        await here.settled()
        assert defects() == before
        sync.update_tenant(context, links={"local": here.link}, bindings={NODE: here.binding(here.link)})
        await until(lambda: (here.compute_pod() or {})["metadata"]["labels"].get("colour") == "blue")
    below = here.compute_pod()
    assert below is not None
    assert below["spec"]["nodeName"] == COMPUTE_NODE


@pytest.mark.parametrize("above", ["bound", "deleting", "gone"])
async def test_a_pod_of_a_lost_node_goes_once_it_is_deleted_by_force_below(
    here: World, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        if above != "bound":
            here.delete(grace=0 if above == "gone" else 30)
            await until(lambda: (here.compute_pod() or {})["metadata"].get("deletionTimestamp"))
        here.below.store.delete(PODS, "web", BELOW, grace=0)
        await here.settled()
        assert here.compute_pod() is not None
        monkeypatch.setattr(reconciler, "_KUBELET_SECONDS", 0.1)
        touch(here, "seen")
        await until(lambda: here.compute_pod() is None)
        if above == "bound":
            assert here.phase() == "Failed"
        else:
            await until(lambda: here.tenant_pod() is None)
