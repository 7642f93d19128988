"""A tenant's limits hold whatever it writes above: what counts is what runs below."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.unit.sync.test_dependencies import TOKEN_VOLUME
from tests.unit.sync.world import NODE, World, until, world
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS, PODS, SECRETS, SERVICE_ACCOUNTS, Resource

pytestmark = pytest.mark.usefixtures("told_soon")

GPUS: dict[str, Any] = {
    "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
    "terminationGracePeriodSeconds": 31_536_000,
}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def held(here: World) -> bool:
    return any(reason == "WaitingForQuota" for reason, _ in here.events())


def going(here: World, name: str) -> bool:
    pod = here.compute_pod(name)
    return pod is not None and "deletionTimestamp" in pod["metadata"]


async def test_a_pod_that_its_tenant_calls_final_uses_its_room_until_it_has_ended(here: World) -> None:
    here.create("first", **GPUS)
    async with here.gateway():
        await here.forwarded("first")
        here.run("first")
        await until(lambda: here.phase("first") == "Running")
        pod = copy.deepcopy(here.tenant_pod("first"))
        assert pod is not None
        pod["status"]["phase"] = "Succeeded"
        here.above.store.update(PODS, pod, name="first", namespace="default", status=True)
        await until(lambda: going(here, "first"))

        here.create("second", **GPUS)
        await until(lambda: held(here))
        await here.settled()
        assert here.compute_pod("second") is None

        here.end("first")
        await here.forwarded("second")


async def test_a_pod_removed_by_force_uses_its_room_until_it_has_ended(here: World) -> None:
    here.create("first", **GPUS)
    async with here.gateway():
        await here.forwarded("first")
        here.run("first")
        here.delete("first", grace=0)
        await until(lambda: going(here, "first"))

        here.create("second", **GPUS)
        await until(lambda: held(here))
        await here.settled()
        assert here.compute_pod("second") is None

        here.end("first", code=137)
        await here.forwarded("second")


async def test_a_pod_that_was_resized_while_it_waited_counts_with_what_it_asks_for(here: World) -> None:
    here.limit = here.limit | {"cpu": 4000}
    small: dict[str, Any] = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    here.create("first", containers=[small | {"envFrom": [{"configMapRef": {"name": "late"}}]}])
    async with here.gateway():
        await until(lambda: any(reason == "MandatoryConfigMapNotFound" for reason, _ in here.events()))
        pod = copy.deepcopy(here.tenant_pod("first") or {})
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "64"}}
        here.above.store.update(PODS, pod, name="first", namespace="default")
        here.above.store.create(CONFIG_MAPS, {"metadata": {"name": "late"}}, "default")
        await until(lambda: held(here))
        assert here.compute_pod("first") is None

        pod = copy.deepcopy(here.tenant_pod("first") or {})
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
        here.above.store.update(PODS, pod, name="first", namespace="default")
        below = await here.forwarded("first")
        assert below["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "3"}}
        here.create("second", containers=[small | {"resources": {"requests": {"cpu": "2"}}}])
        await until(lambda: any("cpu 2 on" in message for _, message in here.events()))
        assert here.compute_pod("second") is None


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
async def test_what_was_not_judged_never_goes_down(
    here: World, lie: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server in the place of the tenant's API server need not say the same twice."""
    asked = 0

    async def get(self: Client, resource: Resource, name: str, **more: Any) -> bytes:
        nonlocal asked
        answer = await honest(self, resource, name, **more)
        if resource is not PODS or self.name != "tenant":
            return answer
        asked += 1
        if asked == 1 or ("spec" in lie and asked % 2):
            return answer
        told = msgspec.json.decode(answer)
        return msgspec.json.encode(told | {part: told[part] | said for part, said in lie.items()})

    honest = Client.get
    monkeypatch.setattr(Client, "get", get)
    here.create("first", containers=[{"name": "main", "image": "x", "env": [{"name": "L", "value": "x" * 100_000}]}])
    async with here.gateway():
        await until(lambda: asked > 3)
        await here.settled()
        assert here.compute_pod("first") is None
        assert not here.below.store.find(PODS, "other", "alpha--default")


