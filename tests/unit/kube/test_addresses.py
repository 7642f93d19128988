"""Hosts with several addresses: the first that answers is taken, also where another is silent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from vkgateway.kube import transport
from vkgateway.kube.client import Client
from vkgateway.kube.http1 import ConnectionPool
from vkgateway.kube.tls_protocol import Endpoint
from vkgateway.kube.upgrade import dial_server

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
SILENT, ANSWERING = "127.0.0.2", "127.0.0.1"


@contextlib.contextmanager
def silence(port: int) -> Iterator[None]:
    """An address from which nothing comes back, as of a machine that is switched off: its backlog is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((SILENT, port))
        listening.listen(0)
        for _ in range(3):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                caller.connect((SILENT, port))
        yield


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a server at one address; at the other nobody says anything."""

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
def known(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the host `api.test`, in the order in which the resolver gives them."""
    addresses: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "api.test"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", staticmethod(getaddrinfo))
    return addresses


async def ask(server: Endpoint) -> bytes:
    pool = ConnectionPool(server, limit=1)
    try:
        return (await pool.request("GET", REQUEST, timeout=10)).body
    finally:
        await pool.close()


async def test_an_address_that_is_silent_leaves_the_next_its_time(port: int, known: list[str]) -> None:
    known[:] = [SILENT, ANSWERING]
    server = Endpoint(host="api.test", port=port, ssl=None, connect_timeout=1.0)
    assert await ask(server) == b"ok"


async def test_the_one_that_answered_goes_first(port: int, known: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    known[:] = [SILENT, ANSWERING]
    server = Endpoint(host="api.test", port=port, ssl=None, connect_timeout=1.0)
    await ask(server)
    tried: list[str] = []
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def noted(factory: Any, host: str, port: int) -> Any:
        tried.append(host)
        return await connect(factory, host, port)

    monkeypatch.setattr(loop, "create_connection", noted)
    assert await ask(server) == b"ok"
    assert tried == [ANSWERING]


async def test_an_upgrade_goes_where_requests_were_answered_first(
    port: int, known: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known[:] = [SILENT, ANSWERING]
    monkeypatch.setattr(transport, "_CONNECT_TIMEOUT", 1.0)
    async with Client(f"http://api.test:{port}") as client:
        await client.request("GET", "/version")
        async with asyncio.timeout(10):
            wire = await dial_server(client, timeout=60)
        wire.abort()
        await wire.close_gracefully(linger=1.0)


async def test_addresses_that_change_are_followed(port: int, known: list[str]) -> None:
    known[:] = [ANSWERING]
    server = Endpoint(host="api.test", port=port, ssl=None, connect_timeout=0.5)
    await ask(server)
    known[:] = [SILENT]
    with pytest.raises(TimeoutError):
        await ask(server)


async def test_what_the_last_one_says_is_told(known: list[str]) -> None:
    known[:] = [ANSWERING, SILENT]
    with pytest.raises(ConnectionRefusedError):
        await ask(Endpoint(host="api.test", port=1, ssl=None, connect_timeout=1.0))
