"""ConfigMaps, Secrets, tokens and namespaces: created before the pod, updated while it runs, deleted after it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, start_world
from vkgateway.kinds.configs import reconciler as copies
from vkgateway.kube.resources import CONFIG_MAPS, PODS, SECRETS

USES_SETTINGS: dict[str, Any] = {"volumes": [{"name": "settings", "configMap": {"name": "settings"}}]}
USES_KEY: dict[str, Any] = {
    "containers": [
        {
            "name": "main",
            "image": "busybox",
            "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}}],
        }
    ]
}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


def set_config(world: World, value: str) -> None:
    found = world.tenant_server.store.find(CONFIG_MAPS, "settings", "default")
    document = {"metadata": {"name": "settings"}, "data": {"colour": value}}
    if found is None:
        world.tenant_server.store.create(CONFIG_MAPS, document, "default")
    else:
        world.tenant_server.store.update(CONFIG_MAPS, document, name="settings", namespace="default")


def copied_data(world: World) -> str:
    found = world.compute_server.store.find(CONFIG_MAPS, "settings", COMPUTE_NAMESPACE)
    return str(found["data"]["colour"]) if found is not None else ""


def is_forwarded(pod: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Return reason and message of the pod's condition vkgateway.io/Forwarded."""
    conditions = ((pod or {}).get("status") or {}).get("conditions") or ()
    return next(
        ((one["reason"], one["message"]) for one in conditions if one["type"] == "vkgateway.io/Forwarded"), None
    )


async def test_missing_config_map_holds_the_pod_with_a_reason(world: World) -> None:
    world.create_pod(**USES_SETTINGS)
    async with world.run_gateway():
        await wait_until(lambda: any('configmap "settings"' in message for _, message in world.events()))
        assert world.compute_pod() is None
        set_config(world, "red")
        await world.wait_forwarded()

    assert copied_data(world) == "red"


async def test_optional_config_map_may_be_missing(world: World) -> None:
    world.create_pod(volumes=[{"name": "settings", "configMap": {"name": "settings", "optional": True}}])
    async with world.run_gateway():
        await world.wait_forwarded()
        set_config(world, "late")
        await wait_until(lambda: copied_data(world) == "late")


async def test_missing_objects_are_events_with_virtual_kubelet_reasons(world: World) -> None:
    """Reasons of github.com/virtual-kubelet/virtual-kubelet/internal/podutils; each kind has its own event."""
    needed = [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}]
    spared = [{"configMapRef": {"name": "c", "optional": True}}, {"secretRef": {"name": "d", "optional": True}}]
    world.create_pod("waits", containers=[{"name": "main", "image": "x", "envFrom": needed}])
    world.create_pod("starts", containers=[{"name": "main", "image": "x", "envFrom": spared}])
    async with world.run_gateway():
        await world.wait_forwarded("starts")
        await wait_until(lambda: len(world.events()) == 4)
        await wait_until(
            lambda: (
                is_forwarded(world.tenant_pod("waits"))
                == ("MandatoryConfigMapNotFound", 'configmap "a" not found, secret "b" not found')
            )
        )
        assert world.compute_pod("waits") is None

    assert set(world.events()) == {
        ("MandatoryConfigMapNotFound", 'configmap "a" not found'),
        ("MandatorySecretNotFound", 'secret "b" not found'),
        ("OptionalConfigMapNotFound", 'configmap "c" not found'),
        ("OptionalSecretNotFound", 'secret "d" not found'),
    }


async def test_existing_optional_config_map_causes_no_event(world: World) -> None:
    world.create_pod(volumes=[{"name": "settings", "configMap": {"name": "settings", "optional": True}}])
    set_config(world, "red")
    async with world.run_gateway():
        await world.wait_forwarded()
        await world.wait_settled()

    assert world.events() == []


