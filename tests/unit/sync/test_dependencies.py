"""ConfigMaps, Secrets, tokens and namespaces: there before the pod, fresh while it runs, gone after it."""

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

from tests.unit.sync.world import BELOW, NODE, World, names, until, world
from vkgateway.kube import errors
from vkgateway.kube.resources import CONFIG_MAPS, NAMESPACES, NETWORK_POLICIES, PODS, SECRETS, SERVICE_ACCOUNTS
from vkgateway.model.names import FENCE_ANNOTATION, POD_SERVICE_ACCOUNT, TENANT_LABEL
from vkgateway.sync import work_queue
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
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def set_config(here: World, value: str) -> None:
    found = here.above.store.find(CONFIG_MAPS, "settings", "default")
    document = {"metadata": {"name": "settings"}, "data": {"colour": value}}
    if found is None:
        here.above.store.create(CONFIG_MAPS, document, "default")
    else:
        here.above.store.update(CONFIG_MAPS, document, name="settings", namespace="default")


def copied(here: World) -> str:
    found = here.below.store.find(CONFIG_MAPS, "settings", BELOW)
    return str(found["data"]["colour"]) if found is not None else ""


def forwarded(pod: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Reason and message of the pod's condition vkgateway.io/Forwarded."""
    conditions = ((pod or {}).get("status") or {}).get("conditions") or ()
    return next(
        ((one["reason"], one["message"]) for one in conditions if one["type"] == "vkgateway.io/Forwarded"), None
    )


async def test_a_missing_config_map_holds_the_pod_and_is_named(here: World) -> None:
    here.create(**USES_SETTINGS)
    async with here.gateway():
        await until(lambda: any('configmap "settings"' in message for _, message in here.events()))
        assert here.compute_pod() is None
        set_config(here, "red")
        await here.forwarded()

    assert copied(here) == "red"


async def test_an_optional_config_map_may_be_missing(here: World) -> None:
    here.create(volumes=[{"name": "settings", "configMap": {"name": "settings", "optional": True}}])
    async with here.gateway():
        await here.forwarded()
        set_config(here, "late")
        await until(lambda: copied(here) == "late")


async def test_what_a_pod_refers_to_and_does_not_exist_is_an_event_with_virtual_kubelets_reason(here: World) -> None:
    """Reasons of github.com/virtual-kubelet/virtual-kubelet/internal/podutils; each kind has its own event."""
    needed = [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}]
    spared = [{"configMapRef": {"name": "c", "optional": True}}, {"secretRef": {"name": "d", "optional": True}}]
    here.create("waits", containers=[{"name": "main", "image": "x", "envFrom": needed}])
    here.create("starts", containers=[{"name": "main", "image": "x", "envFrom": spared}])
    async with here.gateway():
        await here.forwarded("starts")
        await until(lambda: len(here.events()) == 4)
        await until(
            lambda: (
                forwarded(here.tenant_pod("waits"))
                == ("MandatoryConfigMapNotFound", 'configmap "a" not found, secret "b" not found')
            )
        )
        assert here.compute_pod("waits") is None

    assert set(here.events()) == {
        ("MandatoryConfigMapNotFound", 'configmap "a" not found'),
        ("MandatorySecretNotFound", 'secret "b" not found'),
        ("OptionalConfigMapNotFound", 'configmap "c" not found'),
        ("OptionalSecretNotFound", 'secret "d" not found'),
    }


async def test_an_optional_config_map_that_exists_causes_no_event(here: World) -> None:
    here.create(volumes=[{"name": "settings", "configMap": {"name": "settings", "optional": True}}])
    set_config(here, "red")
    async with here.gateway():
        await here.forwarded()
        await here.settled()

    assert here.events() == []


async def test_an_optional_config_map_may_come_while_its_pod_is_being_made(here: World) -> None:
    here.create(volumes=[{"name": "settings", "configMap": {"name": "settings", "optional": True}}])
    making = here.below.hold("POST", f"{BELOW}/pods")
    here.workers = 16
    async with here.gateway():
        await until(
            lambda: any(request.startswith(f"POST /api/v1/namespaces/{BELOW}/pods") for request in here.below.requests)
        )
        set_config(here, "late")
        await until(lambda: copied(here) == "late")
        making.set()
        await here.forwarded()


