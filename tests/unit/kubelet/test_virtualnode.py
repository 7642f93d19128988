"""A virtual node in its tenant: registration, reconciliation, re-creation, deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import wait_until
from tests.unit.background import in_background
from vkgateway.api.objects import Taint
from vkgateway.kube.backoff import Backoff
from vkgateway.kube.resources import LEASES, NAMESPACES, NODES
from vkgateway.nodes.virtualnode import VirtualNode
from vkgateway.scheduler.governed import CORDON_TAINT

NAME = "a100.local"


class World:
    """The desired node, and its tenant's API server."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.cpu = "8"
        self.ready = "True"
        self.builds = 0
        self.status: dict[str, Any] = {}

    def build(self) -> dict[str, Any]:
        self.builds += 1
        ready = {"type": "Ready", "status": self.ready, "reason": "r", "message": "m"}
        ready["lastHeartbeatTime"] = f"2026-01-01T00:00:{self.builds % 60:02}Z"
        return {
            "metadata": {"name": NAME, "labels": {"type": "virtual-kubelet"}},
            "spec": {},
            "status": {"capacity": {"cpu": self.cpu}, "conditions": [ready], **self.status},
        }

    def built_since(self, builds: int) -> bool:
        return self.builds > builds

    def stored(self) -> dict[str, Any] | None:
        return self.server.store.find(NODES, NAME)

    def writes(self) -> int:
        return sum(request.startswith(f"PATCH /api/v1/nodes/{NAME}") for request in self.server.requests)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with FakeApiServer() as server:
        yield World(server)


@asynccontextmanager
async def running(world: World, **settings: Any) -> AsyncIterator[VirtualNode]:
    backoff = Backoff(base=0.001, cap=0.01)
    async with world.server.client() as client:
        defaults: dict[str, Any] = {"settle": 0.0, "renew_every": 0.02, "backoff": backoff}
        node = VirtualNode(client, name=NAME, build=world.build, **(defaults | settings))
        async with in_background(node.run()):
            yield node


async def test_node_is_registered_with_status_and_lease(world: World) -> None:
    registered = asyncio.Event()
    async with running(world, on_registered=registered.set) as node:
        await registered.wait()
        assert node.is_registered
        stored = world.stored()
        assert stored is not None
        assert stored["status"]["capacity"] == {"cpu": "8"}
        await wait_until(lambda: world.server.store.find(LEASES, NAME, "kube-node-lease"))
        lease = world.server.store.get(LEASES, NAME, "kube-node-lease")
        assert lease["spec"]["leaseDurationSeconds"] == 40
        assert lease["metadata"]["ownerReferences"][0]["uid"] == stored["metadata"]["uid"]


async def test_lease_is_renewed(world: World) -> None:
    async with running(world):
        renewals = f"PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NAME}"
        await wait_until(lambda: sum(renewals in request for request in world.server.requests) > 3)


async def test_only_differences_are_written(world: World) -> None:
    async with running(world) as node:
        await wait_until(lambda: node.is_registered)
        assert world.writes() == 2
        for _ in range(5):
            seen = world.builds
            node.trigger_reconcile()
            await wait_until(partial(world.built_since, seen))
        assert world.writes() == 2
        world.cpu = "4"
        node.trigger_reconcile()
        await wait_until(lambda: (world.stored() or {})["status"]["capacity"] == {"cpu": "4"})
        assert world.writes() == 4


async def test_unchanged_node_is_written_later(world: World) -> None:
    async with running(world) as node:
        await wait_until(lambda: node.is_registered)
    world.cpu = "8000m"
    renewals = f"PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NAME}"
    before = sum(renewals in request for request in world.server.requests)
    registered = asyncio.Event()
    async with running(world, on_registered=registered.set) as node:
        await registered.wait()
        assert node.is_registered
        await wait_until(lambda: sum(renewals in request for request in world.server.requests) > before)
        assert world.writes() == 2
        world.ready = "False"
        node.trigger_reconcile()
        await wait_until(lambda: world.writes() == 4)
    world.ready = "True"
    async with running(world) as node:
        await wait_until(lambda: node.is_registered)
        assert world.writes() == 6, "it said something else"
    async with running(world, first_write_after=0.01) as node:
        await wait_until(lambda: world.writes() == 8)


