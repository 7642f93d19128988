"""Write gate: which requests need a permission, and that it is checked when bytes are sent."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import FakeClock
from tests.support.machine import patience
from tests.support.waiting import wait_until
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS, LEASES, NODES, PODS
from vkgateway.kube.write_gate import WriteGate, boot_seconds

BODY = {"metadata": {"name": "a"}}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


@pytest.fixture
def gate(clock: FakeClock, client: Client) -> WriteGate:
    """Gate of the client that permits writes for four seconds."""
    gate = WriteGate(clock.monotonic)
    gate.extend(1004.0)
    client.guard_writes(gate)
    return gate


def test_boot_time_advances() -> None:
    first = boot_seconds()
    assert boot_seconds() >= first > 0


async def test_writes_are_sent_until_permission_expires(
    server: FakeApiServer, client: Client, gate: WriteGate, clock: FakeClock
) -> None:
    await client.create(CONFIG_MAPS, BODY, namespace="default")
    clock.seconds = 1004.0
    server.requests.clear()
    for refused in (
        client.create(CONFIG_MAPS, BODY, namespace="default"),
        client.create(PODS, BODY, namespace="default", name="a", subresource="eviction"),
        client.replace(CONFIG_MAPS, "a", BODY, namespace="default"),
        client.patch(NODES, "a", {}, subresource="status"),
        client.delete(CONFIG_MAPS, "a", namespace="default"),
    ):
        with pytest.raises(errors.NotLeader):
            await refused
    assert server.requests == []
    await client.get(CONFIG_MAPS, "a", namespace="default")
    gate.extend(1005.0)
    await client.delete(CONFIG_MAPS, "a", namespace="default")


async def test_closed_gate_stays_closed(client: Client, gate: WriteGate) -> None:
    gate.close()
    gate.extend(2000.0)
    assert not gate.is_open
    with pytest.raises(errors.NotLeader):
        await client.create(CONFIG_MAPS, BODY, namespace="default")


@pytest.mark.parametrize(
    ("method", "path", "permit"),
    [
        ("GET", "/api/v1/pods", None),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", None),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", None),
        ("POST", "/api/v1/namespaces/a/serviceaccounts/b/token", "writes"),
        ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a", "upkeep"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/vkgateway-system/leases/a", "writes"),
    ],
)
def test_permission_by_request(method: str, path: str, permit: str | None) -> None:
    gate = WriteGate()
    assert gate.permit_for(method, path) is (None if permit is None else getattr(gate, permit))


async def test_heartbeats_outlive_permission_to_write(client: Client, gate: WriteGate, clock: FakeClock) -> None:
    clock.seconds = 1010.0
    gate.upkeep.extend(1012.0)
    lease = {"metadata": {"name": "node"}}
    await client.create(LEASES, lease, namespace="kube-node-lease")
    with pytest.raises(errors.NotLeader):
        await client.create(LEASES, lease, namespace="default")
    gate.close()
    with pytest.raises(errors.NotLeader):
        await client.delete(LEASES, "node", namespace="kube-node-lease")


async def test_queued_request_is_checked_when_it_is_sent(server: FakeApiServer, clock: FakeClock) -> None:
    """The request passed the first check, and waits for a free connection while the permission expires."""
    gate = WriteGate(clock.monotonic)
    gate.extend(1004.0)
    async with Client(server.url, max_connections=1) as client:
        client.guard_writes(gate)
        answer = server.hold("GET", "/api/v1/nodes")
        reading = asyncio.create_task(client.list_all(NODES))
        await server.until(lambda: server.requests)
        writing = asyncio.create_task(client.create(CONFIG_MAPS, BODY, namespace="default"))
        await asyncio.sleep(0)
        clock.seconds = 1060.0
        answer.set()
        await reading
        with pytest.raises(errors.NotLeader):
            await writing
    assert server.store.find(CONFIG_MAPS, "a", "default") is None


async def test_gate_waits_for_writes_in_progress(server: FakeApiServer, client: Client, gate: WriteGate) -> None:
    answer = server.hold("POST", "/configmaps")
    writing = asyncio.create_task(client.create(CONFIG_MAPS, BODY, namespace="default"))
    await server.until(lambda: server.requests)
    gate.close()
    assert not await gate.writes.wait_idle(timeout=0.01)
    answer.set()
    assert await gate.writes.wait_idle(timeout=patience(10))
    await writing


@pytest.mark.parametrize("is_frozen", [True, False])
async def test_large_request_is_completed_only_with_permission(clock: FakeClock, *, is_frozen: bool) -> None:
    """A frozen process has sent a part of its request, and the rest is in its memory."""
    gate = WriteGate(clock.monotonic)
    gate.extend(1004.0)
    begun, may_read, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    received = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        received = len(await reader.read(1))
        begun.set()
        await may_read.wait()
        while received < size and (data := await reader.read(65536)):
            received += len(data)
        if received >= size:
            writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
        ended.set()
        await writer.drain()
        writer.close()

    body = b"x" * (24 * 1024 * 1024)  # more than the buffers of the kernel
    size = len(body)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=65536) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}") as client:
            client.guard_writes(gate)
            writing = asyncio.create_task(client.create(CONFIG_MAPS, body, namespace="default"))
            async with asyncio.timeout(patience(10)):
                await begun.wait()
            clock.seconds += 60.0 if is_frozen else 1.0
            may_read.set()
            if is_frozen:
                with pytest.raises(errors.NotLeader):
                    await writing
            else:
                assert await writing == b"{}"
            await ended.wait()
    assert (received < size) == is_frozen


async def test_expired_permission_takes_back_undelivered_requests(clock: FakeClock) -> None:
    """A server without network receives nothing after the permission has expired, when packets flow again."""
    gate = WriteGate(clock.monotonic)
    gate.extend(1004.0)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        async with Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            client.guard_writes(gate)
            body = b"x" * (4 * 1024 * 1024)
            writing = asyncio.create_task(client.create(CONFIG_MAPS, body, namespace="default"))
            async with asyncio.timeout(patience(10)):
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            with connection:
                # The kernel has the first part, and waits for space at the receiver.
                await wait_until(lambda: select.select([connection], [], [], 0)[0])
                clock.seconds = 1004.0
                gate.writes.revoke_requests()
                with pytest.raises((errors.Unreachable, errors.NotLeader)):
                    await writing
                connection.settimeout(patience(5))
                assert _count_until_reset(connection) < len(body)


def _count_until_reset(connection: socket.socket) -> int:
    """Return the number of bytes that arrive before the peer resets the connection."""
    count = 0
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            count += len(data)
    return count
