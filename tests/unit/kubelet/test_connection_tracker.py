"""Limits of connections, handshakes and memory, which keep the endpoint available for other clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tests.support.machine import patience
from tests.support.waiting import wait_until
from tests.unit.kubelet.compute import Asked, Reader, Writer
from tests.unit.kubelet.conftest import Caller, Endpoint
from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.tls import client_context
from vkgateway.nodes import connection_tracker, server
from vkgateway.nodes.connection_tracker import ClientConnection, ConnectionTracker
from vkgateway.nodes.limits import SharedLimit

Make = Callable[..., Awaitable[Endpoint]]
LOG = "/containerLogs/default/web/main?follow=true"


class FakeStream:
    """A stream with its connection and task. `closed` is set when the task is cancelled."""

    def __init__(self, peer: str) -> None:
        self.peer_address = peer
        self.closed = False
        self.connection = ClientConnection(cast("ByteStream", self))
        self.connection.task = cast("asyncio.Task[None]", self)

    def cancel(self) -> None:
        self.closed = True


async def test_pending_handshakes_do_not_exclude_clients(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of handshakes, the oldest connection is closed, and a legitimate client is served."""
    monkeypatch.setattr(connection_tracker, "MAX_HANDSHAKES", 3)
    endpoint = await make()
    idlers = [await asyncio.open_connection("127.0.0.1", endpoint.server.port) for _ in range(8)]
    async with asyncio.timeout(patience(10)):
        assert (await (await endpoint.call()).request("GET", "/healthz"))[0] == 200
        for reader, _ in idlers[:5]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
    assert len(list(endpoint.server._connections)) <= 4
    for _, writer in idlers:
        writer.transport.abort()


async def test_unauthenticated_connections_do_not_exclude_clients(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_tracker, "MAX_UNAUTHENTICATED_PER_ADDRESS", 1)
    endpoint = await make()
    context = client_context(ca=endpoint.authority.cert_pem)
    first = await endpoint.connect(context)
    second = await endpoint.connect(context)
    assert (await second.request("GET", "/healthz"))[0] == 401
    with contextlib.suppress(ConnectionResetError):
        assert await first.reader.read() == b""
    assert (await (await endpoint.call()).request("GET", "/healthz"))[0] == 200


def test_oldest_connection_of_busiest_address_is_closed() -> None:
    made = ConnectionTracker(SharedLimit(10, 100))
    few = [FakeStream("10.0.0.1:1"), FakeStream("10.0.0.1:2")]
    many = [FakeStream(f"10.0.0.2:{port}") for port in range(connection_tracker.MAX_HANDSHAKES)]
    for one in (*few, *many):
        made.add_connection(one.connection)
    assert not any(one.closed for one in few)
    assert [one.closed for one in many[:3]] == [True, True, False]
    assert sum(one.closed for one in many) == 2


def test_closed_connection_is_not_counted() -> None:
    shares = SharedLimit(10, 100)
    made = ConnectionTracker(shares)
    one, other = FakeStream("10.0.0.1:1"), FakeStream("10.0.0.1:2")
    made.add_connection(one.connection)
    assert made.assign_tenant(one.connection, "alpha")
    assert made.assign_tenant(one.connection, "alpha")
    made.add_connection(other.connection)
    made.mark_unauthenticated(other.connection)
    assert (shares.tenant_amount("alpha"), len(list(made))) == (1, 2)
    for there in (one, other):
        made.remove_connection(there.connection)
        made.remove_connection(there.connection)
    assert (shares.total_taken, list(made)) == (0, [])


async def test_connection_of_task_cancelled_before_start_is_closed(endpoint: Endpoint) -> None:
    """Connections may be closed in the loop iteration in which they were accepted."""
    arrived = endpoint.server.accept_stream

    def ended(stream: ByteStream) -> None:
        arrived(stream)
        for connection in endpoint.server._connections:
            connection.cancel_task()

    endpoint.server.accept_stream = ended  # type: ignore[method-assign]
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.server.port)
    async with asyncio.timeout(patience(5)):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.transport.abort()