async def test_an_optional_config_map_may_come_before_its_namespace_is_seen_below(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.create(volumes=[{"name": "settings", "configMap": {"name": "settings", "optional": True}}])
    async with here.gateway() as sync:
        await here.forwarded()
        # As where the watch below lags behind what was written.
        monkeypatch.setattr(sync.links["local"].namespaces, "find_namespace", lambda *_: None)
        set_config(here, "late")
        await until(lambda: copied(here) == "late")


async def test_an_optional_config_map_may_come_to_a_pod_that_ran_before_the_gateway(here: World) -> None:
    here.create(volumes=[{"name": "settings", "configMap": {"name": "settings", "optional": True}}])
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
    async with here.gateway():
        await here.settled()
        set_config(here, "late")
        await until(lambda: copied(here) == "late")


async def test_updates_follow_while_a_pod_refers_to_it(here: World) -> None:
    set_config(here, "red")
    here.create(**USES_SETTINGS)
    async with here.gateway():
        await here.forwarded()
        set_config(here, "blue")
        await until(lambda: copied(here) == "blue")


async def test_updates_while_the_gateway_was_down_follow_when_it_is_back(here: World) -> None:
    set_config(here, "red")
    here.create(**USES_SETTINGS)
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
    set_config(here, "blue")
    async with here.gateway():
        await until(lambda: copied(here) == "blue")


async def test_updates_found_by_a_list_before_all_is_known_follow(here: World) -> None:
    set_config(here, "red")
    here.create(**USES_SETTINGS)
    async with here.gateway() as sync:
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        # The tenant's pods can be listed again only after its ConfigMaps have been.
        pods = here.above.fail("GET", "/api/v1/pods", status=503, times=1000)
        here.above.end_watches()
        await until(lambda: not sync.cache.pods.is_complete)
        set_config(here, "blue")
        written = here.above.store.get(CONFIG_MAPS, "settings", "default")["metadata"]["resourceVersion"]
        known = sync.cache.sources["configmaps"].store
        await until(lambda: known["default", "settings"].metadata.resource_version == written)
        await here.settled()
        assert copied(here) == "red"
        here.above.heal()
        await until(lambda: copied(here) == "blue")
    assert pods.hits


async def test_what_no_pod_refers_to_is_not_copied(here: World) -> None:
    here.above.store.create(SECRETS, {"metadata": {"name": "private"}, "data": {}}, "default")
    here.create()
    async with here.gateway():
        await here.forwarded()
        await here.settled()

    assert here.below.store.all(SECRETS) == []


async def test_what_a_refused_pod_refers_to_is_not_copied(here: World) -> None:
    here.above.store.create(SECRETS, {"metadata": {"name": "key"}, "data": {}}, "default")
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.create("bad", hostNetwork=True, **USES_KEY)
        await until(lambda: here.phase("bad") == "Failed")
        await here.settled()

    assert here.below.store.all(SECRETS) == []


async def test_no_config_map_of_the_tenants_takes_the_place_of_its_root_certificate(here: World) -> None:
    def root() -> Any:
        return (here.below.store.find(CONFIG_MAPS, "vkgateway-root-ca.crt", BELOW) or {}).get("data")

    for name in ("kube-root-ca.crt", "vkgateway-root-ca.crt"):
        here.above.store.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"ca.crt": name}}, "default")
    here.create(volumes=[{"name": "ca", "configMap": {"name": "kube-root-ca.crt"}}])
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        pod = copy.deepcopy(here.tenant_pod() or {})
        source = {"configMapRef": {"name": "vkgateway-root-ca.crt"}}
        pod["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "b", "envFrom": [source]}]
        here.above.store.update(PODS, pod, name="web", namespace="default")
        await until(lambda: any(reason == "ChangeNotForwarded" for reason, _ in here.events()))
        await here.settled()

    assert root() == {"ca.crt": "kube-root-ca.crt"}
    assert "ephemeralContainers" not in (here.compute_pod() or {})["spec"]


async def test_a_copy_goes_after_its_last_pod(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "_LINGER", 0.01)
    set_config(here, "red")
    here.create(**USES_SETTINGS)
    async with here.gateway():
        await here.forwarded()
        here.delete(grace=0)
        await until(
            lambda: (here.compute_pod() or {}).get("metadata", {}).get("deletionTimestamp") or not here.compute_pod()
        )
        await until(lambda: not copied(here))

    assert here.above.store.find(CONFIG_MAPS, "settings", "default") is not None


async def test_an_immutable_one_made_anew_above_is_made_anew_below(here: World) -> None:
    here.above.store.create(SECRETS, {"metadata": {"name": "key"}, "data": {"k": "b25l"}, "immutable": True}, "default")
    here.create(**USES_KEY)
    async with here.gateway():
        await here.forwarded()
        here.below.fail("PUT", "/secrets/key", status=422, reason="Invalid")
        here.above.store.delete(SECRETS, "key", "default")
        here.above.store.create(
            SECRETS, {"metadata": {"name": "key"}, "data": {"k": "dHdv"}, "immutable": True}, "default"
        )
        await until(lambda: (here.below.store.find(SECRETS, "key", BELOW) or {}).get("data") == {"k": "dHdv"})


async def test_a_copy_deleted_below_is_made_again(here: World) -> None:
    set_config(here, "red")
    here.create(**USES_SETTINGS)
    async with here.gateway():
        await here.forwarded()
        here.below.store.delete(CONFIG_MAPS, "settings", BELOW)
        await until(lambda: copied(here) == "red")


async def test_the_pods_own_token_and_the_tenants_authority_go_down(here: World) -> None:
    here.above.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    here.above.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    here.create(**TOKEN_VOLUME)
    async with here.gateway():
        below = await here.forwarded()
        secrets = here.below.store.all(SECRETS)

    assert len(secrets) == 1
    (key,) = secrets[0]["data"]
    assert base64.b64decode(secrets[0]["data"][key]).startswith(b"token.default.builder")
    sources = below["spec"]["volumes"][0]["projected"]["sources"]
    assert sources[0]["secret"]["name"] == secrets[0]["metadata"]["name"]
    assert sources[1]["configMap"]["name"] == "vkgateway-root-ca.crt"
    assert below["spec"]["serviceAccountName"] == POD_SERVICE_ACCOUNT
    assert below["spec"]["automountServiceAccountToken"] is False


async def test_tokens_deleted_below_are_made_again(here: World) -> None:
    here.above.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    here.above.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    here.create(**TOKEN_VOLUME)
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        await here.settled()
        (secret,) = here.below.store.all(SECRETS)
        here.below.store.delete(SECRETS, secret["metadata"]["name"], BELOW)
        (again,) = await until(lambda: here.below.store.all(SECRETS))
    assert again["metadata"]["name"] == secret["metadata"]["name"]
    assert again["metadata"]["uid"] != secret["metadata"]["uid"]


async def test_the_token_goes_with_the_pod(here: World) -> None:
    here.above.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    here.above.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    here.create(**TOKEN_VOLUME)
    async with here.gateway():
        await here.forwarded()
        here.run()
        here.delete(grace=0)
        await until(lambda: (here.compute_pod() or {}).get("metadata", {}).get("deletionTimestamp"))
        here.end(code=137)
        await until(lambda: here.below.store.all(SECRETS) == [])


async def test_tokens_are_refreshed_before_they_expire() -> None:
    moved = 0.0

    async with world(clock=lambda: time.time() + moved) as here:
        here.above.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
        here.above.store.create(
            CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
        )
        here.create(**TOKEN_VOLUME)
        async with here.gateway() as sync:
            await here.forwarded()
            here.run()
            await until(lambda: here.phase() == "Running")
            first = copy.deepcopy(here.below.store.all(SECRETS)[0]["data"])
            moved = 3000.0
            sync.enqueue_all()
            await until(lambda: here.below.store.all(SECRETS)[0]["data"] != first)


async def ending(here: World, *, by_tenant: bool) -> dict[str, Any]:
    """A pod that runs with a token, and has an hour to end in; returns the token."""
    here.above.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "builder"}}, "default")
    here.above.store.create(
        CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA"}}, "default"
    )
    here.create(**TOKEN_VOLUME, terminationGracePeriodSeconds=3600)
    await here.forwarded()
    here.run()
    await until(lambda: here.phase() == "Running")
    if by_tenant:
        here.delete()
    else:
        here.below.store.delete(PODS, "web", BELOW)
    await until(lambda: (here.compute_pod() or {})["metadata"].get("deletionTimestamp"))
    await here.settled()
    return copy.deepcopy(here.below.store.all(SECRETS)[0]["data"])


