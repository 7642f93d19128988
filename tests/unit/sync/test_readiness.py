"""Readiness gates: conditions that the tenant sets for them reach the compute pod, and no other conditions do."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator

import pytest

from tests.unit.sync.world import BELOW, World, until, world
from vkgateway.kube.resources import PODS
from vkgateway.model.objects import Object

GATES = [{"conditionType": "example.org/warm"}, {"conditionType": "ContainersReady"}]


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def said(pod: Object | None) -> dict[str, str]:
    """What a pod's conditions say, by type."""
    return {entry["type"]: entry["status"] for entry in (pod or {})["status"].get("conditions", [])}


def set_above(here: World, kind: str, status: str | None) -> None:
    """The tenant sets a condition of its pod; None takes it off."""
    pod = copy.deepcopy(here.tenant_pod() or {})
    left = [entry for entry in pod["status"].get("conditions", []) if entry["type"] != kind]
    pod["status"]["conditions"] = left if status is None else [*left, {"type": kind, "status": status}]
    here.above.store.update(PODS, pod, name="web", namespace="default", status=True)


def status_patches(here: World) -> int:
    return sum(f"{BELOW}/pods/web/status" in request for request in here.below.requests)


async def start(here: World) -> None:
    here.create(readinessGates=GATES)
    await here.forwarded()
    here.run()
    await until(lambda: here.phase() == "Running")


async def test_conditions_of_gates_go_down_change_and_are_removed(here: World) -> None:
    async with here.gateway():
        await start(here)
        assert (here.compute_pod() or {})["spec"]["readinessGates"] == GATES
        set_above(here, "example.org/warm", "False")
        await until(lambda: said(here.compute_pod()).get("example.org/warm") == "False")
        set_above(here, "example.org/warm", "True")
        await until(lambda: said(here.compute_pod())["example.org/warm"] == "True")
        set_above(here, "example.org/warm", None)
        await until(lambda: "example.org/warm" not in said(here.compute_pod()))
        await here.settled()
    assert status_patches(here) == 3
    assert "example.org/warm" not in said(here.tenant_pod())


async def test_a_gate_that_opens_before_the_pod_is_below_is_open_there(here: World) -> None:
    here.create(readinessGates=GATES)
    set_above(here, "example.org/warm", "True")
    async with here.gateway():
        await here.forwarded()
        await until(lambda: said(here.compute_pod()).get("example.org/warm") == "True")


async def test_what_changed_while_no_gateway_ran_is_mended(here: World) -> None:
    async with here.gateway():
        await start(here)
        set_above(here, "example.org/warm", "True")
        await until(lambda: said(here.compute_pod()).get("example.org/warm") == "True")
        await here.settled()
    set_above(here, "example.org/warm", "False")
    async with here.gateway():
        await until(lambda: said(here.compute_pod())["example.org/warm"] == "False")
        await here.settled()


async def test_a_tenant_writes_no_other_condition(here: World) -> None:
    async with here.gateway():
        await start(here)
        set_above(here, "ContainersReady", "False")
        set_above(here, "DisruptionTarget", "True")
        set_above(here, "example.org/other", "True")
        set_above(here, "example.org/warm", "True")
        await until(lambda: said(here.compute_pod()).get("example.org/warm") == "True")
        await here.settled()
    assert said(here.compute_pod()) == {"Ready": "True", "example.org/warm": "True"}
    assert status_patches(here) == 1


async def test_gates_of_a_pod_that_is_ending_still_count(here: World) -> None:
    async with here.gateway():
        await start(here)
        set_above(here, "example.org/warm", "True")
        await until(lambda: said(here.compute_pod()).get("example.org/warm") == "True")
        here.above.store.delete(PODS, "web", "default")
        await until(lambda: "deletionTimestamp" in (here.compute_pod() or {})["metadata"])
        set_above(here, "example.org/warm", "False")
        await until(lambda: said(here.compute_pod())["example.org/warm"] == "False")


async def test_a_compute_cluster_that_gives_no_right_to_it_is_told_and_holds_up_nothing_else(here: World) -> None:
    async with here.gateway():
        await start(here)
        fault = here.below.fail("PATCH", f"{BELOW}/pods/web/status", status=403, reason="Forbidden", times=1000)
        fault.message = 'pods "web" is forbidden: User "vkgateway" cannot patch resource "pods/status"'
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["metadata"]["labels"] = {"new": "1"}
        here.above.store.update(PODS, pod, name="web", namespace="default")
        set_above(here, "example.org/warm", "True")
        await until(lambda: (here.compute_pod() or {})["metadata"]["labels"].get("new") == "1")
        await until(lambda: any(reason == "ReadinessNotForwarded" for reason, _ in here.events()))
