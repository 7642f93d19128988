"""Leadership of a replica: acquisition, loss and release of the Lease around the leader's work."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from tests.support.machine import patience
from tests.support.waiting import wait_until
from vkgateway.api.errors import ConflictError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.kube.client import Client
from vkgateway.kube.resources import LEASES, NAMESPACES
from vkgateway.serve import rbac
from vkgateway.serve.leadership import LEASE_NAME, Leadership
from vkgateway.settings.config import LeaderElection

FAST = LeaderElection(lease_seconds=math.ceil(patience(1)), renew_seconds=0.05, retry_seconds=0.01)


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


async def nothing() -> None:
    """Free no space."""


def holder(server: FakeApiServer) -> str:
    return str(server.store.get(LEASES, LEASE_NAME, SYSTEM_NAMESPACE)["spec"].get("holderIdentity", ""))


async def serve() -> None:
    """Work until cancelled."""
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def running(leadership: Leadership, work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(leadership.run(work, free_space=nothing))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_leader_stores_what_it_counted_before_it_stops_writing(client: Client) -> None:
    stored: list[bool] = []
    leader = Leadership(client, identity="host/1", settings=FAST)

    async def store() -> None:
        stored.append(leader.gate.is_open)
        raise ConflictError("the management cluster is down")

    leader.last_writes.push_async_callback(store)
    async with running(leader, serve()):
        await leader.leading.wait()
    assert stored == [True]
    assert leader.role != "leader"


async def test_leader_releases_lease_before_its_work_ends(server: FakeApiServer, client: Client) -> None:
    leader = Leadership(client, identity="host/1", settings=FAST)
    standby = Leadership(client, identity="host/2", settings=FAST)
    holders: list[str] = []

    async def work() -> None:
        try:
            await serve()
        finally:
            holders.append(holder(server))

    async with running(leader, work()) as leading:
        await leader.leading.wait()
        assert leader.role == "leader"
        async with running(standby, serve()):
            await server.until(lambda: standby.role == "standby of host/1")
            leading.cancel()
            await standby.leading.wait()
            await wait_until(lambda: holders)
            assert holders[0] in ("", "host/2"), "the standby may acquire it before the work knows of its end"
            assert not leader.gate.is_open
            assert (holder(server), standby.role) == ("host/2", "leader")


async def test_each_leader_exports_how_often_the_lease_changed_its_holder(client: Client) -> None:
    seen: list[float] = []
    for _ in range(3):  # restarts of one process, too
        leader = Leadership(client, identity="host/1", settings=FAST)
        assert math.isnan(transitions())
        async with running(leader, serve()):
            await leader.leading.wait()
            seen.append(transitions())
    assert seen == [0, 1, 2]


def transitions() -> float:
    found = REGISTRY.get_sample_value("vkgateway_lease_transitions")
    assert found is not None
    return found


async def test_work_ends_when_lease_is_lost(server: FakeApiServer, client: Client) -> None:
    leader = Leadership(client, identity="host/1", settings=FAST)
    states: list[bool] = []

    async def work() -> None:
        await leader.leading.wait()
        lost = server.store.get(LEASES, LEASE_NAME, SYSTEM_NAMESPACE)["spec"] | {"holderIdentity": "host/2"}
        server.store.delete(LEASES, LEASE_NAME, SYSTEM_NAMESPACE)
        server.store.create(LEASES, {"metadata": {"name": LEASE_NAME}, "spec": lost}, SYSTEM_NAMESPACE)
        try:
            await serve()
        finally:
            states.append(leader.gate.is_open)

    with pytest.raises(ConflictError, match="this gateway does not lead anymore: host/2 holds the Lease"):
        await leader.run(work(), free_space=nothing)
    assert states == [False]


async def test_failure_of_work_releases_lease(server: FakeApiServer, client: Client) -> None:
    leader = Leadership(client, identity="host/1", settings=FAST)

    async def work() -> None:
        await leader.leading.wait()
        raise RuntimeError("defect")

    with pytest.raises(RuntimeError, match="defect"):
        await leader.run(work(), free_space=nothing)
    assert holder(server) == ""


async def test_outage_pauses_writes_but_not_heartbeats(server: FakeApiServer, client: Client) -> None:
    settings = LeaderElection(lease_seconds=math.ceil(patience(1)), renew_seconds=0.1, retry_seconds=0.1)
    leader = Leadership(client, identity="host/1", settings=settings)

    async def work() -> None:
        await leader.leading.wait()
        server.fail("PUT", "/leases", status=503, times=10_000)
        await wait_until(lambda: not leader.gate.is_open)
        assert leader.gate.upkeep.is_valid
        assert leader.role.startswith("leader, paused")
        assert "503" in leader.problem
        server.heal()
        await wait_until(lambda: leader.gate.is_open)

    async with asyncio.timeout(patience(30)):
        await leader.run(work(), free_space=nothing)


async def test_first_start_creates_namespace_of_lease(server: FakeApiServer, client: Client) -> None:
    server.rights = None
    server.store.delete(NAMESPACES, SYSTEM_NAMESPACE)
    server.fail("POST", "/leases", status=404)
    leader = Leadership(client, identity="host/1", settings=FAST)
    async with running(leader, serve()):
        await leader.leading.wait()
        assert server.store.find(NAMESPACES, SYSTEM_NAMESPACE) is not None
        assert holder(server) == "host/1"


async def test_gateway_without_permission_for_lease_says_so_and_waits(server: FakeApiServer, client: Client) -> None:
    server.rights = Rights([document for document in rbac.management_roles() if document["kind"] != "Role"])
    leadership = Leadership(client, identity="host/1", settings=FAST)
    async with running(leadership, serve()):
        await server.until(lambda: "no permission for the Lease vkgateway-system/gateway" in leadership.problem)
        assert not leadership.leading.is_set()
        server.rights = Rights.of_management()
        await leadership.leading.wait()


async def test_space_is_freed_for_lease(server: FakeApiServer, client: Client) -> None:
    leadership = Leadership(client, identity="host/1", settings=FAST)
    server.fail("POST", "/leases", status=500, reason="etcdserver: mvcc: database space exceeded")
    freed: list[bool] = []

    async def free() -> None:
        freed.append(leadership.gate.upkeep.is_valid)

    await leadership.run(leadership.leading.wait(), free_space=free)  # type: ignore[arg-type] # returns True
    assert freed == [True]