async def test_optional_config_map_may_appear_during_pod_creation(world: World) -> None:
    world.create_pod(volumes=[{"name": "settings", "configMap": {"name": "settings", "optional": True}}])
    making = world.compute_server.hold("POST", f"{COMPUTE_NAMESPACE}/pods")
    world.workers = 16
    async with world.run_gateway():
        await wait_until(
            lambda: any(
                request.startswith(f"POST /api/v1/namespaces/{COMPUTE_NAMESPACE}/pods")
                for request in world.compute_server.requests
            )
        )
        set_config(world, "late")
        await wait_until(lambda: copied_data(world) == "late")
        making.set()
        await world.wait_forwarded()


async def test_optional_config_map_may_appear_before_its_compute_namespace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create_pod(volumes=[{"name": "settings", "configMap": {"name": "settings", "optional": True}}])
    async with world.run_gateway() as sync:
        await world.wait_forwarded()
        # The watch of the compute cluster may lag behind the write.
        monkeypatch.setattr(sync.scope.links["local"].namespaces, "find_namespace", lambda *_: None)
        set_config(world, "late")
        await wait_until(lambda: copied_data(world) == "late")


async def test_optional_config_map_may_appear_for_a_pod_from_before_the_gateway(world: World) -> None:
    world.create_pod(volumes=[{"name": "settings", "configMap": {"name": "settings", "optional": True}}])
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
    async with world.run_gateway():
        await world.wait_settled()
        set_config(world, "late")
        await wait_until(lambda: copied_data(world) == "late")


async def test_updates_are_copied_while_a_pod_refers_to_the_object(world: World) -> None:
    set_config(world, "red")
    world.create_pod(**USES_SETTINGS)
    async with world.run_gateway():
        await world.wait_forwarded()
        set_config(world, "blue")
        await wait_until(lambda: copied_data(world) == "blue")


async def test_updates_during_an_outage_are_copied(world: World) -> None:
    set_config(world, "red")
    world.create_pod(**USES_SETTINGS)
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
    set_config(world, "blue")
    async with world.run_gateway():
        await wait_until(lambda: copied_data(world) == "blue")


async def test_updates_in_the_first_list_are_copied(world: World) -> None:
    set_config(world, "red")
    world.create_pod(**USES_SETTINGS)
    async with world.run_gateway() as sync:
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        # The tenant's pods can be listed again only after its ConfigMaps.
        pods = world.tenant_server.fail("GET", "/api/v1/pods", status=503, times=1000)
        world.tenant_server.end_watches()
        await wait_until(lambda: not sync.scope.cache.pods.is_complete)
        set_config(world, "blue")
        written = world.tenant_server.store.get(CONFIG_MAPS, "settings", "default")["metadata"]["resourceVersion"]
        known = sync.scope.cache.sources["configmaps"].store
        await wait_until(lambda: known["default", "settings"].metadata.resource_version == written)
        await world.wait_settled()
        assert copied_data(world) == "red"
        world.tenant_server.heal()
        await wait_until(lambda: copied_data(world) == "blue")
    assert pods.hits


async def test_unreferenced_objects_are_not_copied(world: World) -> None:
    world.tenant_server.store.create(SECRETS, {"metadata": {"name": "private"}, "data": {}}, "default")
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        await world.wait_settled()

    assert world.compute_server.store.all(SECRETS) == []


async def test_objects_of_a_refused_pod_are_not_copied(world: World) -> None:
    world.tenant_server.store.create(SECRETS, {"metadata": {"name": "key"}, "data": {}}, "default")
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.create_pod("bad", hostNetwork=True, **USES_KEY)
        await wait_until(lambda: world.pod_phase("bad") == "Failed")
        await world.wait_settled()

    assert world.compute_server.store.all(SECRETS) == []


