"""Why control planes in pods do not run, from the status of their pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.controlplane.drivers.test_kubernetes_driver import NAMESPACE, PLANE, ManagementWorld, start_world
from tests.unit.controlplane.test_provisioner import tenant
from vkgateway.kube.resources import DEPLOYMENTS, EVENTS, PODS

COMPONENT = {"app.kubernetes.io/component": "control-plane"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ManagementWorld]:
    async with start_world(tmp_path) as world:
        yield world


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]},
            "pod server-0 is not scheduled: 0/3 nodes are available",
        ),
        (
            {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x": ErrImagePull: x: 401'}},
            "apiserver cannot start: ImagePullBackOff: x: 401; check registry, imageDigests and imagePullSecrets",
        ),
        (
            {
                "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"},
                "terminated": {"exitCode": 1, "reason": "Error", "message": "starting\nError: invalid flag\n"},
            },
            "apiserver does not stay up: exit code 1 (Error): Error: invalid flag",
        ),
        (
            {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "files" not found'}},
            'apiserver cannot start: CreateContainerConfigError: secret "files" not found',
        ),
        (
            {
                "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"},
                "terminated": {"exitCode": 137, "reason": "OOMKilled"},
            },
            "apiserver does not stay up: it exceeds its memory limit; raise resources.limits.memory of the template",
        ),
        ({"waiting": {"reason": "ContainerCreating"}}, ""),
        ({}, ""),
    ],
    ids=["unscheduled", "image", "crash", "configuration", "memory", "starting", "running"],
)
async def test_failure_names_the_cause(world: ManagementWorld, status: dict[str, Any], reason: str) -> None:
    await world.provisioner().provision(tenant())
    waiting, terminated = status.pop("waiting", None), status.pop("terminated", None)
    container = {"name": "apiserver", "restartCount": 1, "state": {}, "lastState": {}}
    if waiting:
        container["state"] = {"waiting": waiting}
    if terminated:
        container["lastState"] = {"terminated": terminated}
    pod = world.cluster.create(PODS, {"metadata": {"name": "server-0", "labels": COMPONENT}}, NAMESPACE)
    pod = pod | {"status": {"containerStatuses": [container], **status}}
    world.cluster.update(PODS, pod, name="server-0", namespace=NAMESPACE, status=True)
    expected = f"{NAMESPACE}: {reason}" if reason else ""
    assert await world.create_driver().failure_reason(PLANE) == expected


async def test_client_that_crashes_until_the_api_server_answers_is_no_failure(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    ended = {"exitCode": 1, "reason": "Error", "message": "no answer within 10 s"}
    container = {
        "name": "controller-manager",
        "restartCount": 5,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        "lastState": {"terminated": ended},
    }
    pod = world.cluster.create(PODS, {"metadata": {"name": "server-0", "labels": COMPONENT}}, NAMESPACE)
    pod = pod | {"status": {"containerStatuses": [container]}}
    world.cluster.update(PODS, pod, name="server-0", namespace=NAMESPACE, status=True)
    assert await world.create_driver().failure_reason(PLANE) == ""


@pytest.mark.parametrize(("count", "is_reported"), [(1, False), (4, True)])
async def test_pod_that_waits_for_its_volumes_reports_a_repeated_warning(
    world: ManagementWorld, count: int, is_reported: bool
) -> None:
    await world.provisioner().provision(tenant())
    container = {"name": "apiserver", "state": {"waiting": {"reason": "ContainerCreating"}}}
    pod = world.cluster.create(PODS, {"metadata": {"name": "server-0", "labels": COMPONENT}}, NAMESPACE)
    pod = pod | {"status": {"containerStatuses": [container]}}
    world.cluster.update(PODS, pod, name="server-0", namespace=NAMESPACE, status=True)
    event = {
        "metadata": {"name": "one"},
        "involvedObject": {"kind": "Pod", "name": "server-0", "uid": pod["metadata"]["uid"]},
        "type": "Warning",
        "message": "MountVolume.SetUp failed: references non-existent secret key",
        "count": count,
    }
    world.cluster.create(EVENTS, event, NAMESPACE)
    reason = await world.create_driver().failure_reason(PLANE)
    assert bool(reason) is is_reported
    if reason:
        assert reason.endswith(
            "pod server-0 does not start: MountVolume.SetUp failed: references non-existent secret key"
        )


async def test_rejected_pods_are_a_failure(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    condition = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: compute"}
    found = world.cluster.get(DEPLOYMENTS, "control-plane", NAMESPACE) | {"status": {"conditions": [condition]}}
    world.cluster.update(DEPLOYMENTS, found, name="control-plane", namespace=NAMESPACE, status=True)
    reason = await world.create_driver().failure_reason(PLANE)
    assert reason == f"{NAMESPACE}: its pods are rejected: exceeded quota: compute"
