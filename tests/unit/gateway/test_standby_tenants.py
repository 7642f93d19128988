"""Views of tenants on a standby: they open, follow certificates, and close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import let_pass, wait_until
from tests.unit.gateway.conftest import tenant_document
from vkgateway.api.errors import NotFoundError
from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, VIRTUAL_NODE_TYPE
from vkgateway.api.types import Tenant
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NODES, TENANTS
from vkgateway.nodes.node_source import NodeSource
from vkgateway.tenants import standby_tenants
from vkgateway.tenants.accepted_specs import AcceptedSpecs
from vkgateway.tenants.interfaces import ApiServerAccess
from vkgateway.tenants.running_tenants import RunningTenants
from vkgateway.tenants.standby_tenants import StandbyTenants
from vkgateway.tenants.store import TenantStore


class Planes:
    """Control planes that serve at one fake API server."""

    def __init__(self, server: FakeApiServer) -> None:
        self.access: ApiServerAccess | None = ApiServerAccess(
            client=server.client("alpha"), url=server.url, host="127.0.0.1", port=server.port
        )
        self._server = server

    async def load_existing(self, tenant: Tenant) -> ApiServerAccess | None:
        if self.access is None:
            return None
        return replace(self.access, client=self._server.client(tenant.metadata.name))


class Runtimes:
    """Records which tenants the kubelet endpoint serves, with which certificates."""

    def __init__(self) -> None:
        self.admitted: dict[str, frozenset[str]] = {}

    def find_sources(self, tenant: Tenant, access: ApiServerAccess) -> Mapping[str, NodeSource]:
        return {}

    def admit_tenant(self, name: str, access: ApiServerAccess) -> None:
        self.admitted[name] = access.kubelet_clients

    def revoke_tenant(self, name: str) -> None:
        self.admitted.pop(name, None)


class Standby:
    """A standby with its fakes."""

    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.planes, self.runtimes, self.running = Planes(server), Runtimes(), RunningTenants()
        self.leading = asyncio.Event()
        store = TenantStore(client, AcceptedSpecs())
        self.tenants = store.reflector
        planes: Any = self.planes
        runtimes: Any = self.runtimes
        self.views = StandbyTenants(planes, runtimes, self.running, store)


@pytest.fixture
async def standby(server: FakeApiServer, client: Client) -> AsyncIterator[Standby]:
    server.rights = None
    it = Standby(server, client)
    tasks = [asyncio.create_task(it.tenants.run()), asyncio.create_task(it.views.run(it.leading))]
    yield it
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if it.planes.access is not None:
        await it.planes.access.client.close()


async def test_view_follows_tenant(standby: Standby) -> None:
    server = standby.server
    labels = {"type": VIRTUAL_NODE_TYPE, COMPUTE_CLUSTER_LABEL: "local"}
    server.store.create(NODES, {"metadata": {"name": "a100.local", "labels": labels}})
    with pytest.raises(NotFoundError):
        standby.running.client_of("alpha")
    server.store.create(TENANTS, tenant_document("alpha"))
    await wait_until(lambda: standby.running.standbys)
    assert standby.running.client_of("alpha").name == "alpha"
    await wait_until(lambda: standby.running.node_labels("alpha") == {"a100.local": labels})
    assert "alpha" in standby.runtimes.admitted
    server.store.delete(TENANTS, "alpha")
    await wait_until(lambda: not standby.running.standbys)
    assert standby.runtimes.admitted == {}


async def test_tenant_of_which_only_the_data_is_kept_has_no_view(standby: Standby) -> None:
    document = standby.server.store.create(TENANTS, tenant_document("alpha"))
    await wait_until(lambda: standby.running.standbys)
    kept = document | {"spec": document["spec"] | {"deleteAfter": "2999-01-01T00:00:00Z"}}
    standby.server.store.update(TENANTS, kept, name="alpha")
    await wait_until(lambda: not standby.running.standbys)
    standby.server.store.update(TENANTS, document | {"metadata": {"name": "alpha"}}, name="alpha")
    await wait_until(lambda: standby.running.standbys)


async def test_view_follows_renewed_certificates(standby: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_tenants, "RELOAD_SECONDS", 0.05)
    standby.server.store.create(TENANTS, tenant_document("alpha"))
    await wait_until(lambda: standby.running.standbys)
    view = standby.running.standbys["alpha"]
    assert standby.planes.access is not None
    standby.planes.access = replace(standby.planes.access, kubelet_clients=frozenset({"new"}))
    await wait_until(lambda: standby.runtimes.admitted.get("alpha") == frozenset({"new"}))
    assert standby.running.standbys["alpha"] is view


async def test_tenant_without_control_plane_has_no_view(standby: Standby) -> None:
    access, standby.planes.access = standby.planes.access, None
    standby.server.store.create(TENANTS, tenant_document("alpha"))
    await wait_until(lambda: standby.tenants.store)
    await let_pass(0.05)
    assert standby.running.standbys == {}
    standby.planes.access = access
    changed = standby.server.store.get(TENANTS, "alpha") | {"status": {"phase": "Ready"}}
    standby.server.store.update(TENANTS, changed, name="alpha")
    await wait_until(lambda: standby.running.standbys)


async def test_new_leader_opens_no_view_and_keeps_those_in_use(standby: Standby) -> None:
    standby.server.store.create(TENANTS, tenant_document("alpha"))
    await wait_until(lambda: standby.running.standbys)
    standby.leading.set()
    standby.server.store.create(TENANTS, tenant_document("beta"))
    await let_pass(0.2)
    assert list(standby.running.standbys) == ["alpha"]  # until its runtime has listed the pods
