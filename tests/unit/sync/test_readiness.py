"""Readiness gates: only the tenant's conditions for its gates are forwarded to the compute pod."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, start_world
from vkgateway.api.objects import Object
from vkgateway.kube.resources import PODS

GATES = [{"conditionType": "example.org/warm"}, {"conditionType": "ContainersReady"}]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


def gate_conditions(pod: Object | None) -> dict[str, str]:
    """Return the statuses of a pod's conditions by type."""
    return {entry["type"]: entry["status"] for entry in (pod or {})["status"].get("conditions", [])}


def set_condition(world: World, kind: str, status: str | None) -> None:
    """Set a condition of the tenant pod; None removes it."""
    pod = copy.deepcopy(world.tenant_pod() or {})
    left = [entry for entry in pod["status"].get("conditions", []) if entry["type"] != kind]
    pod["status"]["conditions"] = left if status is None else [*left, {"type": kind, "status": status}]
    world.tenant_server.store.update(PODS, pod, name="web", namespace="default", status=True)


def count_patches(world: World) -> int:
    return sum(f"{COMPUTE_NAMESPACE}/pods/web/status" in request for request in world.compute_server.requests)


async def start_pod(world: World) -> None:
    world.create_pod(readinessGates=GATES)
    await world.wait_forwarded()
    world.run_pod()
    await wait_until(lambda: world.pod_phase() == "Running")


async def test_gate_conditions_are_forwarded_changed_and_removed(world: World) -> None:
    async with world.run_gateway():
        await start_pod(world)
        assert (world.compute_pod() or {})["spec"]["readinessGates"] == GATES
        set_condition(world, "example.org/warm", "False")
        await wait_until(lambda: gate_conditions(world.compute_pod()).get("example.org/warm") == "False")
        set_condition(world, "example.org/warm", "True")
        await wait_until(lambda: gate_conditions(world.compute_pod())["example.org/warm"] == "True")
        set_condition(world, "example.org/warm", None)
        await wait_until(lambda: "example.org/warm" not in gate_conditions(world.compute_pod()))
        await world.wait_settled()
    assert count_patches(world) == 3
    assert "example.org/warm" not in gate_conditions(world.tenant_pod())


async def test_gate_set_before_forwarding_is_forwarded(world: World) -> None:
    world.create_pod(readinessGates=GATES)
    set_condition(world, "example.org/warm", "True")
    async with world.run_gateway():
        await world.wait_forwarded()
        await wait_until(lambda: gate_conditions(world.compute_pod()).get("example.org/warm") == "True")


async def test_changes_during_an_outage_are_forwarded(world: World) -> None:
    async with world.run_gateway():
        await start_pod(world)
        set_condition(world, "example.org/warm", "True")
        await wait_until(lambda: gate_conditions(world.compute_pod()).get("example.org/warm") == "True")
        await world.wait_settled()
    set_condition(world, "example.org/warm", "False")
    async with world.run_gateway():
        await wait_until(lambda: gate_conditions(world.compute_pod())["example.org/warm"] == "False")
        await world.wait_settled()


async def test_tenant_sets_no_other_condition(world: World) -> None:
    async with world.run_gateway():
        await start_pod(world)
        set_condition(world, "ContainersReady", "False")
        set_condition(world, "DisruptionTarget", "True")
        set_condition(world, "example.org/other", "True")
        set_condition(world, "example.org/warm", "True")
        await wait_until(lambda: gate_conditions(world.compute_pod()).get("example.org/warm") == "True")
        await world.wait_settled()
    assert gate_conditions(world.compute_pod()) == {"Ready": "True", "example.org/warm": "True"}
    assert count_patches(world) == 1


async def test_gates_of_a_terminating_pod_are_forwarded(world: World) -> None:
    async with world.run_gateway():
        await start_pod(world)
        set_condition(world, "example.org/warm", "True")
        await wait_until(lambda: gate_conditions(world.compute_pod()).get("example.org/warm") == "True")
        world.tenant_server.store.delete(PODS, "web", "default")
        await wait_until(lambda: "deletionTimestamp" in (world.compute_pod() or {})["metadata"])
        set_condition(world, "example.org/warm", "False")
        await wait_until(lambda: gate_conditions(world.compute_pod())["example.org/warm"] == "False")


async def test_missing_permission_is_reported_and_blocks_nothing_else(world: World) -> None:
    async with world.run_gateway():
        await start_pod(world)
        fault = world.compute_server.fail(
            "PATCH", f"{COMPUTE_NAMESPACE}/pods/web/status", status=403, reason="Forbidden", times=1000
        )
        fault.message = 'pods "web" is forbidden: User "vkgateway" cannot patch resource "pods/status"'
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["metadata"]["labels"] = {"new": "1"}
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        set_condition(world, "example.org/warm", "True")
        await wait_until(lambda: (world.compute_pod() or {})["metadata"]["labels"].get("new") == "1")
        await wait_until(lambda: any(reason == "ReadinessNotForwarded" for reason, _ in world.events()))
