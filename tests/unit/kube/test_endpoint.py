"""Connections to a server: full, resumed and refused TLS handshakes; regular and truncated ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import pytest
import uvloop

from tests.support.machine import patience
from tests.support.waiting import let_pass
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.endpoint import Endpoint
from vkgateway.kube.http1 import ConnectionClosedError, ConnectionPool
from vkgateway.kube.response_streams import StreamPool
from vkgateway.kube.tls import client_context, load_identity
from vkgateway.kube.tls_engine import TlsEngine
from vkgateway.kube.tls_protocol import TlsProtocol
from vkgateway.kube.write_gate import Permit
from vkgateway.planes.pki import Authority

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
REQUEST_LINE_END = b" HTTP/1.1\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\nall"
CA = Authority.create("ca")


class TlsServer(asyncio.Protocol):
    """TLS server that sends `answer` to each request. `end` is `regular` (close_notify), `truncated` (EOF) or empty."""

    def __init__(self, context: ssl.SSLContext, answer: bytes, end: str) -> None:
        self.tls = TlsEngine(context, server_side=True)
        self.answer = answer
        self.end = end
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        with contextlib.suppress(ssl.SSLError):
            data = self.tls.decrypt_data(data)
            if REQUEST_LINE_END in data:
                self.tls.encrypt_data(self.answer)
                if self.end == "regular":
                    self.tls.encrypt_close_notify()
        self.transport.write(self.tls.take_outgoing())
        if REQUEST_LINE_END in data and self.end:
            self.transport.close()


@contextlib.asynccontextmanager
async def serving(
    *,
    answer: bytes = PLAIN,
    end: str = "",
    trusted: Authority = CA,
    name: str = "127.0.0.1",
    mutual: bool = False,
    server_type: type[TlsServer] = TlsServer,
) -> AsyncIterator[Endpoint]:
    pair = CA.issue("server", ips=(name,), server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_identity(context, cert=pair.cert_pem, key=pair.key_pem)
    context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
    context.load_verify_locations(cadata=CA.cert_pem.decode())
    loop = asyncio.get_running_loop()
    connections: list[TlsServer] = []

    def accept() -> TlsServer:
        connections.append(server_type(context, answer, end))
        return connections[-1]

    listening = await loop.create_server(accept, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield Endpoint(
            host="127.0.0.1", port=port, ssl=client_context(ca=trusted.cert_pem), connect_timeout=patience(5)
        )
    finally:
        listening.close()
        for connection in connections:
            connection.transport.abort()
            await connection.closed.wait()
        await listening.wait_closed()


@contextlib.asynccontextmanager
async def open_pool(server: Endpoint) -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool(server, limit=2)
    try:
        yield pool
    finally:
        await pool.close()


async def test_requests_share_tls_connection() -> None:
    async with serving() as server, open_pool(server) as pool:
        for _ in range(3):
            assert (await pool.request("GET", REQUEST, timeout=patience(5))).body == b"hello"


async def test_response_larger_than_tls_record_is_complete() -> None:
    body = bytes(range(256)) * 1000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with serving(answer=answer) as server, open_pool(server) as pool:
        assert (await pool.request("GET", REQUEST, timeout=patience(5))).body == body


async def test_second_connection_resumes_tls_session() -> None:
    async with serving() as server:
        for _ in range(2):
            async with open_pool(server) as pool:
                await pool.request("GET", REQUEST, timeout=patience(5))
        assert server.ssl is not None
        assert server.ssl.session_stats()["hits"] == 1


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_server_with_wrong_certificate_is_refused(wrong: str) -> None:
    trusted = Authority.create("other") if wrong == "authority" else CA
    name = "127.0.0.2" if wrong == "name" else "127.0.0.1"
    async with serving(trusted=trusted, name=name) as server, open_pool(server) as pool:
        with pytest.raises(ssl.SSLCertVerificationError):
            await pool.request("GET", REQUEST, timeout=patience(5))


async def test_truncated_response_without_length_is_an_error() -> None:
    async with serving(answer=ENDLESS, end="regular") as server, open_pool(server) as pool:
        assert (await pool.request("GET", REQUEST, timeout=patience(5))).body == b"all"
    async with serving(answer=ENDLESS, end="truncated") as server, open_pool(server) as pool:
        with pytest.raises(ConnectionClosedError):
            await pool.request("GET", REQUEST, timeout=patience(5))


async def test_truncated_stream_without_length_is_an_error() -> None:
    async with serving(answer=ENDLESS, end="regular") as server:
        stream = await StreamPool(server).open_stream(REQUEST, inactivity=5)
        assert [await stream.read(), await stream.read()] == [b"all", b""]
    async with serving(answer=ENDLESS, end="truncated") as server:
        stream = await StreamPool(server).open_stream(REQUEST, inactivity=5)
        assert await stream.read() == b"all"
        with pytest.raises(ConnectionError):
            await stream.read()


async def test_handshake_with_silent_server_times_out() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def ignore(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    listening = await asyncio.start_server(ignore, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server = Endpoint(host="127.0.0.1", port=port, ssl=client_context(ca=CA.cert_pem), connect_timeout=0.05)
    with pytest.raises(TimeoutError, match="no connection"):
        await server.open_connection(TlsProtocol())
    for writer in writers:
        writer.close()
    listening.close()
    await listening.wait_closed()


async def test_connection_closed_during_handshake_is_an_error() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listening = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server = Endpoint(host="127.0.0.1", port=port, ssl=client_context(ca=CA.cert_pem), connect_timeout=patience(5))
    with pytest.raises(ConnectionError):
        await server.open_connection(TlsProtocol())
    listening.close()
    await listening.wait_closed()


async def test_refused_client_certificate_is_the_reported_error() -> None:
    """In TLS 1.3 the refusal arrives after the client has completed its part of the handshake."""
    async with serving(mutual=True) as server, open_pool(server) as pool:
        with pytest.raises(ssl.SSLError, match="certificate required"):
            await pool.request("GET", REQUEST, timeout=patience(5))
        with pytest.raises(ssl.SSLError, match="certificate required"):
            await StreamPool(server).open_stream(REQUEST, inactivity=5)


async def test_refused_client_certificate_is_renewed() -> None:
    pair = CA.issue("me", client=True)

    def renewal() -> tuple[ssl.SSLContext, None]:
        return client_context(ca=CA.cert_pem, cert=pair.cert_pem, key=pair.key_pem), None

    async with (
        serving(mutual=True) as server,
        Client(f"https://127.0.0.1:{server.port}", ssl=server.ssl, renewal=renewal) as client,
    ):
        with pytest.raises(errors.Unreachable, match="certificate required"):
            await client.request("GET", "/")
        assert await client.request("GET", "/") == b"hello"


class Recorder(TlsProtocol):
    """Protocol that records its bytes and its end."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.ends: list[Exception | None] = []

    def handle_data(self, data: bytes) -> None:
        self.data += data

    def handle_close(self, error: Exception | None) -> None:
        self.ends.append(error)


