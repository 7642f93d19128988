"""Fields that the compute cluster would drop silently: no pod runs without the fields that it requested."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import World, start_world
from vkgateway.kube.resources import PODS

MODEL = {"name": "model", "image": {"reference": "registry/model:1"}}
SIDECAR = {"name": "mesh", "image": "busybox", "restartPolicy": "Always"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.policy = {"user_namespaces": True}
        yield world


def count_dry_runs(world: World) -> list[str]:
    return [request for request in world.compute_server.requests if "dryRun=All" in request]


def event_messages(world: World, reason: str) -> list[str]:
    return [message for why, message in world.events() if why == reason]


async def test_pod_with_a_dropped_field_fails_and_does_not_run(world: World) -> None:
    world.compute_server.unknown_fields = ("spec.volumes[].image",)
    async with world.run_gateway():
        world.create_pod(volumes=[MODEL])
        await wait_until(lambda: world.pod_phase() == "Failed")
        (message,) = await wait_until(lambda: event_messages(world, "ForwardingRefused"))
        await world.wait_settled()

    assert "spec.volumes[model].image" in message
    assert "ImageVolume" in message
    assert (world.tenant_pod() or {})["status"]["reason"] == "ForwardingRefused"
    assert world.compute_pod() is None
    assert len(count_dry_runs(world)) == 1


async def test_retained_fields_are_not_tried_again(world: World) -> None:
    async with world.run_gateway():
        for name in ("first", "second"):
            world.create_pod(name, volumes=[MODEL], initContainers=[SIDECAR])
            created = await world.wait_forwarded(name)
            assert created["spec"]["volumes"] == [MODEL]
    assert len(count_dry_runs(world)) == 1


async def test_ordinary_pod_is_not_tried(world: World) -> None:
    async with world.run_gateway():
        world.create_pod(hostUsers=True, containers=[{"name": "main", "image": "busybox", "resizePolicy": [{}]}])
        await world.wait_forwarded()
    assert count_dry_runs(world) == []


async def test_enabled_gate_takes_effect_immediately(world: World) -> None:
    world.compute_server.unknown_fields = ("spec.hostUsers",)
    async with world.run_gateway():
        world.create_pod(hostUsers=False)
        await wait_until(lambda: world.pod_phase() == "Failed")
        world.compute_server.unknown_fields = ()
        world.create_pod("again", hostUsers=False)
        assert (await world.wait_forwarded("again"))["spec"]["hostUsers"] is False


async def test_known_gates_are_dropped_after_a_cluster_outage(world: World) -> None:
    async with world.run_gateway():
        world.create_pod(hostUsers=False)
        await world.wait_forwarded()
        link = world.link
        assert link is not None
        assert link.pods.kept_features == {"UserNamespacesSupport"}
        link.reachability.set_watching(False, "cut off")
        assert not link.pods.kept_features


async def test_refusal_of_a_dry_run_is_reported_like_one_of_a_creation(world: World) -> None:
    world.compute_server.fail("POST", "dryRun=All", status=422, reason="Invalid")
    async with world.run_gateway():
        world.create_pod(hostUsers=False)
        (message,) = await wait_until(lambda: event_messages(world, "ForwardingRefused"))
    assert message.startswith("the compute cluster refused the pod")
    assert world.compute_pod() is None


async def test_ephemeral_container_with_a_dropped_field_does_not_start_but_others_do(world: World) -> None:
    world.compute_server.unknown_fields = ("spec.ephemeralContainers[].env[].valueFrom.fileKeyRef",)
    source = {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "A"}}
    bad: dict[str, Any] = {"name": "bad", "image": "busybox", "env": [{"name": "A", "valueFrom": source}]}
    async with world.run_gateway():
        world.create_pod()
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["spec"]["ephemeralContainers"] = [bad, {"name": "good", "image": "busybox"}]
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        (message,) = await wait_until(lambda: event_messages(world, "ChangeNotForwarded"))
        await wait_until(lambda: "ephemeralContainers" in (world.compute_pod() or {})["spec"])

    assert "spec.ephemeralContainers[bad].env[A].valueFrom.fileKeyRef" in message
    assert [one["name"] for one in (world.compute_pod() or {})["spec"]["ephemeralContainers"]] == ["good"]
    assert world.pod_phase() == "Running"


async def test_dropped_pod_level_resize_is_reported(world: World) -> None:
    world.compute_server.unknown_fields = ("spec.resources",)
    async with world.run_gateway():
        world.create_pod()
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["spec"]["resources"] = {"limits": {"cpu": "1"}}
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        (message,) = await wait_until(lambda: event_messages(world, "ChangeNotForwarded"))
    assert "spec.resources" in message
