"""Callers that come in crowds, stand in the door or fill the memory: each gets its share, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tests.unit.kubelet.compute import Asked, Reader, Writer
from tests.unit.kubelet.conftest import Caller, Endpoint
from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.tls import client_context
from vkgateway.kubelet import connection_tracker, server
from vkgateway.kubelet.connection_tracker import ClientConnection, ConnectionTracker
from vkgateway.kubelet.shared_limit import SharedLimit

Make = Callable[..., Awaitable[Endpoint]]
LOG = "/containerLogs/default/web/main?follow=true"


class Somebody:
    """A wire, as far as guests know it; `gone` once its guest was sent away."""

    def __init__(self, peer: str) -> None:
        self.peer_address = peer
        self.gone = False
        self.guest = ClientConnection(cast("ByteStream", self))
        self.guest.task = cast("asyncio.Task[None]", self)

    def cancel(self) -> None:
        self.gone = True


async def test_who_only_connects_keeps_nobody_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is of those whose handshake is under way; the oldest goes, and a proper caller comes in."""
    monkeypatch.setattr(connection_tracker, "MAX_HANDSHAKES", 3)
    endpoint = await make()
    idlers = [await asyncio.open_connection("127.0.0.1", endpoint.server.port) for _ in range(8)]
    async with asyncio.timeout(10):
        assert (await (await endpoint.call()).ask("GET", "/healthz"))[0] == 200
        for reader, _ in idlers[:5]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
    assert len(list(endpoint.server._connections)) <= 4
    for _, writer in idlers:
        writer.transport.abort()


async def test_who_shows_no_certificate_keeps_nobody_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_tracker, "MAX_UNAUTHENTICATED_PER_ADDRESS", 1)
    endpoint = await make()
    context = client_context(ca=endpoint.authority.cert_pem)
    first = await endpoint.connect(context)
    second = await endpoint.connect(context)
    assert (await second.ask("GET", "/healthz"))[0] == 401
    with contextlib.suppress(ConnectionResetError):
        assert await first.reader.read() == b""
    assert (await (await endpoint.call()).ask("GET", "/healthz"))[0] == 200


def test_the_address_with_the_most_makes_room() -> None:
    made = ConnectionTracker(SharedLimit(10, 100))
    few = [Somebody("10.0.0.1:1"), Somebody("10.0.0.1:2")]
    many = [Somebody(f"10.0.0.2:{port}") for port in range(connection_tracker.MAX_HANDSHAKES)]
    for one in (*few, *many):
        made.add_connection(one.guest)
    assert not any(one.gone for one in few)
    assert [one.gone for one in many[:3]] == [True, True, False]
    assert sum(one.gone for one in many) == 2


def test_a_guest_that_leaves_is_counted_no_longer() -> None:
    shares = SharedLimit(10, 100)
    made = ConnectionTracker(shares)
    one, other = Somebody("10.0.0.1:1"), Somebody("10.0.0.1:2")
    made.add_connection(one.guest)
    assert made.assign_tenant(one.guest, "alpha")
    assert made.assign_tenant(one.guest, "alpha")
    made.add_connection(other.guest)
    made.mark_unauthenticated(other.guest)
    assert (shares.tenant_amount("alpha"), len(list(made))) == (1, 2)
    for there in (one, other):
        made.remove_connection(there.guest)
        made.remove_connection(there.guest)
    assert (shares.total_taken, list(made)) == (0, [])


async def test_a_task_that_is_cancelled_before_it_began_leaves_no_connection(endpoint: Endpoint) -> None:
    """A crowd may have to go in the very turn in which it came."""
    arrived = endpoint.server.accept_stream

    def ended(stream: ByteStream) -> None:
        arrived(stream)
        for guest in endpoint.server._connections:
            guest.cancel_task()

    endpoint.server.accept_stream = ended  # type: ignore[method-assign]
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.server.port)
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.transport.abort()


