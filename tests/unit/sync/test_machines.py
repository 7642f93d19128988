"""Pods that are larger than a machine, and pods for which the compute cluster has no room: neither waits in silence."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.sync.world import BELOW, COMPUTE_NODE, NODE, World, compute_node, until, world
from vkgateway.kube.resources import NODES, PODS, Resource
from vkgateway.model.names import ADMISSION_GATE

pytestmark = pytest.mark.usefixtures("told_soon")

GATED: dict[str, Any] = {"schedulingGates": [{"name": ADMISSION_GATE}]}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def asking(cpu: int) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": str(cpu)}}}]}


def is_gated(here: World, name: str = "web") -> bool:
    pod = here.tenant_pod(name)
    return pod is not None and bool(pod["spec"].get("schedulingGates"))


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_bound_pod_that_no_machine_can_take_is_rejected_and_holds_nothing(here: World, by_hand: bool) -> None:
    here.limit["cpu"] = 100_000
    here.create("large", by_hand=by_hand, **asking(65))
    async with here.gateway():
        await until(lambda: here.phase("large") == "Failed")
        status = (here.tenant_pod("large") or {})["status"]
        assert status["reason"] == "OutOfcpu"
        assert "no machine of the pool has cpu 65; a pod can have cpu 64 at most" in status["message"]
        assert here.compute_pod("large") is None

        here.create("fits", **asking(60))
        await here.forwarded("fits")


async def test_a_gated_pod_that_no_machine_can_take_waits_for_one_that_can(here: World) -> None:
    here.create(node="", **asking(65), **GATED)
    async with here.gateway():
        await until(lambda: any(reason == "Infeasible" for reason, _ in here.events()))
        assert is_gated(here)
        here.below.store.create(NODES, compute_node("larger") | {"status": _offering(96)})
        await until(lambda: not is_gated(here))


async def test_a_gated_pod_for_which_the_large_machines_are_cordoned_waits_for_them(here: World) -> None:
    here.below.store.create(NODES, compute_node("larger") | {"spec": {"unschedulable": True}, "status": _offering(96)})
    here.create(node="", **asking(65), **GATED)
    async with here.gateway():
        await until(lambda: any(reason == "WaitingForRoom" for reason, _ in here.events()))
        assert is_gated(here)
        here.below.store.update(NODES, compute_node("larger") | {"status": _offering(96)}, name="larger")
        await until(lambda: not is_gated(here))


async def test_the_compute_schedulers_reason_is_an_event_without_names_of_nodes(here: World) -> None:
    here.create(**asking(2))
    async with here.gateway():
        await here.forwarded()
        _unscheduled(here, f"0/1 nodes are available: 1 Insufficient cpu ({COMPUTE_NODE}).")
        said = await until(lambda: [message for reason, message in here.events() if reason == "FailedScheduling"])
        assert said == [f"0/1 nodes are available: 1 Insufficient cpu ({NODE})."]

        _unscheduled(here, "0/1 nodes are available: 1 Insufficient memory.")
        await here.settled()
        assert [reason for reason, _ in here.events()].count("FailedScheduling") == 1, "not more than one a minute"


def _offering(cpu: int) -> dict[str, Any]:
    status: dict[str, Any] = compute_node("x")["status"]
    return status | {"allocatable": status["allocatable"] | {"cpu": str(cpu)}}


def _unscheduled(here: World, message: str) -> None:
    pod = copy.deepcopy(here.compute_pod())
    assert pod is not None
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod["status"] |= {"phase": "Pending", "conditions": [condition]}
    here.below.store.update(PODS, pod, name="web", namespace=BELOW, status=True)


async def test_the_tenants_policy_by_size_follows_the_machines(here: World) -> None:
    policies, bindings = (
        Resource("apis/admissionregistration.k8s.io/v1", plural, kind, namespaced=False)
        for plural, kind in (
            ("mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
            ("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
        )
    )
    here.above.register(policies)
    here.above.register(bindings)
    here.above.store.create(policies, {"metadata": {"name": "vkgateway-admission"}, "spec": {}})

    def condition() -> str:
        found = here.above.store.find(policies, "vkgateway-machine-size")
        return str(found["spec"]["matchConditions"][-1]["expression"]) if found is not None else ""

    async with here.gateway():
        await until(lambda: condition() == "false")
        await until(lambda: here.above.store.find(bindings, "vkgateway-machine-size"))
        here.below.store.create(NODES, compute_node("second"))
        await until(lambda: '"cpu": 64.0' in condition())