@pytest.mark.parametrize("certificate", [False, True])
async def test_closed_connection_is_freed_without_garbage_collector(endpoint: Endpoint, certificate: bool) -> None:
    """Many connections would fill the memory until the next garbage collection."""
    gc.collect()
    gc.disable()
    try:
        if certificate:
            assert (await (await endpoint.call()).request("GET", "/healthz"))[0] == 200
        else:
            _, writer = await asyncio.open_connection("127.0.0.1", endpoint.server.port)
            await wait_until(lambda: list(endpoint.server._connections) != [])
        kept = [weakref.ref(connection.stream) for connection in endpoint.server._connections]
        for connection in endpoint.server._connections:
            connection.cancel_task()
        del connection
        await wait_until(lambda: [ref() for ref in kept] == [None])
    finally:
        gc.enable()
        if not certificate:
            writer.transport.abort()


async def test_connections_are_limited_per_tenant(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_OTHER_CONNECTIONS", 1)
    endpoint = await make(streams_per_tenant=1)
    endpoint.server.admit_tenant("beta")
    kept = [await endpoint.call() for _ in range(2)]
    for caller in kept:
        assert (await caller.request("GET", "/healthz"))[0] == 200
    status, headers, body = await (await endpoint.call()).request("GET", "/healthz")
    assert (status, headers["connection"], b"too many connections" in body) == (429, "close", True)
    assert (await (await endpoint.call("beta")).request("GET", "/healthz"))[0] == 200
    kept[0].writer.transport.abort()
    async with asyncio.timeout(patience(10)):
        while (await (await endpoint.call()).request("GET", "/healthz"))[0] == 429:
            pass


async def test_unfinished_bodies_are_limited_per_tenant(make: Make) -> None:
    """Requests with unfinished bodies do not fill the memory, and requests of another tenant are served."""
    endpoint = await make(memory_max=100_000)
    endpoint.server.admit_tenant("beta")
    first, second, other = await endpoint.call(), await endpoint.call(), await endpoint.call("beta")
    _begin(first, 60_000)
    await wait_until(lambda: endpoint.server._memory_limiter.total_bytes() == 60_000)
    _begin(second, 60_000)
    status, _, body = await second.answer()
    assert (status, b"in memory" in body) == (429, True)
    assert (await other.send("POST", "/admission/gate", b"x" * 60_000))[0] == 400
    first.writer.transport.abort()
    await wait_until(lambda: endpoint.server._memory_limiter.total_bytes() == 0)
    assert (await (await endpoint.call()).send("POST", "/admission/gate", b"x" * 60_000))[0] == 400


def _begin(caller: Caller, size: int) -> None:
    head = f"POST /admission/gate HTTP/1.1\r\nHost: node\r\nContent-Length: {size + 1}\r\n\r\n"
    caller.writer.write(head.encode() + b"x" * size)


async def test_one_tenant_leaves_streams_for_others(make: Make) -> None:
    endpoint = await make(streams_per_tenant=10, streams=4)
    endpoint.server.admit_tenant("beta")
    endpoint.compute.script = _silent
    for _ in range(2):
        assert await _follow(await endpoint.call()) == 200
    status, _, body = await (await endpoint.call()).request("GET", LOG)
    assert (status, b"2 logs, exec, attach and port-forward streams are open already" in body) == (429, True)
    assert b"left for all others" in body
    assert await _follow(await endpoint.call("beta")) == 200
    assert await _follow(await endpoint.call("beta")) == 429


async def _silent(_: Asked, reader: Reader, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    await reader.read()


async def _follow(caller: Caller) -> int:
    caller.writer.write(f"GET {LOG} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
    return int((await caller.reader.readuntil(b"\r\n\r\n")).split(b" ")[1])


@pytest.mark.parametrize(
    ("total", "taken"),
    [
        (8, {"alpha": 4}),
        (100, {"alpha": 5}),
        (9, {"alpha": 3, "beta": 3}),
        (9, {"alpha": 3, "beta": 2, "gamma": 2}),
    ],
)
def test_shared_limit_leaves_amount_for_next_tenant(total: int, taken: dict[str, int]) -> None:
    shares = SharedLimit(5, total)
    for _ in range(total):
        for tenant in taken:
            shares.try_acquire(tenant)
    assert {tenant: shares.tenant_amount(tenant) for tenant in taken} == taken
    assert shares.try_acquire("new")


def test_first_amount_may_exceed_tenant_limit() -> None:
    shares = SharedLimit(5, 100)
    assert shares.try_acquire("alpha", 5)
    assert not shares.try_acquire("alpha", 1)
    shares.release_amount("alpha", 5)
    assert shares.try_acquire("alpha", 20)
    assert (shares.tenant_amount("alpha"), shares.total_taken, shares.total_left) == (20, 20, 80)
