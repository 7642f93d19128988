"""A tenant's limits hold whatever it writes to its own cluster, because compute pods are counted."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.fakes.clock import AdjustedClock
from tests.support.waiting import wait_until
from tests.unit.sync.test_token_forwarding import TOKEN_VOLUME
from tests.unit.sync.world import NODE, World, start_world
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS, PODS, SECRETS, SERVICE_ACCOUNTS, Resource

pytestmark = pytest.mark.usefixtures("told_soon")

GPUS: dict[str, Any] = {
    "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
    "terminationGracePeriodSeconds": 31_536_000,
}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


def is_held(world: World) -> bool:
    return any(reason == "WaitingForQuota" for reason, _ in world.events())


def is_deleting(world: World, name: str) -> bool:
    pod = world.compute_pod(name)
    return pod is not None and "deletionTimestamp" in pod["metadata"]


async def test_pod_marked_final_by_its_tenant_uses_capacity_until_its_end(world: World) -> None:
    world.create_pod("first", **GPUS)
    async with world.run_gateway():
        await world.wait_forwarded("first")
        world.run_pod("first")
        await wait_until(lambda: world.pod_phase("first") == "Running")
        pod = copy.deepcopy(world.tenant_pod("first"))
        assert pod is not None
        pod["status"]["phase"] = "Succeeded"
        world.tenant_server.store.update(PODS, pod, name="first", namespace="default", status=True)
        await wait_until(lambda: is_deleting(world, "first"))

        world.create_pod("second", **GPUS)
        await wait_until(lambda: is_held(world))
        await world.wait_settled()
        assert world.compute_pod("second") is None

        world.end_pod("first")
        await world.wait_forwarded("second")


async def test_force_deleted_pod_uses_capacity_until_its_end(world: World) -> None:
    world.create_pod("first", **GPUS)
    async with world.run_gateway():
        await world.wait_forwarded("first")
        world.run_pod("first")
        world.delete_pod("first", grace=0)
        await wait_until(lambda: is_deleting(world, "first"))

        world.create_pod("second", **GPUS)
        await wait_until(lambda: is_held(world))
        await world.wait_settled()
        assert world.compute_pod("second") is None

        world.end_pod("first", code=137)
        await world.wait_forwarded("second")


async def test_pod_resized_while_waiting_is_counted_with_its_current_requests(world: World) -> None:
    world.limit = world.limit | {"cpu": 4000}
    small: dict[str, Any] = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    world.create_pod("first", containers=[small | {"envFrom": [{"configMapRef": {"name": "late"}}]}])
    async with world.run_gateway():
        await wait_until(lambda: any(reason == "MandatoryConfigMapNotFound" for reason, _ in world.events()))
        pod = copy.deepcopy(world.tenant_pod("first") or {})
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "64"}}
        world.tenant_server.store.update(PODS, pod, name="first", namespace="default")
        world.tenant_server.store.create(CONFIG_MAPS, {"metadata": {"name": "late"}}, "default")
        await wait_until(lambda: is_held(world))
        assert world.compute_pod("first") is None

        pod = copy.deepcopy(world.tenant_pod("first") or {})
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
        world.tenant_server.store.update(PODS, pod, name="first", namespace="default")
        below = await world.wait_forwarded("first")
        assert below["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "3"}}
        world.create_pod("second", containers=[small | {"resources": {"requests": {"cpu": "2"}}}])
        await wait_until(lambda: any("cpu 2 on" in message for _, message in world.events()))
        assert world.compute_pod("second") is None


@pytest.mark.parametrize(
    "lie",
    [
        {"spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"cpu": "1"}}}]}},
        {"spec": {"containers": [{"name": "main", "image": "x"}], "runtimeClassName": "other"}},
        {"metadata": {"namespace": "other"}},
        {"metadata": {"name": "other"}},
    ],
    ids=["amounts", "forbidden", "namespace", "name"],
)
async def test_unvalidated_change_is_never_forwarded(
    world: World, lie: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manipulated API server of the tenant may answer differently on each request."""
    asked = 0

    async def get(self: Client, resource: Resource, name: str, **more: Any) -> bytes:
        nonlocal asked
        answer = await original_get(self, resource, name, **more)
        if resource is not PODS or self.name != "tenant":
            return answer
        asked += 1
        if asked == 1 or ("spec" in lie and asked % 2):
            return answer
        pod = msgspec.json.decode(answer)
        return msgspec.json.encode(pod | {part: pod[part] | value for part, value in lie.items()})

    original_get = Client.get
    monkeypatch.setattr(Client, "get", get)
    world.create_pod(
        "first", containers=[{"name": "main", "image": "x", "env": [{"name": "L", "value": "x" * 100_000}]}]
    )
    async with world.run_gateway():
        await wait_until(lambda: asked > 3)
        await world.wait_settled()
        assert world.compute_pod("first") is None
        assert not world.compute_server.store.find(PODS, "other", "alpha--default")


