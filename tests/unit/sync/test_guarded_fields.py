"""Fields that the compute cluster's API server drops in silence: no pod runs without what it asked for."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.sync.world import World, until, world
from vkgateway.kube.resources import PODS

MODEL = {"name": "model", "image": {"reference": "registry/model:1"}}
SIDECAR = {"name": "mesh", "image": "busybox", "restartPolicy": "Always"}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        made.policy = {"user_namespaces": True}
        yield made


def dry_runs(here: World) -> list[str]:
    return [request for request in here.below.requests if "dryRun=All" in request]


def told(here: World, reason: str) -> list[str]:
    return [message for why, message in here.events() if why == reason]


async def test_a_pod_whose_field_would_be_dropped_fails_and_nothing_of_it_runs(here: World) -> None:
    here.below.unknown_fields = ("spec.volumes[].image",)
    async with here.gateway():
        here.create(volumes=[MODEL])
        await until(lambda: here.phase() == "Failed")
        (message,) = await until(lambda: told(here, "ForwardingRefused"))
        await here.settled()

    assert "spec.volumes[model].image" in message
    assert "ImageVolume" in message
    assert (here.tenant_pod() or {})["status"]["reason"] == "ForwardingRefused"
    assert here.compute_pod() is None
    assert len(dry_runs(here)) == 1


async def test_a_pod_whose_fields_are_kept_runs_and_the_next_one_is_not_tried(here: World) -> None:
    async with here.gateway():
        for name in ("first", "second"):
            here.create(name, volumes=[MODEL], initContainers=[SIDECAR])
            made = await here.forwarded(name)
            assert made["spec"]["volumes"] == [MODEL]
    assert len(dry_runs(here)) == 1


async def test_an_ordinary_pod_is_not_tried(here: World) -> None:
    async with here.gateway():
        here.create(hostUsers=True, containers=[{"name": "main", "image": "busybox", "resizePolicy": [{}]}])
        await here.forwarded()
    assert dry_runs(here) == []


async def test_a_gate_that_is_switched_on_counts_at_once(here: World) -> None:
    here.below.unknown_fields = ("spec.hostUsers",)
    async with here.gateway():
        here.create(hostUsers=False)
        await until(lambda: here.phase() == "Failed")
        here.below.unknown_fields = ()
        here.create("again", hostUsers=False)
        assert (await here.forwarded("again"))["spec"]["hostUsers"] is False


async def test_what_is_known_of_gates_is_forgotten_when_the_cluster_was_away(here: World) -> None:
    async with here.gateway():
        here.create(hostUsers=False)
        await here.forwarded()
        link = here.link
        assert link is not None
        assert link.kept_features == {"UserNamespacesSupport"}
        link.reachability.set_watching(False, "cut off")
        assert not link.kept_features


async def test_what_is_refused_when_tried_is_told_as_when_made(here: World) -> None:
    here.below.fail("POST", "dryRun=All", status=422, reason="Invalid")
    async with here.gateway():
        here.create(hostUsers=False)
        (message,) = await until(lambda: told(here, "ForwardingRefused"))
    assert message.startswith("the compute cluster refused the pod")
    assert here.compute_pod() is None


async def test_an_ephemeral_container_that_would_lose_something_does_not_start_and_others_do(here: World) -> None:
    here.below.unknown_fields = ("spec.ephemeralContainers[].env[].valueFrom.fileKeyRef",)
    source = {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "A"}}
    bad: dict[str, Any] = {"name": "bad", "image": "busybox", "env": [{"name": "A", "valueFrom": source}]}
    async with here.gateway():
        here.create()
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["spec"]["ephemeralContainers"] = [bad, {"name": "good", "image": "busybox"}]
        here.above.store.update(PODS, pod, name="web", namespace="default")
        (message,) = await until(lambda: told(here, "ChangeNotForwarded"))
        await until(lambda: "ephemeralContainers" in (here.compute_pod() or {})["spec"])

    assert "spec.ephemeralContainers[bad].env[A].valueFrom.fileKeyRef" in message
    assert [one["name"] for one in (here.compute_pod() or {})["spec"]["ephemeralContainers"]] == ["good"]
    assert here.phase() == "Running"


async def test_amounts_of_a_whole_pod_that_would_be_dropped_are_told(here: World) -> None:
    here.below.unknown_fields = ("spec.resources",)
    async with here.gateway():
        here.create()
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["spec"]["resources"] = {"limits": {"cpu": "1"}}
        here.above.store.update(PODS, pod, name="web", namespace="default")
        (message,) = await until(lambda: told(here, "ChangeNotForwarded"))
    assert "spec.resources" in message
