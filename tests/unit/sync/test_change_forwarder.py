"""Changes of running pods: subresources, waiting for capacity, and reports."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, COMPUTE_NODE, World, start_world
from vkgateway.kinds.pods import change_forwarder
from vkgateway.kube.resources import CONFIG_MAPS, PODS

CPU = {"resources": {"requests": {"cpu": "1"}}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


def edit_pod(world: World, **spec: Any) -> None:
    """Change the spec of the tenant's pod."""
    pod = copy.deepcopy(world.tenant_pod() or {})
    pod["spec"] |= spec
    world.tenant_server.store.update(PODS, pod, name="web", namespace="default")


def main_container(**more: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "image": "busybox", **more}]


async def start_pod(world: World, **spec: Any) -> None:
    world.create_pod(**spec)
    await world.wait_forwarded()
    world.run_pod()
    await wait_until(lambda: world.pod_phase() == "Running")


def set_cpu(world: World) -> str:
    found: str = (world.compute_pod() or {})["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    return found


def add_ephemeral(world: World) -> list[str]:
    return [one["name"] for one in (world.compute_pod() or {})["spec"].get("ephemeralContainers", [])]


def tenant_writes(world: World) -> list[str]:
    """Return the gateway's writes to tenant pods except status writes."""
    writes = (
        request for request in world.tenant_server.requests if "/pods/" in request and not request.startswith("GET")
    )
    return [request for request in writes if "/status" not in request]


async def test_ephemeral_container_is_forwarded_after_its_references(world: World) -> None:
    world.tenant_server.store.create(CONFIG_MAPS, {"metadata": {"name": "tools"}, "data": {"a": "b"}}, "default")
    async with world.run_gateway():
        await start_pod(world)
        debug = {"name": "debug", "image": "busybox", "envFrom": [{"configMapRef": {"name": "tools"}}]}
        edit_pod(world, ephemeralContainers=[debug])
        await wait_until(lambda: add_ephemeral(world) == ["debug"])
        await world.wait_settled()

    posts = [
        request
        for request in world.compute_server.requests
        if "/ephemeralcontainers" in request or request.endswith(f"{COMPUTE_NAMESPACE}/configmaps")
    ]
    assert [request.split()[0] for request in posts] == ["POST", "PATCH"]
    assert tenant_writes(world) == []


async def test_ephemeral_container_of_a_waiting_pod_is_forwarded_later(world: World) -> None:
    source = {"configMapRef": {"name": "late"}}
    async with world.run_gateway():
        world.create_pod(containers=main_container(envFrom=[source]))
        await wait_until(lambda: any(reason == "MandatoryConfigMapNotFound" for reason, _ in world.events()))
        edit_pod(world, ephemeralContainers=[{"name": "debug", "image": "busybox"}])
        await world.wait_settled()
        world.tenant_server.store.create(CONFIG_MAPS, {"metadata": {"name": "late"}, "data": {"a": "b"}}, "default")
        await world.wait_forwarded()
        await wait_until(lambda: add_ephemeral(world) == ["debug"])
    assert tenant_writes(world) == []


async def test_forbidden_ephemeral_container_is_reported_and_the_pod_continues(world: World) -> None:
    async with world.run_gateway():
        await start_pod(world)
        edit_pod(world, ephemeralContainers=[{"name": "root", "image": "b", "securityContext": {"privileged": True}}])
        (event,) = await wait_until(lambda: [one for one in world.events() if one[0] == "ChangeNotForwarded"])
        await world.wait_settled()

    assert "privileged" in event[1]
    assert add_ephemeral(world) == []
    assert world.pod_phase() == "Running"


def debug_containers(world: World) -> dict[str, dict[str, Any]]:
    """Return the states of the tenant pod's ephemeral containers by name."""
    found = (world.tenant_pod() or {})["status"].get("ephemeralContainerStatuses") or []
    return {one["name"]: one["state"] for one in found}


async def test_unstarted_ephemeral_container_is_shown_as_waiting_with_the_reason(world: World) -> None:
    """`kubectl debug` prints this reason; otherwise it waits silently."""
    root = {"name": "root", "image": "b", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}
    debug = {"name": "debug", "image": "b"}
    async with world.run_gateway():
        await start_pod(world)
        edit_pod(world, ephemeralContainers=[root])
        waiting = (await wait_until(lambda: debug_containers(world).get("root")))["waiting"]
        assert waiting["reason"] == "ChangeNotForwarded"
        assert waiting["message"].startswith('ephemeral container root does not start: violates PodSecurity "baseline')
        assert "`kubectl debug --profile=baseline`" in waiting["message"]

        edit_pod(world, ephemeralContainers=[root, debug])
        await wait_until(lambda: add_ephemeral(world) == ["debug"])
        compute_pod = copy.deepcopy(world.compute_pod() or {})
        compute_pod["status"]["ephemeralContainerStatuses"] = [
            {"name": "debug", "image": "b", "state": {"running": {}}}
        ]
        world.compute_server.store.update(PODS, compute_pod, name="web", namespace=COMPUTE_NAMESPACE, status=True)
        await wait_until(lambda: debug_containers(world).get("debug") == {"running": {}})
        await world.wait_settled()
        assert debug_containers(world) == {"debug": {"running": {}}, "root": {"waiting": waiting}}
    assert tenant_writes(world) == []


async def test_refused_ephemeral_container_is_shown_as_waiting(world: World) -> None:
    async with world.run_gateway():
        await start_pod(world)
        world.compute_server.fail(
            "PATCH", "/ephemeralcontainers", status=422, reason="Invalid"
        ).message = "no such thing"
        edit_pod(world, ephemeralContainers=[{"name": "debug", "image": "b"}])
        state = await wait_until(lambda: debug_containers(world).get("debug"))
        await world.wait_settled()
    assert state == {"waiting": {"reason": "ChangeNotForwarded", "message": "no such thing"}}


async def test_forbidden_ephemeral_container_does_not_fail_a_waiting_pod(world: World) -> None:
    async with world.run_gateway():
        world.create_pod(containers=main_container(envFrom=[{"configMapRef": {"name": "late"}}]))
        await wait_until(lambda: any(reason == "MandatoryConfigMapNotFound" for reason, _ in world.events()))
        edit_pod(world, ephemeralContainers=[{"name": "root", "image": "b", "securityContext": {"privileged": True}}])
        await world.wait_settled()
        assert world.pod_phase() == "Pending"
        world.tenant_server.store.create(CONFIG_MAPS, {"metadata": {"name": "late"}, "data": {"a": "b"}}, "default")
        await world.wait_forwarded()
        await wait_until(lambda: any(reason == "ChangeNotForwarded" for reason, _ in world.events()))
    assert add_ephemeral(world) == []


async def test_refused_ephemeral_container_does_not_block_later_ones(
    world: World,
) -> None:
    """The tenant cannot remove an ephemeral container, so it is sent with each later one."""
    bad, good = {"name": "bad", "image": "forbidden/tool"}, {"name": "good", "image": "busybox"}
    world.compute_server.refused_images = ("forbidden/",)
    async with world.run_gateway():
        await start_pod(world)
        edit_pod(world, ephemeralContainers=[bad])
        await wait_until(lambda: [one for one in world.events() if one[0] == "ChangeNotForwarded"])
        edit_pod(world, ephemeralContainers=[bad, good])
        await wait_until(lambda: add_ephemeral(world) == ["good"])
        await world.wait_settled()

    assert {message for reason, message in world.events() if reason == "ChangeNotForwarded"} == {
        'admission webhook "images" denied the request: forbidden/tool is not allowed'
    }
    assert world.pod_phase() == "Running"


async def test_resize_uses_the_subresource_and_is_counted(world: World) -> None:
    world.limit |= {"cpu": 3000}
    async with world.run_gateway():
        await start_pod(world, containers=main_container(**CPU))
        world.compute_server.fail("PATCH", f"{COMPUTE_NAMESPACE}/pods/web?", status=500)
        edit_pod(world, containers=main_container(resources={"requests": {"cpu": "2500m"}}))
        await wait_until(lambda: set_cpu(world) == "2500m")
        await wait_until(
            lambda: '"cpu":2500' in (world.compute_pod() or {})["metadata"]["annotations"]["vkgateway.io/requests"]
        )
        world.create_pod("other", containers=main_container(**CPU))
        await wait_until(lambda: any(reason == "WaitingForQuota" for reason, _ in world.events()))
        edit_pod(world, containers=main_container(resources={"requests": {"cpu": "500m"}}))
        await world.wait_forwarded("other")

    assert [request for request in world.compute_server.requests if "/resize" in request]
    assert tenant_writes(world) == []


async def test_compute_side_resize_stays_until_the_tenant_resizes(
    world: World,
) -> None:
    """Its webhooks may handle only new pods."""
    async with world.run_gateway():
        await start_pod(world, containers=main_container(**CPU))
        compute_pod = copy.deepcopy(world.compute_pod() or {})
        compute_pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100m"
        world.compute_server.store.update(PODS, compute_pod, name="web", namespace=COMPUTE_NAMESPACE)
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["metadata"]["labels"] = {"role": "leader"}
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        await wait_until(lambda: (world.compute_pod() or {})["metadata"]["labels"].get("role"))
        await world.wait_settled()
        assert set_cpu(world) == "100m"
        edit_pod(world, containers=main_container(resources={"requests": {"cpu": "2"}}))
        await wait_until(lambda: set_cpu(world) == "2")
        edit_pod(world, containers=main_container(**CPU))
        await wait_until(lambda: set_cpu(world) == "1")
    assert len([request for request in world.compute_server.requests if "/resize" in request]) == 2


async def test_resources_beyond_the_admitted_ones_are_reset(world: World) -> None:
    """A forwarded resize that could not be recorded."""
    async with world.run_gateway():
        await start_pod(world, containers=main_container(**CPU))
        compute_pod = copy.deepcopy(world.compute_pod() or {})
        compute_pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"
        world.compute_server.store.update(PODS, compute_pod, name="web", namespace=COMPUTE_NAMESPACE)
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["metadata"]["labels"] = {"role": "leader"}
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        await wait_until(lambda: set_cpu(world) == "1")


async def test_resize_beyond_the_limit_waits_for_capacity(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_forwarder, "_RETRY", 0.05)
    world.limit |= {"cpu": 2000}
    async with world.run_gateway() as sync:
        await start_pod(world, containers=main_container(**CPU))
        edit_pod(world, containers=main_container(resources={"requests": {"cpu": "3"}}))
        message = await wait_until(lambda: dict(world.events()).get("ResizeDeferred"))
        assert "needs more cpu 2 on a100.local; in use: cpu 1; limit: cpu 2" in message
        await world.wait_settled()
        assert set_cpu(world) == "1"
        sync.set_limit("a100.local", world.limit | {"cpu": 4000})
        await wait_until(lambda: set_cpu(world) == "3")


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (422, "Invalid"), (403, "Forbidden")])
async def test_refused_resize_is_reported_once_and_not_counted(world: World, status: int, reason: str) -> None:
    world.limit |= {"cpu": 3000}
    async with world.run_gateway():
        await start_pod(world, containers=main_container(**CPU))
        fault = world.compute_server.fail("PATCH", "/resize", status=status, reason=reason, times=9)
        edit_pod(world, containers=main_container(resources={"requests": {"cpu": "3"}}))
        await wait_until(lambda: any(one == "ChangeNotForwarded" for one, _ in world.events()))
        await world.wait_settled()
        assert fault.hits == 1
        world.create_pod("other", containers=main_container(**CPU))
        await world.wait_forwarded("other")


