"""The HTTP server of page, health, metrics and hollow kubelet: limits by address, and strict requests."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import pytest

from tests.support.machine import patience
from tests.support.waiting import wait_until
from vkgateway.kube.tls import client_context
from vkgateway.nodes.http import Reply, Request, Session
from vkgateway.nodes.listener import HttpListener
from vkgateway.planes.pki import Authority
from vkgateway.serve.authorization import server_context

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"


class Client:
    """A connection whose bytes are written as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, request: bytes = GET) -> tuple[int, bytes]:
        """Send a request. Return status and body of the reply."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head.split(b" ")[1]), await self.reader.readexactly(length)

    async def is_closed(self) -> bool:
        """Return whether the server has closed the connection without a reply."""
        async with asyncio.timeout(patience(5)):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


class Server:
    """A listener, whose requests of `/held` wait for `release`, and its clients."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, connections: int = 8) -> None:
        self.release = asyncio.Event()
        self.held = 0
        self.listener = HttpListener(self._answer, name="test", tls=tls, connections=connections)
        self.port = 0
        self._clients: list[Client] = []

    async def connect(self, address: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> Client:
        """Connect from a loopback address."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, local_addr=(address, 0)))
        self._clients.append(client)
        return client

    async def hold(self, address: str) -> Client:
        """Connect, and send a request that is being answered until `release`."""
        client, before = await self.connect(address), self.held
        client.writer.write(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        await wait_until(lambda: self.held > before)
        return client

    async def _answer(self, request: Request, _: Session) -> Reply:
        if request.path == ("held",):
            self.held += 1
            await self.release.wait()
        return Reply(200, request.body)

    async def close(self) -> None:
        await self.listener.close()
        for client in self._clients:
            client.writer.transport.abort()
            with contextlib.suppress(OSError):
                await client.writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(*, tls: ssl.SSLContext | None = None, connections: int = 8) -> AsyncIterator[Server]:
    server = Server(tls=tls, connections=connections)
    server.port = await server.listener.listen_tcp("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


async def test_half_sent_requests_do_not_exclude_clients(server: Server) -> None:
    attacker = [await server.connect() for _ in range(40)]
    for one in attacker:
        one.writer.write(b"GET / HTTP/1.1\r\n")
    assert await (await server.connect()).ask() == (200, b"")
    assert await attacker[0].is_closed()
    assert await attacker[-1].ask(b"Host: x\r\n\r\n") == (200, b"")


async def test_address_does_not_close_connections_of_others(server: Server) -> None:
    other = await server.connect("127.0.0.2")
    assert await other.ask() == (200, b"")
    attacker = [await server.connect() for _ in range(40)]
    assert await other.ask() == (200, b"")
    assert await attacker[-3].is_closed()
    for one in attacker[-2:]:
        assert await one.ask() == (200, b"")


async def test_many_addresses_close_the_oldest_of_the_busiest(server: Server) -> None:
    attacker = [await server.connect(f"127.0.0.{3 + index // 2}") for index in range(8)]
    assert await (await server.connect("127.0.0.2")).ask() == (200, b"")
    assert await attacker[0].is_closed()
    assert await attacker[1].ask() == (200, b"")


async def test_requests_being_answered_are_not_closed(server: Server) -> None:
    """Open pages and metrics being read continue, whatever other clients do."""
    held = [await server.hold(f"127.0.0.{2 + index}") for index in range(6)]
    idle = [await server.connect("127.0.0.1") for _ in range(20)]
    assert await (await server.connect("127.0.0.1")).ask() == (200, b"")
    assert await idle[-2].is_closed()
    assert await idle[-1].ask() == (200, b"")
    server.release.set()
    for one in held:
        assert (await one.reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_all_connections_together_are_limited(server: Server) -> None:
    for index in range(8):
        await server.hold(f"127.0.0.{2 + index}")
    assert await (await server.connect()).is_closed()
    server.release.set()


async def test_pending_handshakes_do_not_exclude_clients() -> None:
    authority = Authority.create("test")
    pair = authority.issue("server", ips=("127.0.0.1",), server=True)
    async with serving(tls=server_context(cert=pair.cert_pem, key=pair.key_pem)) as server:
        idle = [await server.connect() for _ in range(20)]
        client = await server.connect(tls=client_context(ca=authority.cert_pem))
        assert await client.ask() == (200, b"")
        assert await idle[0].is_closed()


AMBIGUOUS = pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GET / HTTP/1.1\nHost: x\r\n\r\n", id="lf"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\n\r\n", id="lf-before-end"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\n", id="lf-at-end"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n", id="cr"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n a\r\n\r\n", id="folded"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\ta\r\n\r\n", id="folded-with-tab"),
        pytest.param(POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="two-lengths"),
        pytest.param(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="chunks-in-1.0"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\n", id="lf-after-chunks"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n", id="trailers"),
    ],
)


@AMBIGUOUS
async def test_ambiguous_requests_are_refused(server: Server, request_: bytes) -> None:
    client = await server.connect()
    assert (await client.ask(request_ + GET))[0] == 400
    assert await client.is_closed()


@AMBIGUOUS
async def test_ambiguous_requests_in_pieces_are_refused(server: Server, request_: bytes) -> None:
    client = await server.connect()
    with contextlib.suppress(ConnectionResetError):  # the server closes the connection before the last piece
        for byte in request_:
            client.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        assert b" 200 " not in await client.reader.read()


async def test_lines_of_bodies_are_not_checked(server: Server) -> None:
    client = await server.connect()
    body = b"a\nb\r c\n d\r\n\r\n e\n"
    for _ in range(2):
        assert await client.ask(POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body) == (200, body)
        chunks = b"4\r\na\n\n \r\n0\r\n\r\n"
        assert await client.ask(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks) == (200, b"a\n\n ")
    client.writer.write(GET + POST + b"Content-Length: 3\r\n\r\n\n \n" + GET)  # without waiting for replies
    replies = await client.reader.readuntil(b"\n \n")
    assert replies.count(b"HTTP/1.1 200 ") == 2
    assert (await client.reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_large_bodies_are_refused(server: Server) -> None:
    client = await server.connect()
    length = 64 * 1024 + 1
    assert (await client.ask(POST + f"Content-Length: {length}\r\n\r\n".encode() + b"x" * length))[0] == 413
