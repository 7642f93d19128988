"""ConfigMaps, Secrets, tokens and namespaces: created before the pod, updated while it runs, deleted after it."""

from __future__ import annotations

import asyncio
import base64
import copy
import gc
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, NODE, World, object_names, start_world
from vkgateway.kube import errors
from vkgateway.kube.resources import CONFIG_MAPS, NAMESPACES, NETWORK_POLICIES, PODS, SECRETS, SERVICE_ACCOUNTS
from vkgateway.model.names import FENCE_ANNOTATION, POD_SERVICE_ACCOUNT, TENANT_LABEL
from vkgateway.sync import copies
from vkgateway.sync.runtime.requests import ReconcileRequest
from vkgateway.sync.sweeper import SWEEP
from vkgateway.sync.teardown import remove_tenant

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
TOKEN_VOLUME: dict[str, Any] = {
    "serviceAccountName": "builder",
    "volumes": [
        {
            "name": "kube-api-access-abcde",
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                ]
            },
        }
    ],
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


async def test_tokens_and_root_certificate_are_forwarded(world: World) -> None:
    world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    world.tenant_server.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    world.create_pod(**TOKEN_VOLUME)
    async with world.run_gateway():
        below = await world.wait_forwarded()
        secrets = world.compute_server.store.all(SECRETS)

    assert len(secrets) == 1
    (key,) = secrets[0]["data"]
    assert base64.b64decode(secrets[0]["data"][key]).startswith(b"token.default.builder")
    sources = below["spec"]["volumes"][0]["projected"]["sources"]
    assert sources[0]["secret"]["name"] == secrets[0]["metadata"]["name"]
    assert sources[1]["configMap"]["name"] == "vkgateway-root-ca.crt"
    assert below["spec"]["serviceAccountName"] == POD_SERVICE_ACCOUNT
    assert below["spec"]["automountServiceAccountToken"] is False


async def test_deleted_tokens_are_created_again(world: World) -> None:
    world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    world.tenant_server.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    world.create_pod(**TOKEN_VOLUME)
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        await world.wait_settled()
        (secret,) = world.compute_server.store.all(SECRETS)
        world.compute_server.store.delete(SECRETS, secret["metadata"]["name"], COMPUTE_NAMESPACE)
        (recreated,) = await wait_until(lambda: world.compute_server.store.all(SECRETS))
    assert recreated["metadata"]["name"] == secret["metadata"]["name"]
    assert recreated["metadata"]["uid"] != secret["metadata"]["uid"]


async def test_tokens_are_deleted_with_their_pod(world: World) -> None:
    world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    world.tenant_server.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    world.create_pod(**TOKEN_VOLUME)
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        world.delete_pod(grace=0)
        await wait_until(lambda: (world.compute_pod() or {}).get("metadata", {}).get("deletionTimestamp"))
        world.end_pod(code=137)
        await wait_until(lambda: world.compute_server.store.all(SECRETS) == [])


async def test_tokens_are_refreshed_before_they_expire() -> None:
    advance = 0.0

    async with start_world(clock=lambda: time.time() + advance) as world:
        world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
        world.tenant_server.store.create(
            CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
        )
        world.create_pod(**TOKEN_VOLUME)
        async with world.run_gateway() as sync:
            await world.wait_forwarded()
            world.run_pod()
            await wait_until(lambda: world.pod_phase() == "Running")
            first = copy.deepcopy(world.compute_server.store.all(SECRETS)[0]["data"])
            advance = 3000.0
            sync.resync()
            await wait_until(lambda: world.compute_server.store.all(SECRETS)[0]["data"] != first)


async def create_terminating(world: World, *, by_tenant: bool) -> dict[str, Any]:
    """Run a pod with a token and a grace period of an hour, delete it, and return the token."""
    world.tenant_server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    world.tenant_server.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    world.create_pod(**TOKEN_VOLUME, terminationGracePeriodSeconds=3600)
    await world.wait_forwarded()
    world.run_pod()
    await wait_until(lambda: world.pod_phase() == "Running")
    if by_tenant:
        world.delete_pod()
    else:
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE)
    await wait_until(lambda: (world.compute_pod() or {})["metadata"].get("deletionTimestamp"))
    await world.wait_settled()
    return copy.deepcopy(world.compute_server.store.all(SECRETS)[0]["data"])


@pytest.mark.parametrize("by_tenant", [True, False])
async def test_tokens_of_a_terminating_pod_are_refreshed(by_tenant: bool) -> None:
    advance = 0.0
    async with start_world(clock=lambda: time.time() + advance) as world, world.run_gateway() as sync:
        first = await create_terminating(world, by_tenant=by_tenant)
        advance = 3000.0
        sync.resync()
        await wait_until(lambda: world.compute_server.store.all(SECRETS)[0]["data"] != first)
        assert world.pod_phase() == "Running"