@pytest.mark.parametrize("lie", ["after it was judged", "always, and no generation tells"])
async def test_uncounted_resize_is_never_forwarded(world: World, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests may change between the read that is admitted and the read that is forwarded."""
    lying, asked = False, 0

    async def get(self: Client, resource: Resource, name: str, **more: Any) -> bytes:
        nonlocal asked
        answer = await original_get(self, resource, name, **more)
        if resource is not PODS or self.name != "tenant" or not lying:
            return answer
        asked += 1
        if lie == "after it was judged" and asked == 1:
            return answer
        pod = msgspec.json.decode(answer)
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "64"}}
        return msgspec.json.encode(pod)

    def cpu() -> Any:
        return (world.compute_pod() or {})["spec"]["containers"][0]["resources"]["requests"]["cpu"]

    original_get = Client.get
    monkeypatch.setattr(Client, "get", get)
    world.limit |= {"cpu": 4000}
    async with world.run_gateway():
        large = {"name": "main", "image": "x", "env": [{"name": "L", "value": "x" * 100_000}]}
        world.create_pod(containers=[large | {"resources": {"requests": {"cpu": "1"}}}])
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        await world.wait_settled()
        lying = True
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["metadata"]["labels"] = {"new": "1"}
        if lie == "after it was judged":
            pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        await wait_until(lambda: (world.compute_pod() or {})["metadata"]["labels"].get("new") == "1")
        await world.wait_settled()
        assert cpu() == "1"
        lying = False
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        await wait_until(lambda: cpu() == "3")


async def test_running_pods_are_counted_before_any_admission_after_a_restart(world: World) -> None:
    world.create_pod("web-1", **GPUS)
    async with world.run_gateway():
        await world.wait_forwarded("web-1")
        world.run_pod("web-1")
        world.delete_pod("web-1", grace=0)
        await wait_until(lambda: is_deleting(world, "web-1"))
    world.create_pod("web-0", **GPUS)
    async with world.run_gateway():
        await wait_until(lambda: is_held(world))
        await world.wait_settled()
        assert world.compute_pod("web-0") is None
        world.end_pod("web-1", code=137)
        await world.wait_forwarded("web-0")


async def test_created_pod_not_shown_yet_counts_after_its_deletion(world: World) -> None:
    """The pod was force-deleted just after its creation, before the watch shows it."""
    world.create_pod("first", **GPUS)
    async with world.run_gateway() as sync:
        await world.wait_forwarded("first")
        assert world.link is not None
        shown = world.link.pods._by_tenant["alpha"]
        await wait_until(lambda: shown)
        sync.scope.created_until[str((world.tenant_pod("first") or {})["metadata"]["uid"])] = time.time() + 30
        shown.clear()
        world.delete_pod("first", grace=0)
        await wait_until(lambda: world.tenant_pod("first") is None)

        world.create_pod("second", **GPUS)
        await wait_until(lambda: is_held(world))
        assert world.compute_pod("second") is None


async def test_tokens_of_running_pods_are_refreshed_after_a_policy_change() -> None:
    clock = AdjustedClock()
    async with start_world(clock=clock) as world:
        world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
        root = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}
        world.tenant_server.store.create(CONFIG_MAPS, root, "default")
        world.create_pod(**TOKEN_VOLUME)
        async with world.run_gateway() as sync:
            await world.wait_forwarded()
            world.run_pod()
            await wait_until(lambda: world.pod_phase() == "Running")
            await world.wait_settled()
            first = copy.deepcopy(world.compute_server.store.all(SECRETS)[0]["data"])
            assert world.link is not None
            sync.update_tenant(
                sync.scope.tenant, links={"local": world.link}, bindings={NODE: world.make_binding(world.link)}
            )
            await world.wait_settled()
            clock.passed = 3000.0
            sync.resync()
            await wait_until(lambda: world.compute_server.store.all(SECRETS)[0]["data"] != first)


async def test_tokens_are_refreshed_while_a_resize_waits() -> None:
    clock = AdjustedClock()
    async with start_world(clock=clock) as world:
        world.limit |= {"cpu": 2000}
        world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
        root = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}
        world.tenant_server.store.create(CONFIG_MAPS, root, "default")
        main = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
        world.create_pod(containers=[main], **TOKEN_VOLUME)
        async with world.run_gateway() as sync:
            await world.wait_forwarded()
            world.run_pod()
            await wait_until(lambda: world.pod_phase() == "Running")
            first = copy.deepcopy(world.compute_server.store.all(SECRETS)[0]["data"])
            pod = copy.deepcopy(world.tenant_pod() or {})
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "3"
            world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
            await wait_until(lambda: "ResizeDeferred" in dict(world.events()))
            await world.wait_settled()
            clock.passed = 3000.0
            sync.resync()
            await wait_until(lambda: world.compute_server.store.all(SECRETS)[0]["data"] != first)


async def test_large_pods_are_read_again_and_run_like_others(world: World) -> None:
    large: dict[str, Any] = {
        "containers": [{**GPUS["containers"][0], "env": [{"name": "LARGE", "value": "x" * 100_000}]}]
    }
    world.create_pod("first", **GPUS)
    async with world.run_gateway() as sync:
        await world.wait_forwarded("first")
        world.run_pod("first")
        world.create_pod("second", **large)
        await wait_until(lambda: is_held(world))
        assert sync.scope.cache.pods.store["default", "second"].raw is None
        world.end_pod("first")
        below = await world.wait_forwarded("second")

    assert below["spec"]["containers"][0]["env"][-1] == large["containers"][0]["env"][0]


async def test_pod_of_the_same_name_is_not_read_for_a_dropped_one(world: World) -> None:
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.scope.cache.pods.is_complete)
        world.create_pod("web", node="elsewhere")
        await wait_until(lambda: ("default", "web") in sync.scope.cache.pods.store)
        view = sync.scope.cache.pods.store["default", "web"]
        view.raw = None
        view.metadata.uid = "an-earlier-one"
        with pytest.raises(errors.Conflict):
            await sync.reconcilers.executor.mirror.read_pod(view)


async def test_manually_bound_pod_that_does_not_fit_is_rejected(world: World) -> None:
    world.limit |= {"cpu": 4000}
    small: dict[str, Any] = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "3"}}}
    world.create_pod("first", containers=[small])
    async with world.run_gateway():
        await world.wait_forwarded("first")
        world.create_pod("second", by_hand=True, containers=[small])
        await wait_until(lambda: world.pod_phase("second") == "Failed")
        await world.wait_settled()
        status = (world.tenant_pod("second") or {})["status"]
        message = "Node didn't have enough resource: cpu, requested: 3000, used: 3000, capacity: 4000"
        assert (status["reason"], status["message"]) == ("OutOfcpu", f"Pod was rejected: {message}")
        assert "OutOfcpu" in [reason for reason, _ in world.events()]
        assert world.compute_pod("second") is None

        world.run_pod("first")
        world.end_pod("first")
        await wait_until(lambda: world.pod_phase("first") == "Succeeded")
        world.create_pod("third", by_hand=True, containers=[small])
        await world.wait_forwarded("third")
        assert world.pod_phase("second") == "Failed"


async def test_manually_bound_governed_pod_is_rejected_beyond_the_limit_and_waits_within(world: World) -> None:
    pod = {"containers": GPUS["containers"]}
    large = copy.deepcopy(pod)
    large["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "9"
    world.create_pod("large", by_hand=True, **large)
    async with world.run_gateway():
        await wait_until(lambda: world.pod_phase("large") == "Failed")
        assert (world.tenant_pod("large") or {})["status"]["reason"] == "OutOfnvidia.com/gpu"
        world.create_pod("first", by_hand=True, **pod)
        await world.wait_forwarded("first")
        world.create_pod("second", by_hand=True, **pod)
        await wait_until(lambda: world.pod_phase("second") == "Failed")
        assert world.compute_pod("second") is None
