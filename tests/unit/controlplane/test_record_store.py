"""A tenant's Secret is created once, read back completely, never replaced, and never quoted in errors."""

import base64
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.fakes.apiserver import FakeApiServer
from vkgateway.kube import errors
from vkgateway.kube.resources import SECRETS
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.record_store import BrokenCredentials, ControlPlaneRecord, SecretStore

NAMESPACE = "vkgateway-system"


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def store(server: FakeApiServer) -> AsyncIterator[SecretStore]:
    async with server.client() as client:
        yield SecretStore(client)


def record(tenant: str = "alpha", port: int = 20001) -> ControlPlaneRecord:
    return ControlPlaneRecord(credentials=Credentials.create(tenant), port=port, kubeconfig="the kubeconfig")


def same(one: ControlPlaneRecord | None, other: ControlPlaneRecord) -> bool:
    return (
        one is not None
        and replace(one, credentials=other.credentials) == other
        and (one.credentials.to_files() == other.credentials.to_files())
    )


async def test_saved_record_is_loaded(store: SecretStore) -> None:
    assert await store.load("alpha") is None
    saved = replace(record(), objects="digest", service_range="10.160.0.0/20", service_cidr="10.160.0.0/20")
    await store.save("alpha", saved)
    assert same(await store.load("alpha"), saved)


async def test_second_save_updates_port_and_admin(store: SecretStore) -> None:
    first = record()
    await store.save("alpha", first)
    second = replace(first, port=20002, objects="x", kubeconfig="another")
    await store.save("alpha", second)
    assert same(await store.load("alpha"), second)


async def test_first_ca_is_kept(store: SecretStore) -> None:
    first, second = record(), record(port=20009)
    await store.save("alpha", first)
    assert same(await store.save("alpha", second), first)
    assert same(await store.load("alpha"), first)


async def test_assigned_ports_are_those_of_all_secrets(store: SecretStore) -> None:
    await store.save("alpha", record())
    await store.save("beta", record("beta", port=20002))
    assert await store.assigned_ports() == {20001: "alpha", 20002: "beta"}


async def test_assigned_ranges_are_those_of_all_secrets_that_have_one(store: SecretStore) -> None:
    await store.save("alpha", replace(record(), service_range="10.160.0.0/20"))
    await store.save("beta", record("beta", port=20002))
    assert await store.assigned_ranges() == {"10.160.0.0/20": "alpha"}


async def test_delete_may_be_repeated(store: SecretStore) -> None:
    await store.save("alpha", record())
    await store.delete("alpha")
    await store.delete("alpha")
    assert await store.load("alpha") is None


async def test_missing_system_namespace_is_created(server: FakeApiServer, store: SecretStore) -> None:
    server.fail("POST", "/secrets", status=404, reason="NotFound")
    await store.save("alpha", record())
    assert "POST /api/v1/namespaces" in server.requests
    assert await store.load("alpha") is not None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("ca.key", None, "lacks the key 'ca.key'"), ("sa.key", "bm8=", "unreadable"), ("port", "eA==", "unreadable")],
)
async def test_error_names_a_broken_secret_but_not_its_content(
    server: FakeApiServer, store: SecretStore, key: str, value: str | None, message: str
) -> None:
    saved = record()
    await store.save("alpha", saved)
    async with server.client() as client:
        await client.patch(SECRETS, "tenant-alpha", {"data": {key: value}}, namespace=NAMESPACE)
    with pytest.raises(BrokenCredentials, match=message) as caught:
        await store.load("alpha")
    assert "vkgateway-system/tenant-alpha" in str(caught.value)
    assert base64.b64encode(saved.credentials.ca.key_pem).decode() not in str(caught.value)


async def test_unreachable_management_cluster_is_not_a_missing_tenant(
    server: FakeApiServer, store: SecretStore
) -> None:
    server.fail("GET", "/secrets", status=503)
    with pytest.raises(errors.ServerError):
        await store.load("alpha")


def test_repr_shows_no_keys() -> None:
    shown = repr(record())
    assert "PRIVATE" not in shown
    assert "the kubeconfig" not in shown