@pytest.mark.parametrize("certificate", [False, True])
async def test_a_connection_that_is_over_is_forgotten_at_once(endpoint: Endpoint, certificate: bool) -> None:
    """Not when the collector of cycles comes by: a crowd's would fill the memory until then."""
    gc.collect()
    gc.disable()
    try:
        if certificate:
            assert (await (await endpoint.call()).ask("GET", "/healthz"))[0] == 200
        else:
            _, writer = await asyncio.open_connection("127.0.0.1", endpoint.server.port)
            await _until(lambda: list(endpoint.server._connections) != [])
        kept = [weakref.ref(guest.stream) for guest in endpoint.server._connections]
        for guest in endpoint.server._connections:
            guest.cancel_task()
        del guest
        await _until(lambda: [ref() for ref in kept] == [None])
    finally:
        gc.enable()
        if not certificate:
            writer.transport.abort()


async def test_connections_are_bounded_by_tenant(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_OTHER_CONNECTIONS", 1)
    endpoint = await make(streams_per_tenant=1)
    endpoint.server.admit_tenant("beta")
    kept = [await endpoint.call() for _ in range(2)]
    for caller in kept:
        assert (await caller.ask("GET", "/healthz"))[0] == 200
    status, headers, body = await (await endpoint.call()).ask("GET", "/healthz")
    assert (status, headers["connection"], b"too many connections" in body) == (429, "close", True)
    assert (await (await endpoint.call("beta")).ask("GET", "/healthz"))[0] == 200
    kept[0].writer.transport.abort()
    async with asyncio.timeout(10):
        while (await (await endpoint.call()).ask("GET", "/healthz"))[0] == 429:
            pass


async def test_bodies_that_do_not_end_are_few(make: Make) -> None:
    """Requests that stop in the middle of their bodies fill no memory; another tenant's are taken meanwhile."""
    endpoint = await make(memory_max=100_000)
    endpoint.server.admit_tenant("beta")
    first, second, other = await endpoint.call(), await endpoint.call(), await endpoint.call("beta")
    _begin(first, 60_000)
    await _until(lambda: endpoint.server._memory_limiter.total_bytes() == 60_000)
    _begin(second, 60_000)
    status, _, body = await second.answer()
    assert (status, b"in memory" in body) == (429, True)
    assert (await other.send("POST", "/admission/gate", b"x" * 60_000))[0] == 400
    first.writer.transport.abort()
    await _until(lambda: endpoint.server._memory_limiter.total_bytes() == 0)
    assert (await (await endpoint.call()).send("POST", "/admission/gate", b"x" * 60_000))[0] == 400


async def _until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


def _begin(caller: Caller, size: int) -> None:
    head = f"POST /admission/gate HTTP/1.1\r\nHost: node\r\nContent-Length: {size + 1}\r\n\r\n"
    caller.writer.write(head.encode() + b"x" * size)


async def test_who_opens_what_streams_there_are_leaves_some(make: Make) -> None:
    endpoint = await make(streams_per_tenant=10, streams=4)
    endpoint.server.admit_tenant("beta")
    endpoint.compute.script = _silent
    for _ in range(2):
        assert await _follow(await endpoint.call()) == 200
    status, _, body = await (await endpoint.call()).ask("GET", LOG)
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
def test_shares_leave_something_for_the_next(total: int, taken: dict[str, int]) -> None:
    shares = SharedLimit(5, total)
    for _ in range(total):
        for tenant in taken:
            shares.try_acquire(tenant)
    assert {tenant: shares.tenant_amount(tenant) for tenant in taken} == taken
    assert shares.try_acquire("new")


def test_each_has_a_bound_of_its_own_and_one_thing_may_be_larger() -> None:
    shares = SharedLimit(5, 100)
    assert shares.try_acquire("alpha", 5)
    assert not shares.try_acquire("alpha", 1)
    shares.release_amount("alpha", 5)
    assert shares.try_acquire("alpha", 20)
    assert (shares.tenant_amount("alpha"), shares.total_taken, shares.total_left) == (20, 20, 80)