@pytest.mark.parametrize("lie", ["after it was judged", "always, and no generation tells"])
async def test_a_resize_that_was_not_counted_never_goes_down(
    here: World, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the read by which a resize is judged and that by which it goes down, it may have become another."""
    lying, asked = False, 0

    async def get(self: Client, resource: Resource, name: str, **more: Any) -> bytes:
        nonlocal asked
        answer = await honest(self, resource, name, **more)
        if resource is not PODS or self.name != "tenant" or not lying:
            return answer
        asked += 1
        if lie == "after it was judged" and asked == 1:
            return answer
        told = msgspec.json.decode(answer)
        told["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "64"}}
        return msgspec.json.encode(told)

    def cpu() -> Any:
        return (here.compute_pod() or {})["spec"]["containers"][0]["resources"]["requests"]["cpu"]

    honest = Client.get
    monkeypatch.setattr(Client, "get", get)
    here.limit |= {"cpu": 4000}
    async with here.gateway():
        large = {"name": "main", "image": "x", "env": [{"name": "L", "value": "x" * 100_000}]}
        here.create(containers=[large | {"resources": {"requests": {"cpu": "1"}}}])
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        await here.settled()
        lying = True
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["metadata"]["labels"] = {"new": "1"}
        if lie == "after it was judged":
            pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
        here.above.store.update(PODS, pod, name="web", namespace="default")
        await until(lambda: (here.compute_pod() or {})["metadata"]["labels"].get("new") == "1")
        await here.settled()
        assert cpu() == "1"
        lying = False
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
        here.above.store.update(PODS, pod, name="web", namespace="default")
        await until(lambda: cpu() == "3")


async def test_what_runs_counts_before_anything_is_admitted_by_a_gateway_that_starts(here: World) -> None:
    here.create("web-1", **GPUS)
    async with here.gateway():
        await here.forwarded("web-1")
        here.run("web-1")
        here.delete("web-1", grace=0)
        await until(lambda: going(here, "web-1"))
    here.create("web-0", **GPUS)
    async with here.gateway():
        await until(lambda: held(here))
        await here.settled()
        assert here.compute_pod("web-0") is None
        here.end("web-1", code=137)
        await here.forwarded("web-0")


async def test_a_pod_whose_creation_shows_late_counts_though_it_is_gone_above(here: World) -> None:
    """Removed by force the moment it was sent below, before the watch tells of it."""
    here.create("first", **GPUS)
    async with here.gateway() as sync:
        await here.forwarded("first")
        assert here.link is not None
        shown = here.link.pods._by_tenant["alpha"]
        await until(lambda: shown)
        sync.pods.executor.forwarder.created_until[str((here.tenant_pod("first") or {})["metadata"]["uid"])] = (
            time.time() + 30
        )
        shown.clear()
        here.delete("first", grace=0)
        await until(lambda: here.tenant_pod("first") is None)

        here.create("second", **GPUS)
        await until(lambda: held(here))
        assert here.compute_pod("second") is None


async def test_tokens_of_running_pods_are_refreshed_also_after_a_change_of_the_platform() -> None:
    moved = 0.0
    async with world(clock=lambda: time.time() + moved) as here:
        here.above.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
        root = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}
        here.above.store.create(CONFIG_MAPS, root, "default")
        here.create(**TOKEN_VOLUME)
        async with here.gateway() as sync:
            await here.forwarded()
            here.run()
            await until(lambda: here.phase() == "Running")
            await here.settled()
            first = copy.deepcopy(here.below.store.all(SECRETS)[0]["data"])
            assert here.link is not None
            sync.update_tenant(sync.tenant, links={"local": here.link}, bindings={NODE: here.binding(here.link)})
            await here.settled()
            moved = 3000.0
            sync.enqueue_all()
            await until(lambda: here.below.store.all(SECRETS)[0]["data"] != first)


async def test_tokens_are_refreshed_while_a_resize_waits_for_room() -> None:
    moved = 0.0
    async with world(clock=lambda: time.time() + moved) as here:
        here.limit |= {"cpu": 2000}
        here.above.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
        root = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}
        here.above.store.create(CONFIG_MAPS, root, "default")
        main = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
        here.create(containers=[main], **TOKEN_VOLUME)
        async with here.gateway() as sync:
            await here.forwarded()
            here.run()
            await until(lambda: here.phase() == "Running")
            first = copy.deepcopy(here.below.store.all(SECRETS)[0]["data"])
            pod = copy.deepcopy(here.tenant_pod() or {})
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "3"
            here.above.store.update(PODS, pod, name="web", namespace="default")
            await until(lambda: "ResizeDeferred" in dict(here.events()))
            await here.settled()
            moved = 3000.0
            sync.enqueue_all()
            await until(lambda: here.below.store.all(SECRETS)[0]["data"] != first)


async def test_large_pods_are_not_kept_while_they_are_held_and_run_like_others(here: World) -> None:
    large: dict[str, Any] = {
        "containers": [{**GPUS["containers"][0], "env": [{"name": "LARGE", "value": "x" * 100_000}]}]
    }
    here.create("first", **GPUS)
    async with here.gateway() as sync:
        await here.forwarded("first")
        here.run("first")
        here.create("second", **large)
        await until(lambda: held(here))
        assert sync.cache.pods.store["default", "second"].raw is None
        here.end("first")
        below = await here.forwarded("second")

    assert below["spec"]["containers"][0]["env"][-1] == large["containers"][0]["env"][0]


async def test_a_namesake_is_not_taken_for_a_pod_that_was_not_kept(here: World) -> None:
    async with here.gateway() as sync:
        await until(lambda: sync.cache.pods.is_complete)
        here.create("web", node="elsewhere")
        await until(lambda: ("default", "web") in sync.cache.pods.store)
        view = sync.cache.pods.store["default", "web"]
        view.raw = None
        view.metadata.uid = "an-earlier-one"
        with pytest.raises(errors.Conflict):
            await sync.pods.executor.mirror.read_pod(view)


async def test_a_pod_put_by_hand_where_it_does_not_fit_is_rejected_as_by_a_kubelet(here: World) -> None:
    here.limit |= {"cpu": 4000}
    small: dict[str, Any] = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "3"}}}
    here.create("first", containers=[small])
    async with here.gateway():
        await here.forwarded("first")
        here.create("second", by_hand=True, containers=[small])
        await until(lambda: here.phase("second") == "Failed")
        await here.settled()
        status = (here.tenant_pod("second") or {})["status"]
        told = "Node didn't have enough resource: cpu, requested: 3000, used: 3000, capacity: 4000"
        assert (status["reason"], status["message"]) == ("OutOfcpu", f"Pod was rejected: {told}")
        assert "OutOfcpu" in [reason for reason, _ in here.events()]
        assert here.compute_pod("second") is None

        here.run("first")
        here.end("first")
        await until(lambda: here.phase("first") == "Succeeded")
        here.create("third", by_hand=True, containers=[small])
        await here.forwarded("third")
        assert here.phase("second") == "Failed"


async def test_a_pod_with_devices_put_by_hand_is_rejected_beyond_the_limit_and_waits_within(here: World) -> None:
    pod = {"containers": GPUS["containers"]}
    large = copy.deepcopy(pod)
    large["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "9"
    here.create("large", by_hand=True, **large)
    async with here.gateway():
        await until(lambda: here.phase("large") == "Failed")
        assert (here.tenant_pod("large") or {})["status"]["reason"] == "OutOfnvidia.com/gpu"
        here.create("first", by_hand=True, **pod)
        await here.forwarded("first")
        here.create("second", by_hand=True, **pod)
        await until(lambda: here.phase("second") == "Failed")
        assert here.compute_pod("second") is None