async def test_tokens_of_a_deleted_account_stay_while_the_pod_terminates() -> None:
    advance = 0.0
    async with start_world(clock=lambda: time.time() + advance) as world, world.run_gateway() as sync:
        first = await create_terminating(world, by_tenant=True)
        world.tenant_server.store.delete(SERVICE_ACCOUNTS, "builder", "default")
        asked = len([request for request in world.tenant_server.requests if "/token" in request])
        advance = 3000.0
        sync.resync()
        await wait_until(
            lambda: len([request for request in world.tenant_server.requests if "/token" in request]) > asked
        )
        world.end_pod(code=143)
        await wait_until(lambda: world.tenant_pod() is None)
        assert first
    assert len([request for request in world.tenant_server.requests if "/token" in request]) == asked + 1


async def test_namespace_is_isolated_before_its_first_pod(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()

    namespace = world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)
    assert namespace["metadata"]["labels"][TENANT_LABEL] == "alpha"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
    assert world.compute_server.store.find(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, COMPUTE_NAMESPACE) is not None
    assert len(world.compute_server.store.all(NETWORK_POLICIES)) >= 1


async def test_namespace_is_deleted_with_the_tenants_namespace(world: World) -> None:
    world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": "team"}})
    world.tenant_server.store.create(
        PODS, {"metadata": {"name": "a"}, "spec": {"nodeName": "a100.local", "containers": []}}, "team"
    )
    async with world.run_gateway():
        await wait_until(lambda: world.compute_server.store.find(PODS, "a", "alpha--team"))
        world.tenant_server.store.delete(PODS, "a", "team", grace=0)
        world.tenant_server.store.delete(NAMESPACES, "team")
        await wait_until(lambda: world.compute_server.store.find(NAMESPACES, "alpha--team") is None)
        await world.wait_settled()
        gc.collect()
        assert world.sync is not None
        assert not world.sync.reconcilers.namespaces._locks

    assert world.compute_server.store.find(PODS, "a", "alpha--team") is None


async def test_tenant_removal_removes_all_its_objects_and_no_others(world: World) -> None:
    world.compute_server.store.create(
        NAMESPACES, {"metadata": {"name": "beta--default", "labels": {TENANT_LABEL: "beta"}}}
    )
    world.compute_server.store.create(NAMESPACES, {"metadata": {"name": "mine", "labels": {TENANT_LABEL: "alpha"}}})
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        link = world.link
        assert link is not None
        await world.stop_tenant()
        removing = asyncio.create_task(remove_tenant(link, "alpha"))
        await wait_until(lambda: "deletionTimestamp" in (world.compute_pod() or {}).get("metadata", {}))
        assert "finalizers" not in (world.compute_pod() or {})["metadata"]
        assert world.compute_server.store.find(NAMESPACES, "alpha--default") is not None
        world.end_pod()
        async with asyncio.timeout(30):
            await removing

    remaining = {document["metadata"]["name"] for document in world.compute_server.store.all(NAMESPACES)}
    assert remaining == {"beta--default", "mine"}
    assert world.compute_server.store.all(PODS) == []
    deletes = [request.split("?")[0] for request in world.compute_server.requests if request.startswith("DELETE")]
    # A namespace that is deleted with pods is reconciled again only after half of their grace period.
    assert deletes == ["DELETE /api/v1/namespaces/alpha--default/pods/web", "DELETE /api/v1/namespaces/alpha--default"]


async def test_long_grace_period_does_not_block_tenant_removal(world: World) -> None:
    for name in ("a", "b"):
        world.create_pod(name, terminationGracePeriodSeconds=31_536_000)
    async with world.run_gateway():
        for name in ("a", "b"):
            await world.wait_forwarded(name)
            world.run_pod(name)
        world.delete_pod("a")
        await wait_until(lambda: "deletionTimestamp" in (world.compute_pod("a") or {}).get("metadata", {}))
        link = world.link
        assert link is not None
        await world.stop_tenant()
        removing = asyncio.create_task(remove_tenant(link, "alpha"))

        def graces() -> list[int | None]:
            pods = (world.compute_pod(name) or {"metadata": {}} for name in ("a", "b"))
            return [pod["metadata"].get("deletionGracePeriodSeconds") for pod in pods]

        await wait_until(lambda: graces() == [120, 120])
        for name in ("a", "b"):
            world.end_pod(name)
        async with asyncio.timeout(30):
            await removing