@pytest.mark.parametrize(("status", "reason"), [(422, "Invalid"), (403, "Forbidden"), (400, "BadRequest")])
async def test_refused_spec_change_does_not_block_labels(world: World, status: int, reason: str) -> None:
    """The server, pod security or a webhook refuses it; a retry would not help."""
    async with world.run_gateway():
        await start_pod(world)
        world.compute_server.fail("PATCH", f"{COMPUTE_NAMESPACE}/pods/web", status=status, reason=reason)
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["spec"]["containers"][0]["image"] = "busybox:2"
        pod["metadata"]["labels"] = {"new": "1"}
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        await wait_until(lambda: (world.compute_pod() or {})["metadata"]["labels"].get("new") == "1")
        await world.wait_settled()

    patches = [
        one
        for one in world.compute_server.requests
        if one.startswith("PATCH") and f"{COMPUTE_NAMESPACE}/pods/web" in one
    ]
    assert len(patches) == 2
    assert any(reason == "ChangeNotForwarded" for reason, _ in world.events())


@pytest.mark.parametrize("words", ['cannot patch resource "pods"', "not yet ready to handle request"])
async def test_transient_refusal_of_a_change_is_retried(world: World, words: str) -> None:
    async with world.run_gateway():
        await start_pod(world)
        fault = world.compute_server.fail("PATCH", f"{COMPUTE_NAMESPACE}/pods/web", status=403, reason="Forbidden")
        fault.message = f'pods "web" is forbidden: {words}'
        edit_pod(world, activeDeadlineSeconds=60)
        await wait_until(lambda: (world.compute_pod() or {})["spec"].get("activeDeadlineSeconds") == 60)
        await world.wait_settled()
    assert fault.hits == 1
    assert not any(reason == "ChangeNotForwarded" for reason, _ in world.events())


