"""Lines to a server: handshakes whole, short and refused; ends that are told and ends that are cuts."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import pytest

from vkgateway.controlplane.pki import Authority
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.http1 import ConnectionClosedError, ConnectionPool
from vkgateway.kube.response_streams import StreamPool
from vkgateway.kube.tls import client_context, load_identity
from vkgateway.kube.tls_engine import TlsEngine
from vkgateway.kube.tls_protocol import Endpoint, TlsProtocol

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
ASKED = b" HTTP/1.1\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\nall"
CA = Authority.create("ca")


class Secure(asyncio.Protocol):
    """Answers each request with `answer`, then ends with a notice (`polite`), without one (`cut`), or not at all."""

    def __init__(self, context: ssl.SSLContext, answer: bytes, end: str) -> None:
        self.tls = TlsEngine(context, server_side=True)
        self.answer = answer
        self.end = end
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        with contextlib.suppress(ssl.SSLError):
            data = self.tls.decrypt_data(data)
            if ASKED in data:
                self.tls.encrypt_data(self.answer)
                if self.end == "polite":
                    self.tls.encrypt_close_notify()
        self.transport.write(self.tls.take_outgoing())
        if ASKED in data and self.end:
            self.transport.close()


@contextlib.asynccontextmanager
async def serving(
    *, answer: bytes = PLAIN, end: str = "", trusted: Authority = CA, name: str = "127.0.0.1", mutual: bool = False
) -> AsyncIterator[Endpoint]:
    pair = CA.issue("server", ips=(name,), server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_identity(context, cert=pair.cert_pem, key=pair.key_pem)
    context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
    context.load_verify_locations(cadata=CA.cert_pem.decode())
    loop = asyncio.get_running_loop()
    connections: list[Secure] = []

    def accept() -> Secure:
        connections.append(Secure(context, answer, end))
        return connections[-1]

    listening = await loop.create_server(accept, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield Endpoint(host="127.0.0.1", port=port, ssl=client_context(ca=trusted.cert_pem), connect_timeout=5)
    finally:
        listening.close()
        for connection in connections:
            connection.transport.abort()
            await connection.gone.wait()
        await listening.wait_closed()


@contextlib.asynccontextmanager
async def pool_of(server: Endpoint) -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool(server, limit=2)
    try:
        yield pool
    finally:
        await pool.close()


async def test_requests_over_tls() -> None:
    async with serving() as server, pool_of(server) as pool:
        for _ in range(3):
            assert (await pool.request("GET", REQUEST, timeout=5)).body == b"hello"


async def test_an_answer_larger_than_a_record_arrives_whole() -> None:
    body = bytes(range(256)) * 1000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with serving(answer=answer) as server, pool_of(server) as pool:
        assert (await pool.request("GET", REQUEST, timeout=5)).body == body


async def test_a_second_connection_takes_the_short_handshake() -> None:
    async with serving() as server:
        for _ in range(2):
            async with pool_of(server) as pool:
                await pool.request("GET", REQUEST, timeout=5)
        assert server.ssl is not None
        assert server.ssl.session_stats()["hits"] == 1


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_a_server_that_is_not_the_one_expected_is_refused(wrong: str) -> None:
    trusted = Authority.create("other") if wrong == "authority" else CA
    name = "127.0.0.2" if wrong == "name" else "127.0.0.1"
    async with serving(trusted=trusted, name=name) as server, pool_of(server) as pool:
        with pytest.raises(ssl.SSLCertVerificationError):
            await pool.request("GET", REQUEST, timeout=5)


async def test_only_an_end_that_was_told_completes_an_answer_without_a_length() -> None:
    async with serving(answer=ENDLESS, end="polite") as server, pool_of(server) as pool:
        assert (await pool.request("GET", REQUEST, timeout=5)).body == b"all"
    async with serving(answer=ENDLESS, end="cut") as server, pool_of(server) as pool:
        with pytest.raises(ConnectionClosedError):
            await pool.request("GET", REQUEST, timeout=5)


async def test_a_stream_knows_its_end_from_a_cut() -> None:
    async with serving(answer=ENDLESS, end="polite") as server:
        stream = await StreamPool(server).open_stream(REQUEST, inactivity=5)
        assert [await stream.read(), await stream.read()] == [b"all", b""]
    async with serving(answer=ENDLESS, end="cut") as server:
        stream = await StreamPool(server).open_stream(REQUEST, inactivity=5)
        assert await stream.read() == b"all"
        with pytest.raises(ConnectionError):
            await stream.read()


async def test_a_server_that_never_greets_is_given_up() -> None:
    held: list[asyncio.StreamWriter] = []

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server = Endpoint(host="127.0.0.1", port=port, ssl=client_context(ca=CA.cert_pem), connect_timeout=0.05)
    with pytest.raises(TimeoutError, match="no connection"):
        await server.open_connection(TlsProtocol())
    for writer in held:
        writer.close()
    listening.close()
    await listening.wait_closed()


async def test_a_server_that_hangs_up_in_the_handshake_is_an_error() -> None:
    async def rude(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listening = await asyncio.start_server(rude, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server = Endpoint(host="127.0.0.1", port=port, ssl=client_context(ca=CA.cert_pem), connect_timeout=5)
    with pytest.raises(ConnectionError):
        await server.open_connection(TlsProtocol())
    listening.close()
    await listening.wait_closed()


async def test_why_a_server_refuses_who_we_are_is_told() -> None:
    """By TLS 1.3 a client hears of it only after its own part of the handshake is done."""
    async with serving(mutual=True) as server, pool_of(server) as pool:
        with pytest.raises(ssl.SSLError, match="certificate required"):
            await pool.request("GET", REQUEST, timeout=5)
        with pytest.raises(ssl.SSLError, match="certificate required"):
            await StreamPool(server).open_stream(REQUEST, inactivity=5)


async def test_a_client_that_was_refused_for_its_certificate_takes_over_another() -> None:
    me = CA.issue("me", client=True)

    def renewal() -> tuple[ssl.SSLContext, None]:
        return client_context(ca=CA.cert_pem, cert=me.cert_pem, key=me.key_pem), None

    async with (
        serving(mutual=True) as server,
        Client(f"https://127.0.0.1:{server.port}", ssl=server.ssl, renewal=renewal) as client,
    ):
        with pytest.raises(errors.Unreachable, match="certificate required"):
            await client.request("GET", "/")
        assert await client.request("GET", "/") == b"hello"