async def test_changed_pod_security_level_is_applied_to_existing_namespaces(world: World) -> None:
    def level() -> str:
        labels: dict[str, str] = world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)["metadata"]["labels"]
        return labels["pod-security.kubernetes.io/enforce"]

    world.create_pod("first")
    async with world.run_gateway() as sync:
        await world.wait_forwarded("first")
        assert level() == "baseline"
        link = world.link
        assert link is not None
        tenant = replace(sync.scope.tenant, pod_security="privileged")
        sync.update_tenant(tenant, links={"local": link}, bindings={NODE: world.make_binding(link)})
        world.create_pod("second", hostNetwork=True)
        await world.wait_forwarded("second")
        assert level() == "privileged"


async def test_deleted_isolation_policy_is_created_again(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        (policy,) = object_names(world.compute_server, NETWORK_POLICIES)
        world.compute_server.store.delete(NETWORK_POLICIES, policy, COMPUTE_NAMESPACE)
        assert world.sync is not None
        await world.sync.handle_request(ReconcileRequest(SWEEP.name, key=True))
        assert object_names(world.compute_server, NETWORK_POLICIES) == [policy]


async def test_unrepairable_namespace_does_not_block_other_repairs(world: World) -> None:
    world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": "team"}})
    world.create_pod()
    spec = {"nodeName": "a100.local", "containers": []}
    world.tenant_server.store.create(PODS, {"metadata": {"name": "a"}, "spec": spec}, "team")
    async with world.run_gateway() as sync:
        await world.wait_forwarded()
        await wait_until(lambda: world.compute_server.store.find(PODS, "a", "alpha--team"))
        world.compute_server.store.delete(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, "alpha--team")
        marks = {"vkgateway.io/namespace": "default", "vkgateway.io/token-of": "gone", "vkgateway.io/uid": "u"}
        remaining = {"metadata": {"name": "gone-token", "labels": {TENANT_LABEL: "alpha"}, "annotations": marks}}
        world.compute_server.store.create(SECRETS, remaining, COMPUTE_NAMESPACE)
        link = world.link
        assert link is not None
        await wait_until(lambda: (COMPUTE_NAMESPACE, "gone-token") in link.copies["secrets"].store)
        world.compute_server.fail(
            "POST", f"/namespaces/{COMPUTE_NAMESPACE}/serviceaccounts", status=403, reason="Forbidden", times=100
        )
        with pytest.raises(errors.Forbidden):
            await sync.handle_request(ReconcileRequest(SWEEP.name, key=True))
        assert world.compute_server.store.find(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, "alpha--team") is not None
        assert world.compute_server.store.find(SECRETS, "gone-token", COMPUTE_NAMESPACE) is None


def policy_writes(world: World) -> list[str]:
    """Return the writes of the compute namespace and of its isolation policies."""
    kinds = (f"/namespaces/{COMPUTE_NAMESPACE}", "/api/v1/namespaces", "/serviceaccounts", "/networkpolicies")
    writes = (one for one in world.compute_server.requests if not one.startswith("GET"))
    return [one for one in writes if one.split("?")[0].rsplit(" ", 1)[-1].endswith(kinds)]


async def test_restarted_gateway_does_not_rewrite_isolation_policies(world: World) -> None:
    world.create_pod("first")
    async with world.run_gateway():
        await world.wait_forwarded("first")
    assert policy_writes(world)
    world.compute_server.requests.clear()

    world.create_pod("second")
    async with world.run_gateway():
        await world.wait_forwarded("second")

    assert policy_writes(world) == []


@pytest.mark.parametrize("fence", ["another", None])
async def test_outdated_isolation_policy_is_replaced(world: World, fence: str | None) -> None:
    world.create_pod("first")
    async with world.run_gateway():
        await world.wait_forwarded("first")
    (policy,) = object_names(world.compute_server, NETWORK_POLICIES)
    world.compute_server.store.delete(NETWORK_POLICIES, policy, COMPUTE_NAMESPACE)
    namespace = world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)
    created = namespace["metadata"]["annotations"].pop(FENCE_ANNOTATION)
    if fence is not None:
        namespace["metadata"]["annotations"][FENCE_ANNOTATION] = fence
    world.compute_server.store.update(NAMESPACES, namespace, name=COMPUTE_NAMESPACE)

    world.create_pod("second")
    async with world.run_gateway():
        await world.wait_forwarded("second")

    assert object_names(world.compute_server, NETWORK_POLICIES) == [policy]
    assert (
        world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE)["metadata"]["annotations"][FENCE_ANNOTATION]
        == created
    )
