"""A controller whose pods fail is slowed down, wherever they fail: by policy, in the compute cluster, at a kubelet."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.sync.world import BELOW, World, until, world
from vkgateway.kube.resources import PODS

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "r", "controller": True}
INLINE = {"name": "data", "csi": {"driver": "disks.example.org"}}


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def here(clock: Clock) -> AsyncIterator[World]:
    async with world(clock=clock) as made:
        yield made


def owned(here: World, name: str, **options: Any) -> None:
    """Create a pod of the ReplicaSet `web-1`."""
    pod = copy.deepcopy(here.create(name, node="", **options))
    pod["metadata"]["ownerReferences"] = [OWNER]
    here.above.store.update(PODS, pod, name=name, namespace="default")
    here.above.store.bind(name, "default", "a100.local")


def touch(here: World, name: str) -> None:
    """Have a pod reconciled again."""
    pod = copy.deepcopy(here.tenant_pod(name) or {})
    pod["metadata"].setdefault("labels", {})["touched"] = "yes"
    here.above.store.update(PODS, pod, name=name, namespace="default")


async def failed(here: World, name: str) -> None:
    await until(lambda: here.phase(name) == "Failed")


def forwarded_condition(here: World, name: str) -> dict[str, Any]:
    conditions = ((here.tenant_pod(name) or {}).get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "vkgateway.io/Forwarded"), {})


async def three_fail_and_the_fourth_waits(here: World, clock: Clock, reason: str, **options: Any) -> None:
    for name in ("a", "b", "c"):
        owned(here, name, **options)
        await failed(here, name)
    owned(here, "d", **options)
    await until(lambda: forwarded_condition(here, "d").get("reason") == reason)
    await here.settled()
    assert here.phase("d") != "Failed"
    assert "the pod fails later, because other pods of ReplicaSet/web-1 have just failed" in str(here.events())

    clock.now += 10.5
    touch(here, "d")
    await until(lambda: here.phase("d") == "Failed")


async def test_pods_that_policy_refuses(here: World, clock: Clock) -> None:
    async with here.gateway():
        await three_fail_and_the_fourth_waits(here, clock, "PolicyRefused", volumes=[INLINE])


async def test_pods_that_the_compute_cluster_refuses(here: World, clock: Clock) -> None:
    here.below.fail("POST", f"/namespaces/{BELOW}/pods", status=422, reason="Invalid", times=1000)
    async with here.gateway():
        await three_fail_and_the_fourth_waits(here, clock, "ForwardingRefused")


async def test_a_pod_that_waits_to_fail_runs_once_nothing_refuses_it(here: World) -> None:
    here.below.fail("POST", f"/namespaces/{BELOW}/pods", status=422, reason="Invalid", times=1000)
    async with here.gateway():
        for name in ("a", "b", "c"):
            owned(here, name)
            await failed(here, name)
        owned(here, "d")
        await until(lambda: forwarded_condition(here, "d"))
        here.below.heal()
        touch(here, "d")
        await here.forwarded("d")


async def test_pods_that_have_no_room_on_a_node_named_by_hand(here: World, clock: Clock) -> None:
    here.limit["cpu"] = 1000
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "2"}}}
    async with here.gateway():
        for name in ("a", "b", "c", "d"):
            pod = {"name": name, "generateName": "hand-"}
            spec = {"nodeName": "a100.local", "containers": [container]}
            here.above.store.create(PODS, {"metadata": pod, "spec": spec}, "default")
        await until(lambda: [here.phase(name) for name in "abcd"].count("Failed") == 3)
        await here.settled()
        (left,) = [name for name in "abcd" if here.phase(name) != "Failed"]
        await until(lambda: forwarded_condition(here, left))
        clock.now += 10.5
        touch(here, left)
        await until(lambda: here.phase(left) == "Failed")


def reject(here: World, name: str) -> None:
    """A kubelet of the compute cluster refuses the pod."""
    pod = copy.deepcopy(here.compute_pod(name) or {})
    pod["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device plugin"}
    here.below.store.update(PODS, pod, name=name, namespace=BELOW, status=True)


async def test_pods_that_a_kubelet_rejects(here: World, clock: Clock) -> None:
    async with here.gateway():
        for name in ("a", "b", "c", "d"):
            owned(here, name)
            await here.forwarded(name)
            reject(here, name)
            if name != "d":
                await failed(here, name)
        await until(lambda: forwarded_condition(here, "d").get("reason") == "UnexpectedAdmissionError")
        assert here.phase("d") != "Failed"
        clock.now += 10.5
        touch(here, "d")
        await until(lambda: here.phase("d") == "Failed")
    assert (here.tenant_pod("d") or {})["status"]["reason"] == "UnexpectedAdmissionError"


async def test_pods_that_ran_end_at_once(here: World) -> None:
    async with here.gateway():
        for number in range(6):
            name = f"run-{number}"
            owned(here, name)
            await here.forwarded(name)
            here.end(name, code=1)
            await failed(here, name)


async def test_a_pod_that_waits_to_fail_is_deleted_at_once(here: World) -> None:
    async with here.gateway():
        for name in ("a", "b", "c", "d"):
            owned(here, name, volumes=[INLINE])
        await until(lambda: [here.phase(name) for name in "abcd"].count("Failed") == 3)
        (left,) = [name for name in "abcd" if here.phase(name) != "Failed"]
        here.delete(left)
        await until(lambda: here.tenant_pod(left) is None)


async def test_a_gateway_that_is_started_again_goes_on_slowly(here: World) -> None:
    async with here.gateway():
        for name in ("a", "b", "c"):
            owned(here, name, volumes=[INLINE])
            await failed(here, name)
    async with here.gateway():
        owned(here, "d", volumes=[INLINE])
        await until(lambda: forwarded_condition(here, "d"))
        await here.settled()
        assert here.phase("d") != "Failed"