@pytest.mark.parametrize("by_tenant", [True, False])
async def test_tokens_of_a_pod_that_is_ending_are_refreshed_too(by_tenant: bool) -> None:
    moved = 0.0
    async with world(clock=lambda: time.time() + moved) as here, here.gateway() as sync:
        first = await ending(here, by_tenant=by_tenant)
        moved = 3000.0
        sync.enqueue_all()
        await until(lambda: here.below.store.all(SECRETS)[0]["data"] != first)
        assert here.phase() == "Running"


async def test_tokens_of_an_account_that_is_gone_stay_as_they_are_while_the_pod_ends() -> None:
    moved = 0.0
    async with world(clock=lambda: time.time() + moved) as here, here.gateway() as sync:
        first = await ending(here, by_tenant=True)
        here.above.store.delete(SERVICE_ACCOUNTS, "builder", "default")
        asked = len([request for request in here.above.requests if "/token" in request])
        moved = 3000.0
        sync.enqueue_all()
        await until(lambda: len([request for request in here.above.requests if "/token" in request]) > asked)
        here.end(code=143)
        await until(lambda: here.tenant_pod() is None)
        assert first
    assert len([request for request in here.above.requests if "/token" in request]) == asked + 1


async def test_a_namespace_is_fenced_in_before_the_first_pod(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()

    namespace = here.below.store.get(NAMESPACES, BELOW)
    assert namespace["metadata"]["labels"][TENANT_LABEL] == "alpha"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
    assert here.below.store.find(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, BELOW) is not None
    assert len(here.below.store.all(NETWORK_POLICIES)) >= 1


async def test_a_namespace_goes_with_the_tenants(here: World) -> None:
    here.above.store.create(NAMESPACES, {"metadata": {"name": "team"}})
    here.above.store.create(
        PODS, {"metadata": {"name": "a"}, "spec": {"nodeName": "a100.local", "containers": []}}, "team"
    )
    async with here.gateway():
        await until(lambda: here.below.store.find(PODS, "a", "alpha--team"))
        here.above.store.delete(PODS, "a", "team", grace=0)
        here.above.store.delete(NAMESPACES, "team")
        await until(lambda: here.below.store.find(NAMESPACES, "alpha--team") is None)
        await here.settled()
        gc.collect()
        assert here.sync is not None
        assert not here.sync.network.namespaces._locks

    assert here.below.store.find(PODS, "a", "alpha--team") is None


async def test_a_tenant_is_removed_with_all_it_had_and_nothing_else(here: World) -> None:
    here.below.store.create(NAMESPACES, {"metadata": {"name": "beta--default", "labels": {TENANT_LABEL: "beta"}}})
    here.below.store.create(NAMESPACES, {"metadata": {"name": "mine", "labels": {TENANT_LABEL: "alpha"}}})
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        link = here.link
        assert link is not None
        await here.leave()
        removing = asyncio.create_task(remove_tenant(link, "alpha"))
        await until(lambda: "deletionTimestamp" in (here.compute_pod() or {}).get("metadata", {}))
        assert "finalizers" not in (here.compute_pod() or {})["metadata"]
        assert here.below.store.find(NAMESPACES, "alpha--default") is not None
        here.end()
        async with asyncio.timeout(30):
            await removing

    left = {document["metadata"]["name"] for document in here.below.store.all(NAMESPACES)}
    assert left == {"beta--default", "mine"}
    assert here.below.store.all(PODS) == []
    deletes = [request.split("?")[0] for request in here.below.requests if request.startswith("DELETE")]
    # A namespace that is deleted while it has pods is looked at again only after half of their grace.
    assert deletes == ["DELETE /api/v1/namespaces/alpha--default/pods/web", "DELETE /api/v1/namespaces/alpha--default"]


async def test_no_grace_of_a_tenants_choice_holds_up_its_removal(here: World) -> None:
    for name in ("a", "b"):
        here.create(name, terminationGracePeriodSeconds=31_536_000)
    async with here.gateway():
        for name in ("a", "b"):
            await here.forwarded(name)
            here.run(name)
        here.delete("a")
        await until(lambda: "deletionTimestamp" in (here.compute_pod("a") or {}).get("metadata", {}))
        link = here.link
        assert link is not None
        await here.leave()
        removing = asyncio.create_task(remove_tenant(link, "alpha"))

        def graces() -> list[int | None]:
            pods = (here.compute_pod(name) or {"metadata": {}} for name in ("a", "b"))
            return [pod["metadata"].get("deletionGracePeriodSeconds") for pod in pods]

        await until(lambda: graces() == [120, 120])
        for name in ("a", "b"):
            here.end(name)
        async with asyncio.timeout(30):
            await removing


async def test_a_changed_pod_security_level_reaches_the_namespaces_there_are(here: World) -> None:
    def level() -> str:
        labels: dict[str, str] = here.below.store.get(NAMESPACES, BELOW)["metadata"]["labels"]
        return labels["pod-security.kubernetes.io/enforce"]

    here.create("first")
    async with here.gateway() as sync:
        await here.forwarded("first")
        assert level() == "baseline"
        link = here.link
        assert link is not None
        tenant = replace(sync.tenant, pod_security="privileged")
        sync.update_tenant(tenant, links={"local": link}, bindings={NODE: here.binding(link)})
        here.create("second", hostNetwork=True)
        await here.forwarded("second")
        assert level() == "privileged"


async def test_a_fence_that_was_deleted_below_is_made_again(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        (policy,) = names(here.below, NETWORK_POLICIES)
        here.below.store.delete(NETWORK_POLICIES, policy, BELOW)
        assert here.sync is not None
        await here.sync.handle_request(("sweep", "periodic", "", ""))
        assert names(here.below, NETWORK_POLICIES) == [policy]


async def test_a_namespace_that_cannot_be_mended_leaves_nothing_else_unmended(here: World) -> None:
    here.above.store.create(NAMESPACES, {"metadata": {"name": "team"}})
    here.create()
    spec = {"nodeName": "a100.local", "containers": []}
    here.above.store.create(PODS, {"metadata": {"name": "a"}, "spec": spec}, "team")
    async with here.gateway() as sync:
        await here.forwarded()
        await until(lambda: here.below.store.find(PODS, "a", "alpha--team"))
        here.below.store.delete(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, "alpha--team")
        marks = {"vkgateway.io/namespace": "default", "vkgateway.io/token-of": "gone", "vkgateway.io/uid": "u"}
        left = {"metadata": {"name": "gone-token", "labels": {TENANT_LABEL: "alpha"}, "annotations": marks}}
        here.below.store.create(SECRETS, left, BELOW)
        link = here.link
        assert link is not None
        await until(lambda: (BELOW, "gone-token") in link.copies["secrets"].store)
        here.below.fail("POST", f"/namespaces/{BELOW}/serviceaccounts", status=403, reason="Forbidden", times=100)
        with pytest.raises(errors.Forbidden):
            await sync.handle_request(("sweep", "periodic", "", ""))
        assert here.below.store.find(SERVICE_ACCOUNTS, POD_SERVICE_ACCOUNT, "alpha--team") is not None
        assert here.below.store.find(SECRETS, "gone-token", BELOW) is None


def fence_writes(here: World) -> list[str]:
    """Writes of the compute namespace and of what fences it in."""
    kinds = (f"/namespaces/{BELOW}", "/api/v1/namespaces", "/serviceaccounts", "/networkpolicies")
    writes = (one for one in here.below.requests if not one.startswith("GET"))
    return [one for one in writes if one.split("?")[0].rsplit(" ", 1)[-1].endswith(kinds)]


async def test_a_gateway_that_comes_back_fences_in_nothing_again(here: World) -> None:
    here.create("first")
    async with here.gateway():
        await here.forwarded("first")
    assert fence_writes(here)
    here.below.requests.clear()

    here.create("second")
    async with here.gateway():
        await here.forwarded("second")

    assert fence_writes(here) == []


@pytest.mark.parametrize("fence", ["another", None])
async def test_a_fence_of_another_make_is_made_anew(here: World, fence: str | None) -> None:
    here.create("first")
    async with here.gateway():
        await here.forwarded("first")
    (policy,) = names(here.below, NETWORK_POLICIES)
    here.below.store.delete(NETWORK_POLICIES, policy, BELOW)
    namespace = here.below.store.get(NAMESPACES, BELOW)
    made = namespace["metadata"]["annotations"].pop(FENCE_ANNOTATION)
    if fence is not None:
        namespace["metadata"]["annotations"][FENCE_ANNOTATION] = fence
    here.below.store.update(NAMESPACES, namespace, name=BELOW)

    here.create("second")
    async with here.gateway():
        await here.forwarded("second")

    assert names(here.below, NETWORK_POLICIES) == [policy]
    assert here.below.store.get(NAMESPACES, BELOW)["metadata"]["annotations"][FENCE_ANNOTATION] == made
