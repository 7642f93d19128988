"""Kept objects are restored as a whole; an unchanged object is not written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from vkgateway.kube.resources import CONFIG_MAPS, Resource
from vkgateway.planes.kept_objects import (
    INITIAL_ANNOTATION,
    KEPT_ANNOTATION,
    create_missing,
    delete_obsolete,
    is_initial,
    kept_objects,
    restore_objects,
    skip_type_checks,
)

WANTED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "rules", "namespace": "default", "annotations": {KEPT_ANNOTATION: "true"}},
    "data": {"rule": "one"},
}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


async def look(server: FakeApiServer) -> tuple[list[str], set[str]]:
    """Restore the objects; return the changed ones, and the methods of all requests."""
    before = len(server.requests)
    async with server.client() as client:
        changed = await restore_objects(client, [WANTED])
    return changed, {request.split()[0] for request in server.requests[before:]}


def data(server: FakeApiServer) -> Any:
    found = server.store.find(CONFIG_MAPS, "rules", "default")
    assert found is not None
    return found["data"]


def test_only_annotated_objects_are_kept() -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "annotations": None}}
    assert kept_objects([other, WANTED]) == [WANTED]


async def test_initial_object_is_created_once_and_then_belongs_to_the_tenant(
    server: FakeApiServer,
) -> None:
    initial = {**WANTED, "metadata": {**WANTED["metadata"], "annotations": {INITIAL_ANNOTATION: "true"}}}
    assert [is_initial(one) for one in (initial, WANTED)] == [True, False]
    assert kept_objects([initial]) == []
    async with server.client() as client:
        await create_missing(client, [initial, {**WANTED, "metadata": {"name": "other", "namespace": "default"}}])
        assert data(server) == {"rule": "one"}
        assert server.store.find(CONFIG_MAPS, "other", "default") is None
        server.store.update(
            CONFIG_MAPS, {**initial, "data": {"rule": "the tenant's"}}, name="rules", namespace="default"
        )
        await create_missing(client, [initial])
        assert data(server) == {"rule": "the tenant's"}
        server.store.delete(CONFIG_MAPS, "rules", "default")
        await create_missing(client, [initial])
        assert data(server) == {"rule": "one"}


async def test_deleted_object_is_restored_once(server: FakeApiServer) -> None:
    assert (await look(server))[0] == ["ConfigMap/rules"]
    assert data(server) == {"rule": "one"}

    assert await look(server) == ([], {"GET"})


@pytest.mark.parametrize(
    "changed", [{"rule": "two"}, {"rule": "one", "exception": "all"}, {}], ids=["changed", "added", "taken away"]
)
async def test_changed_object_is_restored(server: FakeApiServer, changed: dict[str, str]) -> None:
    server.store.create(CONFIG_MAPS, {**WANTED, "data": changed})

    assert (await look(server))[0] == ["ConfigMap/rules"]

    assert data(server) == {"rule": "one"}


async def test_labels_of_the_tenant_are_ignored(server: FakeApiServer) -> None:
    metadata = {**WANTED["metadata"], "annotations": {"team": "a"}, "labels": {"a": "b"}}
    server.store.create(CONFIG_MAPS, {**WANTED, "metadata": metadata})

    assert await look(server) == ([], {"GET"})


_GROUP = "apis/admissionregistration.k8s.io"
WEBHOOKS = Resource(f"{_GROUP}/v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False)
POLICIES = Resource(f"{_GROUP}/v1beta1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", namespaced=False)


def _gate(resource: Resource, name: str = "vkgateway-admission", *, is_kept: bool = True) -> dict[str, Any]:
    annotations = {KEPT_ANNOTATION: "true"} if is_kept else {}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


async def test_obsolete_webhook_is_deleted_when_a_policy_replaces_it(server: FakeApiServer) -> None:
    """API servers from 1.34 on present no certificate to the webhook, so it would fail for every new pod."""
    server.register(WEBHOOKS)
    server.register(POLICIES)
    server.store.create(WEBHOOKS, _gate(WEBHOOKS))
    server.store.create(WEBHOOKS, _gate(WEBHOOKS, "of-the-tenant", is_kept=False))
    server.store.create(POLICIES, _gate(POLICIES))
    async with server.client() as client:
        assert await delete_obsolete(client, [_gate(POLICIES)]) == ["MutatingWebhookConfiguration/vkgateway-admission"]
        assert await delete_obsolete(client, [_gate(POLICIES)]) == []
    assert [found["metadata"]["name"] for found in server.store.all(WEBHOOKS)] == ["of-the-tenant"]
    assert len(server.store.all(POLICIES)) == 1


async def test_policy_that_left_the_template_is_deleted(server: FakeApiServer) -> None:
    server.register(WEBHOOKS)
    server.store.create(WEBHOOKS, _gate(WEBHOOKS))
    async with server.client() as client:
        assert await delete_obsolete(client, [_gate(WEBHOOKS)]) == []
        server.register(POLICIES)
        server.store.create(POLICIES, _gate(POLICIES))
        assert await delete_obsolete(client, [_gate(WEBHOOKS)]) == ["MutatingAdmissionPolicy/vkgateway-admission"]


async def test_types_of_the_platforms_policies_are_not_checked(server: FakeApiServer) -> None:
    rules = Resource(f"{_GROUP}/v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False)
    server.register(rules)
    seen = _gate(rules, "seen") | {"status": {"observedGeneration": 2}}
    new = _gate(rules, "new")
    for document, generation in ((seen, 2), (new, 1)):
        server.store.create(rules, document)
        document["metadata"]["generation"] = generation
    async with server.client() as client:
        await skip_type_checks(client, [msgspec.json.encode(one) for one in (seen, new, WANTED)])
    assert [one for one in server.requests if not one.startswith("GET")] == [
        f"PATCH /{_GROUP}/v1/validatingadmissionpolicies/new/status?fieldManager=vkgateway"
    ]
    stored = server.store.find(rules, "new")
    assert stored is not None
    assert stored["status"] == {"observedGeneration": 1}