async def test_just_deleted_compute_pod_does_not_count_as_missing_resize_support(world: World) -> None:
    world.limit |= {"cpu": 3000}
    async with world.run_gateway():
        await start_pod(world, containers=main_container(**CPU))
        fault = world.compute_server.fail("PATCH", "/resize", status=404, reason="NotFound")
        fault.message = 'pods "web" not found'
        edit_pod(world, containers=main_container(resources={"requests": {"cpu": "3"}}))
        await wait_until(lambda: set_cpu(world) == "3")
        await world.wait_settled()
    assert fault.hits == 1
    assert not any(reason == "ChangeNotForwarded" for reason, _ in world.events())


async def test_changes_during_a_virtual_node_outage_are_forwarded(world: World) -> None:
    """The tenant's node controller marks pods of an unreachable node as not ready."""
    async with world.run_gateway():
        await start_pod(world)
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}, {"type": "own", "status": "True"}]
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default", status=True)
        await wait_until(
            lambda: {"type": "Ready", "status": "True"} in (world.tenant_pod() or {})["status"].get("conditions", [])
        )
    kinds = [entry["type"] for entry in (world.tenant_pod() or {})["status"]["conditions"]]
    assert sorted(kinds) == ["Ready", "own"]


async def test_concurrent_status_conditions_of_others_are_retained(world: World) -> None:
    def conditions() -> dict[str, str]:
        found = (world.tenant_pod() or {})["status"].get("conditions", [])
        return {entry["type"]: entry["status"] for entry in found if entry["type"] != "PodScheduled"}

    async with world.run_gateway():
        await start_pod(world, readinessGates=[{"conditionType": "mine"}])
        await wait_until(lambda: conditions() == {"Ready": "True"})
        await world.wait_settled()
        on_its_way = world.tenant_server.hold("PATCH", "/pods/web/status")
        requests_before = len(world.tenant_server.requests)
        compute_pod = copy.deepcopy(world.compute_pod() or {})
        compute_pod["status"]["conditions"].append({"type": "ContainersReady", "status": "True"})
        compute_pod["status"]["podIPs"] = [{"ip": "10.1.2.4"}]
        world.compute_server.store.update(PODS, compute_pod, name="web", namespace=COMPUTE_NAMESPACE, status=True)
        await world.tenant_server.until(
            lambda: any("/status" in request for request in world.tenant_server.requests[requests_before:])
        )
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["status"]["conditions"].append({"type": "mine", "status": "True"})
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default", status=True)
        on_its_way.set()
        await wait_until(lambda: conditions() == {"Ready": "True", "ContainersReady": "True", "mine": "True"})
        compute_pod = copy.deepcopy(world.compute_pod() or {})
        compute_pod["status"] |= {"podIPs": [{"ip": "10.1.2.5"}], "conditions": compute_pod["status"]["conditions"][:1]}
        world.compute_server.store.update(PODS, compute_pod, name="web", namespace=COMPUTE_NAMESPACE, status=True)
        await wait_until(lambda: conditions() == {"Ready": "True", "mine": "True"})
    assert (world.tenant_pod() or {})["status"]["podIPs"] == [{"ip": "10.1.2.5"}]


