"""Tests of the single-instance lock: data directory and Lease."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from vkgateway.gateway import instance_lock, rbac
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.leases import LeaderElector, LeaseTaken
from vkgateway.kube.resources import LEASES, NAMESPACES
from vkgateway.local.paths import PlatformPaths
from vkgateway.model.errors import ConflictError
from vkgateway.model.names import SYSTEM_NAMESPACE


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """Management cluster with the gateway's permissions."""
    async with FakeApiServer(rights=Rights.of_management()) as server:
        server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    async with server.client() as client:
        yield client


def test_second_gateway_cannot_lock_data_directory(tmp_path: Path) -> None:
    with (
        instance_lock.lock_data_dir(tmp_path),
        pytest.raises(ConflictError, match=f"another gateway uses the data directory {tmp_path}"),
        instance_lock.lock_data_dir(tmp_path),
    ):
        pass


def test_identity_is_unique_and_survives_restart(tmp_path: Path) -> None:
    names = []
    for folder in ("a", "a", "b"):
        with instance_lock.lock_data_dir(tmp_path / folder) as name:
            names.append(name)
    assert names[0] == names[1] != names[2]


def test_lock_file_belongs_to_platform_paths(tmp_path: Path) -> None:
    assert PlatformPaths(tmp_path).gateway.lock_file.name == instance_lock.LOCK_FILE
    assert PlatformPaths(tmp_path).gateway.lock_file in PlatformPaths(tmp_path).list_all()


def test_gateway_serves_despite_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with instance_lock.lock_data_dir(tmp_path) as name:
            assert name
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with instance_lock.lock_data_dir(tmp_path) as name:
            assert name


def test_gateway_serves_on_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have no locks; the Lease still detects gateways on other machines."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with instance_lock.lock_data_dir(tmp_path) as name:
        pass
    with instance_lock.lock_data_dir(tmp_path) as again:
        assert name == again


async def test_granted_permissions_suffice_for_lease(server: FakeApiServer, client: Client) -> None:
    sole = instance_lock.gateway_lease(client, name="host/1")
    await instance_lock.acquire_lease(sole, management=client)
    async with instance_lock.hold_lease(sole):
        pass
    assert server.store.get(LEASES, "gateway", SYSTEM_NAMESPACE)["spec"]["holderIdentity"] == "host/1"


async def test_first_start_creates_namespace_of_lease(server: FakeApiServer, client: Client) -> None:
    server.rights = None
    server.store.delete(NAMESPACES, SYSTEM_NAMESPACE)
    server.fail("POST", "/leases", status=404)
    await instance_lock.acquire_lease(instance_lock.gateway_lease(client, name="host/1"), management=client)
    assert server.store.find(LEASES, "gateway", SYSTEM_NAMESPACE) is not None
    assert server.store.find(NAMESPACES, SYSTEM_NAMESPACE) is not None


class _Lease(LeaderElector):
    """Return a Lease that another gateway holds or takes over."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    async def acquire_lease(self) -> None:
        raise self._failure

    async def renew_lease(self) -> None:
        raise self._failure


async def test_second_gateway_is_refused_with_holder_of_lease(client: Client) -> None:
    taken = LeaseTaken("host/1 has the Lease vkgateway-system/gateway, and renewed it at 2030-01-01T00:00:00Z")
    with pytest.raises(ConflictError, match=r"^another gateway serves this management cluster: host/1 has the Lease"):
        await instance_lock.acquire_lease(_Lease(taken), management=client)


async def test_gateway_ends_after_losing_lease(client: Client) -> None:
    async def work() -> None:
        async with instance_lock.hold_lease(_Lease(LeaseTaken("host/2 has the Lease"))):
            await asyncio.Event().wait()

    with pytest.raises(ConflictError, match="another gateway serves this management cluster: host/2 has the Lease"):
        await asyncio.create_task(work())


async def test_gateway_serves_without_permission_for_leases(server: FakeApiServer, client: Client) -> None:
    """A later release added the permissions, and an upgrade may keep the old roles."""
    older = [document for document in rbac.management_roles() if document["kind"] != "Role"]
    server.rights = Rights(older)
    sole = instance_lock.gateway_lease(client, name="host/1")
    await instance_lock.acquire_lease(sole, management=client)
    async with instance_lock.hold_lease(sole):
        with pytest.raises(errors.Forbidden):
            await client.get(LEASES, "gateway", namespace=SYSTEM_NAMESPACE)
