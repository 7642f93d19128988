"""Hosts with several addresses: the client uses the first address that answers, even if another one is silent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.machine import patience
from vkgateway.kube import transport
from vkgateway.kube.client import Client
from vkgateway.kube.endpoint import Endpoint
from vkgateway.kube.http1 import ConnectionPool
from vkgateway.kube.upgrade import dial_server

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
SILENT, ANSWERING = "127.0.0.2", "127.0.0.1"


@contextlib.contextmanager
def silence(port: int) -> Iterator[None]:
    """Make an address silent, like a machine that is switched off: the backlog of its listener is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((SILENT, port))
        listening.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect((SILENT, port))
        yield


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a server at one address. The other address is silent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    listening = await asyncio.start_server(serve, ANSWERING, 0)
    number = listening.sockets[0].getsockname()[1]
    try:
        with silence(number):
            yield number
    finally:
        listening.close()
        await listening.wait_closed()


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the host `api.test`, in the resolver's order."""
    found: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "api.test"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", staticmethod(getaddrinfo))
    return found


async def send_request(server: Endpoint) -> bytes:
    pool = ConnectionPool(server, limit=1)
    try:
        return (await pool.request("GET", REQUEST, timeout=patience(10))).body
    finally:
        await pool.close()


async def test_silent_address_leaves_time_for_next_address(port: int, addresses: list[str]) -> None:
    addresses[:] = [SILENT, ANSWERING]
    server = Endpoint(host="api.test", port=port, ssl=None, connect_timeout=patience(1))
    assert await send_request(server) == b"ok"


async def test_last_good_address_is_tried_first(
    port: int, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses[:] = [SILENT, ANSWERING]
    server = Endpoint(host="api.test", port=port, ssl=None, connect_timeout=patience(1))
    await send_request(server)
    tried: list[str] = []
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def record(factory: Any, host: str, port: int) -> Any:
        tried.append(host)
        return await connect(factory, host, port)

    monkeypatch.setattr(loop, "create_connection", record)
    assert await send_request(server) == b"ok"
    assert tried == [ANSWERING]


async def test_upgrade_prefers_last_good_address_of_requests(
    port: int, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses[:] = [SILENT, ANSWERING]
    monkeypatch.setattr(transport, "_CONNECT_TIMEOUT", patience(1))
    async with Client(f"http://api.test:{port}") as client:
        await client.request("GET", "/version")
        async with asyncio.timeout(patience(10)):
            stream = await dial_server(client, timeout=60)
        stream.abort()
        await stream.close_gracefully(linger=1.0)


async def test_host_is_resolved_for_every_connection(port: int, addresses: list[str]) -> None:
    addresses[:] = [ANSWERING]
    server = Endpoint(host="api.test", port=port, ssl=None, connect_timeout=patience(0.5))
    await send_request(server)
    addresses[:] = [SILENT]
    with pytest.raises(TimeoutError):
        await send_request(server)


async def test_error_of_last_address_is_raised(addresses: list[str]) -> None:
    addresses[:] = [ANSWERING, SILENT]
    with pytest.raises(ConnectionRefusedError):
        await send_request(Endpoint(host="api.test", port=1, ssl=None, connect_timeout=1.0))