async def test_changes_are_forwarded_although_a_webhook_refuses_status(world: World) -> None:
    async with world.run_gateway():
        world.create_pod()
        await world.wait_forwarded()
        world.tenant_server.fail("PATCH", "/status", status=403, reason="Forbidden", times=10_000)
        world.run_pod()
        edit_pod(world, activeDeadlineSeconds=60)
        await wait_until(lambda: (world.compute_pod() or {})["spec"].get("activeDeadlineSeconds") == 60)
        world.create_pod("other")
        await world.wait_forwarded("other")
        world.tenant_server.heal()
        await wait_until(lambda: world.pod_phase() == "Running")


async def test_observed_generation_is_mirrored(world: World) -> None:
    def observed() -> Any:
        return (world.tenant_pod() or {})["status"].get("observedGeneration")

    def kubelet_sees() -> None:
        pod = copy.deepcopy(world.compute_pod() or {})
        pod["status"]["observedGeneration"] = pod["metadata"]["generation"]
        world.compute_server.store.update(PODS, pod, name="web", namespace=COMPUTE_NAMESPACE, status=True)

    async with world.run_gateway():
        await start_pod(world)
        kubelet_sees()
        await wait_until(lambda: observed() == 1)
        edit_pod(world, activeDeadlineSeconds=60)
        await wait_until(lambda: (world.compute_pod() or {})["spec"].get("activeDeadlineSeconds") == 60)
        await world.wait_settled()
        assert observed() == 1
        kubelet_sees()
        await wait_until(lambda: observed() == 2)
    assert COMPUTE_NODE not in str(world.tenant_pod())
