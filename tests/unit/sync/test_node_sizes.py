"""Pods larger than any node, and pods without free compute capacity, report a reason."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, COMPUTE_NODE, NODE, World, make_node, start_world
from vkgateway.api.names import ADMISSION_GATE
from vkgateway.kube.resources import NODES, PODS, Resource

pytestmark = pytest.mark.usefixtures("told_soon")

GATED: dict[str, Any] = {"schedulingGates": [{"name": ADMISSION_GATE}]}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


def cpu_requests(cpu: int) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": str(cpu)}}}]}


def is_gated(world: World, name: str = "web") -> bool:
    pod = world.tenant_pod(name)
    return pod is not None and bool(pod["spec"].get("schedulingGates"))


@pytest.mark.parametrize("by_hand", [False, True])
async def test_bound_pod_that_fits_no_node_is_rejected_and_holds_nothing(world: World, by_hand: bool) -> None:
    world.limit["cpu"] = 100_000
    world.create_pod("large", by_hand=by_hand, **cpu_requests(65))
    async with world.run_gateway():
        await wait_until(lambda: world.pod_phase("large") == "Failed")
        status = (world.tenant_pod("large") or {})["status"]
        assert status["reason"] == "OutOfcpu"
        assert "no machine of the pool has cpu 65; a pod can have cpu 64 at most" in status["message"]
        assert world.compute_pod("large") is None

        world.create_pod("fits", **cpu_requests(60))
        await world.wait_forwarded("fits")


async def test_gated_pod_that_fits_no_node_waits_for_a_larger_one(world: World) -> None:
    world.create_pod(node="", **cpu_requests(65), **GATED)
    async with world.run_gateway():
        await wait_until(lambda: any(reason == "Infeasible" for reason, _ in world.events()))
        assert is_gated(world)
        world.compute_server.store.create(NODES, make_node("larger") | {"status": _node_with(96)})
        await wait_until(lambda: not is_gated(world))


async def test_gated_pod_waits_for_cordoned_large_nodes(world: World) -> None:
    world.compute_server.store.create(
        NODES, make_node("larger") | {"spec": {"unschedulable": True}, "status": _node_with(96)}
    )
    world.create_pod(node="", **cpu_requests(65), **GATED)
    async with world.run_gateway():
        await wait_until(lambda: any(reason == "WaitingForRoom" for reason, _ in world.events()))
        assert is_gated(world)
        world.compute_server.store.update(NODES, make_node("larger") | {"status": _node_with(96)}, name="larger")
        await wait_until(lambda: not is_gated(world))


async def test_scheduler_reason_is_an_event_without_node_names(world: World) -> None:
    world.create_pod(**cpu_requests(2))
    async with world.run_gateway():
        await world.wait_forwarded()
        _unscheduled_condition(world, f"0/1 nodes are available: 1 Insufficient cpu ({COMPUTE_NODE}).")
        messages = await wait_until(
            lambda: [message for reason, message in world.events() if reason == "FailedScheduling"]
        )
        assert messages == [f"0/1 nodes are available: 1 Insufficient cpu ({NODE})."]

        _unscheduled_condition(world, "0/1 nodes are available: 1 Insufficient memory.")
        await world.wait_settled()
        assert [reason for reason, _ in world.events()].count("FailedScheduling") == 1, "not more than one a minute"


def _node_with(cpu: int) -> dict[str, Any]:
    status: dict[str, Any] = make_node("x")["status"]
    return status | {"allocatable": status["allocatable"] | {"cpu": str(cpu)}}


def _unscheduled_condition(world: World, message: str) -> None:
    pod = copy.deepcopy(world.compute_pod())
    assert pod is not None
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod["status"] |= {"phase": "Pending", "conditions": [condition]}
    world.compute_server.store.update(PODS, pod, name="web", namespace=COMPUTE_NAMESPACE, status=True)


async def test_size_policy_follows_the_nodes(world: World) -> None:
    policies, bindings = (
        Resource("apis/admissionregistration.k8s.io/v1", plural, kind, namespaced=False)
        for plural, kind in (
            ("mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
            ("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
        )
    )
    world.tenant_server.register(policies)
    world.tenant_server.register(bindings)
    world.tenant_server.store.create(policies, {"metadata": {"name": "vkgateway-admission"}, "spec": {}})

    def condition() -> str:
        found = world.tenant_server.store.find(policies, "vkgateway-machine-size")
        return str(found["spec"]["matchConditions"][-1]["expression"]) if found is not None else ""

    async with world.run_gateway():
        await wait_until(lambda: condition() == "false")
        await wait_until(lambda: world.tenant_server.store.find(bindings, "vkgateway-machine-size"))
        world.compute_server.store.create(NODES, make_node("second"))
        await wait_until(lambda: '"cpu": 64.0' in condition())