async def test_tenant_config_map_cannot_replace_its_root_certificate(world: World) -> None:
    def root() -> Any:
        return (world.compute_server.store.find(CONFIG_MAPS, "vkgateway-root-ca.crt", COMPUTE_NAMESPACE) or {}).get(
            "data"
        )

    for name in ("kube-root-ca.crt", "vkgateway-root-ca.crt"):
        world.tenant_server.store.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"ca.crt": name}}, "default")
    world.create_pod(volumes=[{"name": "ca", "configMap": {"name": "kube-root-ca.crt"}}])
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        pod = copy.deepcopy(world.tenant_pod() or {})
        source = {"configMapRef": {"name": "vkgateway-root-ca.crt"}}
        pod["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "b", "envFrom": [source]}]
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        await wait_until(lambda: any(reason == "ChangeNotForwarded" for reason, _ in world.events()))
        await world.wait_settled()

    assert root() == {"ca.crt": "kube-root-ca.crt"}
    assert "ephemeralContainers" not in (world.compute_pod() or {})["spec"]


async def test_copy_is_deleted_after_its_last_pod(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_UNUSED_SECONDS", 0.01)
    set_config(world, "red")
    world.create_pod(**USES_SETTINGS)
    async with world.run_gateway():
        await world.wait_forwarded()
        world.delete_pod(grace=0)
        await wait_until(
            lambda: (world.compute_pod() or {}).get("metadata", {}).get("deletionTimestamp") or not world.compute_pod()
        )
        await wait_until(lambda: not copied_data(world))

    assert world.tenant_server.store.find(CONFIG_MAPS, "settings", "default") is not None


async def test_recreated_immutable_object_is_copied_again(world: World) -> None:
    world.tenant_server.store.create(
        SECRETS, {"metadata": {"name": "key"}, "data": {"k": "b25l"}, "immutable": True}, "default"
    )
    world.create_pod(**USES_KEY)
    async with world.run_gateway():
        await world.wait_forwarded()
        world.compute_server.fail("PUT", "/secrets/key", status=422, reason="Invalid")
        world.tenant_server.store.delete(SECRETS, "key", "default")
        world.tenant_server.store.create(
            SECRETS, {"metadata": {"name": "key"}, "data": {"k": "dHdv"}, "immutable": True}, "default"
        )
        await wait_until(
            lambda: (
                (world.compute_server.store.find(SECRETS, "key", COMPUTE_NAMESPACE) or {}).get("data") == {"k": "dHdv"}
            )
        )


async def test_deleted_copy_is_created_again(world: World) -> None:
    set_config(world, "red")
    world.create_pod(**USES_SETTINGS)
    async with world.run_gateway():
        await world.wait_forwarded()
        world.compute_server.store.delete(CONFIG_MAPS, "settings", COMPUTE_NAMESPACE)
        await wait_until(lambda: copied_data(world) == "red")


@pytest.mark.parametrize("fails", [False, True])
async def test_pods_that_start_together_copy_an_object_once(world: World, fails: bool) -> None:
    """If the write for the first pod fails, another one's succeeds."""
    world.workers = 64
    set_config(world, "red")
    names = [f"web-{number}" for number in range(5)]
    for name in names:
        world.create_pod(name, **USES_SETTINGS)
    path = f"/api/v1/namespaces/{COMPUTE_NAMESPACE}/configmaps"
    if fails:
        world.compute_server.fail("POST", path, status=500)
    async with world.run_gateway():
        for name in names:
            await world.wait_forwarded(name)
    creations = [one for one in world.compute_server.requests if one.startswith(f"POST {path}")]
    assert len(creations) == 1 + fails


async def test_copy_that_the_watch_does_not_show_yet_is_created_once(world: World) -> None:
    set_config(world, "red")
    path = f"/api/v1/namespaces/{COMPUTE_NAMESPACE}/configmaps"
    async with world.run_gateway():
        await world.wait_settled()
        shown = world.compute_server.hold("GET", "/api/v1/configmaps")
        world.compute_server.end_watches()
        for name in ("web", "other"):
            world.create_pod(name, **USES_SETTINGS)
            await world.wait_forwarded(name)
        creations = [one for one in world.compute_server.requests if one.startswith(f"POST {path}")]
        assert len(creations) == 1
        shown.set()
        await wait_until(lambda: copied_data(world) == "red")