async def test_not_ready_condition_is_written(world: World) -> None:
    async with running(world) as node:
        await wait_until(lambda: node.is_registered)
        world.ready = "False"
        node.trigger_reconcile()
        await wait_until(lambda: (world.stored() or {})["status"]["conditions"][0]["status"] == "False")


async def test_tenant_changes_are_reverted_and_additions_kept(world: World) -> None:
    async with running(world) as node:
        await wait_until(lambda: node.is_registered)
        spoiled = dict(world.stored() or {})
        spoiled["metadata"] = spoiled["metadata"] | {"labels": {"type": "mine", "team": "a"}}
        world.server.store.update(NODES, spoiled, name=NAME)
        wanted = {"type": "virtual-kubelet", "team": "a"}
        await wait_until(lambda: (world.stored() or {})["metadata"]["labels"] == wanted)


async def test_labels_and_taints_of_tenant_are_reported(world: World) -> None:
    reported: list[tuple[Mapping[str, str], tuple[Taint, ...]]] = []
    async with running(world, on_seen=lambda labels, taints: reported.append((labels, taints))):
        await wait_until(lambda: reported)
        cordoned = dict(world.stored() or {})
        cordoned["spec"] = {"unschedulable": True}
        world.server.store.update(NODES, cordoned, name=NAME)
        await wait_until(lambda: reported[-1] == ({"type": "virtual-kubelet"}, (CORDON_TAINT,)))


async def test_deleted_node_is_created_again(world: World) -> None:
    async with running(world) as node:
        await wait_until(lambda: node.is_registered)
        first = (world.stored() or {})["metadata"]["uid"]
        world.server.store.delete(NODES, NAME)
        await wait_until(lambda: world.stored() and (world.stored() or {})["metadata"]["uid"] != first)
        await wait_until(lambda: (world.stored() or {}).get("status", {}).get("capacity"))


async def test_failures_of_tenant_api_server_are_retried(world: World) -> None:
    world.server.fail("PATCH", "/nodes/", status=500, times=3)
    world.server.fail("*", "/leases", status=503, times=3)
    async with running(world) as node:
        await wait_until(lambda: node.is_registered)
        await wait_until(lambda: world.server.store.find(LEASES, NAME, "kube-node-lease"))


async def test_fields_unknown_to_old_api_server_are_skipped(world: World) -> None:
    refusal = (
        "failed to create typed patch object (/a100.local; /v1, Kind=Node): errors:\n"
        "  .status.declaredFeatures: field not declared in schema\n"
        '  .status.runtimeHandlers[name="runc"].features.userNamespaces: field not declared in schema'
    )
    world.status |= {"declaredFeatures": ["A"], "runtimeHandlers": [{"name": "runc"}], "features": {"b": True}}
    world.server.fail("PATCH", "/status", status=500).message = refusal
    async with running(world, backoff=Backoff(base=3600, cap=3600)) as node:
        await wait_until(lambda: node.is_registered)
        status = (world.stored() or {})["status"]
    assert status["capacity"] == {"cpu": "8"}
    assert status["features"] == {"b": True}
    assert not {"declaredFeatures", "runtimeHandlers"} & status.keys()


async def test_skipped_fields_are_written_after_upgrade(world: World) -> None:
    """The API server may be upgraded while it is unreachable."""
    world.status |= {"declaredFeatures": ["A"]}
    world.server.fail("PATCH", "/status", status=500).message = ".status.declaredFeatures: field not declared in schema"
    async with running(world) as node:
        await wait_until(lambda: node.is_registered)
        assert "declaredFeatures" not in (world.stored() or {})["status"]
        world.server.fail("GET", "/nodes", status=503, times=3)
        world.server.end_watches()
        await wait_until(lambda: "declaredFeatures" in (world.stored() or {})["status"])


async def test_delete_removes_node_and_lease_and_is_idempotent(world: World) -> None:
    async with running(world) as node:
        await wait_until(lambda: world.server.store.find(LEASES, NAME, "kube-node-lease"))
    async with world.server.client() as client:
        node = VirtualNode(client, name=NAME, build=world.build)
        await node.delete_node()
        await node.delete_node()
    assert world.stored() is None
    assert world.server.store.find(LEASES, NAME, "kube-node-lease") is None
    assert world.server.store.find(NAMESPACES, NAME) is None
