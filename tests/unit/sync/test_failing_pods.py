"""Backoff for controllers whose pods fail by policy, in the compute cluster, or at a kubelet."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.clock import EPOCH, FakeClock
from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, start_world
from vkgateway.kube.resources import PODS

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "r", "controller": True}
INLINE = {"name": "data", "csi": {"driver": "disks.example.org"}}


@pytest.fixture
async def clock() -> FakeClock:
    return FakeClock(time.time(), origin=EPOCH)


@pytest.fixture
async def world(clock: FakeClock) -> AsyncIterator[World]:
    async with start_world(clock=clock) as world:
        yield world


def create_owned(world: World, name: str, **options: Any) -> None:
    """Create a pod of the ReplicaSet `web-1`."""
    pod = copy.deepcopy(world.create_pod(name, node="", **options))
    pod["metadata"]["ownerReferences"] = [OWNER]
    world.tenant_server.store.update(PODS, pod, name=name, namespace="default")
    world.tenant_server.store.bind(name, "default", "a100.local")


def touch_pod(world: World, name: str) -> None:
    """Have a pod reconciled again."""
    pod = copy.deepcopy(world.tenant_pod(name) or {})
    pod["metadata"].setdefault("labels", {})["touched"] = "yes"
    world.tenant_server.store.update(PODS, pod, name=name, namespace="default")


async def has_failed(world: World, name: str) -> None:
    await wait_until(lambda: world.pod_phase(name) == "Failed")


def forwarded_condition(world: World, name: str) -> dict[str, Any]:
    conditions = ((world.tenant_pod(name) or {}).get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "vkgateway.io/Forwarded"), {})


async def expect_fourth_delayed(world: World, clock: FakeClock, reason: str, **options: Any) -> None:
    for name in ("a", "b", "c"):
        create_owned(world, name, **options)
        await has_failed(world, name)
    create_owned(world, "d", **options)
    await wait_until(lambda: forwarded_condition(world, "d").get("reason") == reason)
    await world.wait_settled()
    assert world.pod_phase("d") != "Failed"
    assert "the pod fails later, because other pods of ReplicaSet/web-1 have just failed" in str(world.events())

    clock.seconds += 10.5
    touch_pod(world, "d")
    await wait_until(lambda: world.pod_phase("d") == "Failed")


async def test_backoff_of_pods_that_policy_refuses(world: World, clock: FakeClock) -> None:
    async with world.run_gateway():
        await expect_fourth_delayed(world, clock, "PolicyRefused", volumes=[INLINE])


async def test_backoff_of_pods_that_the_compute_cluster_refuses(world: World, clock: FakeClock) -> None:
    world.compute_server.fail("POST", f"/namespaces/{COMPUTE_NAMESPACE}/pods", status=422, reason="Invalid", times=1000)
    async with world.run_gateway():
        await expect_fourth_delayed(world, clock, "ForwardingRefused")


async def test_delayed_pod_runs_once_nothing_refuses_it(world: World) -> None:
    world.compute_server.fail("POST", f"/namespaces/{COMPUTE_NAMESPACE}/pods", status=422, reason="Invalid", times=1000)
    async with world.run_gateway():
        for name in ("a", "b", "c"):
            create_owned(world, name)
            await has_failed(world, name)
        create_owned(world, "d")
        await wait_until(lambda: forwarded_condition(world, "d"))
        world.compute_server.heal()
        touch_pod(world, "d")
        await world.wait_forwarded("d")


async def test_backoff_of_pods_without_capacity_on_a_manually_set_node(world: World, clock: FakeClock) -> None:
    world.limit["cpu"] = 1000
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "2"}}}
    async with world.run_gateway():
        for name in ("a", "b", "c", "d"):
            pod = {"name": name, "generateName": "hand-"}
            spec = {"nodeName": "a100.local", "containers": [container]}
            world.tenant_server.store.create(PODS, {"metadata": pod, "spec": spec}, "default")
        await wait_until(lambda: [world.pod_phase(name) for name in "abcd"].count("Failed") == 3)
        await world.wait_settled()
        (remaining,) = [name for name in "abcd" if world.pod_phase(name) != "Failed"]
        await wait_until(lambda: forwarded_condition(world, remaining))
        clock.seconds += 10.5
        touch_pod(world, remaining)
        await wait_until(lambda: world.pod_phase(remaining) == "Failed")


def reject_pod(world: World, name: str) -> None:
    """Reject a pod as a kubelet of the compute cluster."""
    pod = copy.deepcopy(world.compute_pod(name) or {})
    pod["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device plugin"}
    world.compute_server.store.update(PODS, pod, name=name, namespace=COMPUTE_NAMESPACE, status=True)


async def test_backoff_of_pods_that_a_kubelet_rejects(world: World, clock: FakeClock) -> None:
    async with world.run_gateway():
        for name in ("a", "b", "c", "d"):
            create_owned(world, name)
            await world.wait_forwarded(name)
            reject_pod(world, name)
            if name != "d":
                await has_failed(world, name)
        await wait_until(lambda: forwarded_condition(world, "d").get("reason") == "UnexpectedAdmissionError")
        assert world.pod_phase("d") != "Failed"
        clock.seconds += 10.5
        touch_pod(world, "d")
        await wait_until(lambda: world.pod_phase("d") == "Failed")
    assert (world.tenant_pod("d") or {})["status"]["reason"] == "UnexpectedAdmissionError"


async def test_pods_that_have_run_fail_immediately(world: World) -> None:
    async with world.run_gateway():
        for number in range(6):
            name = f"run-{number}"
            create_owned(world, name)
            await world.wait_forwarded(name)
            world.end_pod(name, code=1)
            await has_failed(world, name)


async def test_delayed_pod_is_deleted_immediately(world: World) -> None:
    async with world.run_gateway():
        for name in ("a", "b", "c", "d"):
            create_owned(world, name, volumes=[INLINE])
        await wait_until(lambda: [world.pod_phase(name) for name in "abcd"].count("Failed") == 3)
        (remaining,) = [name for name in "abcd" if world.pod_phase(name) != "Failed"]
        world.delete_pod(remaining)
        await wait_until(lambda: world.tenant_pod(remaining) is None)


async def test_backoff_survives_a_gateway_restart(world: World) -> None:
    async with world.run_gateway():
        for name in ("a", "b", "c"):
            create_owned(world, name, volumes=[INLINE])
            await has_failed(world, name)
    async with world.run_gateway():
        create_owned(world, "d", volumes=[INLINE])
        await wait_until(lambda: forwarded_condition(world, "d"))
        await world.wait_settled()
        assert world.pod_phase("d") != "Failed"