@pytest.mark.parametrize("iterations", range(5))
@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_connection_cancelled_at_any_time_is_closed(run: Callable[..., Any], iterations: int) -> None:
    async def main(port: int) -> None:
        server = Endpoint(host="127.0.0.1", port=port, ssl=client_context(ca=CA.cert_pem))
        task = asyncio.create_task(server.open_connection(Recorder()))
        for _ in range(iterations):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await let_pass(0.05)
        try:
            peer, _ = listener.accept()
        except BlockingIOError:
            return  # cancelled before connect
        with peer, contextlib.suppress(ConnectionResetError):
            peer.setblocking(False)
            while peer.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        run(main(listener.getsockname()[1]))


async def test_handed_over_connection_keeps_partial_tls_record() -> None:
    """The engine holds the first half of a record when another protocol takes the connection over."""
    pair = CA.issue("server", ips=("127.0.0.1",), server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_identity(context, cert=pair.cert_pem, key=pair.key_pem)
    server = TlsEngine(context, server_side=True)
    first, second = Recorder(), Recorder()
    first.tls = TlsEngine(client_context(ca=CA.cert_pem), server_side=False, server_name="127.0.0.1")
    transport = MemoryTransport()
    first.connection_made(transport)
    while not first.tls.is_established:
        server.decrypt_data(transport.take_sent())
        first.data_received(server.take_outgoing())
    server.decrypt_data(transport.take_sent())
    server.encrypt_data(b"response")
    response = server.take_outgoing()
    server.encrypt_data(b"next")
    following = server.take_outgoing()
    first.data_received(response + following[:10])
    first.hand_over_to(second)
    assert transport.get_protocol() is second
    second.data_received(following[10:])
    assert (first.data, second.data) == (b"response", b"next")
    assert (first.transport, first.ends) == (None, [None])
    second.write(b"request")
    assert server.decrypt_data(transport.take_sent()) == b"request"


async def test_large_request_arrives_unchanged() -> None:
    body = bytes(range(256)) * 1000
    received = bytearray()
    complete = asyncio.Event()

    class Collector(TlsServer):
        def data_received(self, data: bytes) -> None:
            received.extend(self.tls.decrypt_data(data))
            self.transport.write(self.tls.take_outgoing())
            if len(received) >= len(body):
                complete.set()

    async with serving(server_type=Collector) as server:
        protocol = await server.open_connection(Recorder())
        protocol.write(body)
        async with asyncio.timeout(patience(5)):
            await complete.wait()
        protocol.abort()
    assert bytes(received) == body


class MemoryTransport(asyncio.Transport):
    """Transport that records the sent bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def take_sent(self) -> bytes:
        sent, self.sent = self.sent, b""
        return sent

    def is_closing(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol


class RecordingServer(TlsServer):
    """TLS server that keeps what it receives."""

    received: ClassVar[list[bytes]] = []

    def data_received(self, data: bytes) -> None:
        self.received.append(data)
        super().data_received(data)


async def test_permission_that_ends_during_encryption_lets_nothing_out() -> None:
    times = iter((0.0, 2.0))  # of the check before the encryption, and of the one after it
    permit = Permit(lambda: next(times, 2.0))
    permit.extend(1.0)
    async with serving(server_type=RecordingServer) as server, open_pool(server) as pool:
        await pool.request("GET", REQUEST, timeout=patience(5))
        RecordingServer.received.clear()
        with pytest.raises(errors.NotLeader):
            await pool.request("POST", REQUEST, timeout=patience(5), permit=permit)
    assert RecordingServer.received == []
