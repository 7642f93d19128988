"""Upgraded and streaming connections, and tunnels with slow or lost sides."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from socket import create_server, socket
from typing import Any

import pytest
import uvloop

from tests.support.machine import patience
from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.endpoint import HostDialer
from vkgateway.kube.errors import Unreachable
from vkgateway.kube.tls import client_context, load_identity
from vkgateway.kube.upgrade import (
    OpenedStream,
    RefusedStream,
    TunnelEnd,
    dial_server,
    open_stream,
    open_upgrade,
    run_tunnel,
)
from vkgateway.planes.pki import Authority


@dataclass
class Server:
    """Settings of a client."""

    server: str
    ssl: ssl.SSLContext | None = None
    name: str = "compute"
    server_hostname: str | None = None
    dialer: HostDialer = field(default_factory=HostDialer)

    async def authorization_headers(self) -> dict[str, str]:
        return {"Authorization": "Bearer t"}


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(talk: Talk) -> Any:
    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await talk(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield Server(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/prefix/")
    server.close()
    await server.wait_closed()
    await asyncio.gather(*filter(None, tasks))


def answering(answer: bytes, seen: list[bytes] | None = None) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(head)
        writer.write(answer)
        await writer.drain()

    return talk


async def test_upgrade_keeps_path_prefix_and_bytes_after_head() -> None:
    seen: list[bytes] = []
    answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nframes"
    async with listening(answering(answer, seen)) as server:
        headers = (("upgrade", "SPDY/3.1"),)
        opened = await open_upgrade(server, "POST", "/exec", params=[("command", "a b&c")], headers=headers)
        assert isinstance(opened, OpenedStream)
        assert await opened.stream.read() == b"frames"
        await opened.stream.close_gracefully(linger=1)
    head = seen[0].decode().lower()
    assert head.startswith("post /prefix/exec?command=a+b%26c http/1.1\r\n")
    assert "upgrade: spdy/3.1\r\n" in head
    assert "authorization: bearer t\r\n" in head


async def test_refusal_contains_status_and_body() -> None:
    async with listening(answering(b"HTTP/1.1 403 No\r\nContent-Length: 3\r\n\r\nwhy")) as server:
        refused = await open_stream(server, "/log")
        assert isinstance(refused, RefusedStream)
        assert (refused.status, refused.body) == (403, b"why")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 101", b"garbage\r\n\r\n"])
async def test_malformed_response_is_unreachable(answer: bytes) -> None:
    async with listening(answering(answer)) as server:
        with pytest.raises(Unreachable, match="compute broke off GET /log"):
            await open_stream(server, "/log")


async def test_response_timeout_is_unreachable() -> None:
    async def talk(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(talk) as server:
        with pytest.raises(Unreachable, match="no answer"):
            await open_stream(server, "/log", timeout=0.05)


async def test_closed_port_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        await dial_server(Server("http://127.0.0.1:1"))


async def test_untrusted_server_is_unreachable() -> None:
    real, other = Authority.create("real"), Authority.create("other")
    with tls_server(real, lambda _: None) as port:
        server = Server(f"https://127.0.0.1:{port}", ssl=client_context(ca=other.cert_pem))
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await dial_server(server)


@contextlib.contextmanager
def tls_server(authority: Authority, talk: Callable[[ssl.SSLSocket], None]) -> Iterator[int]:
    """Serve one TLS connection with plain sockets. Like Go's, they close immediately, while the peer still reads."""
    keys = authority.issue("server", server=True, ips=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_identity(context, cert=keys.cert_pem, key=keys.key_pem)

    def serve(listener: socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True) as peer:
            talk(peer)
            peer.settimeout(0)
            peer.unwrap()

    with create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        thread.join(patience(10))


def _in_uvloop(main: Callable[[], Any]) -> None:
    uvloop.run(main())


def _in_asyncio(main: Callable[[], Any]) -> None:
    asyncio.run(main())


@pytest.mark.parametrize("run", [_in_uvloop, _in_asyncio])
def test_slow_reader_gets_all_bytes_after_writer_closed(run: Callable[..., None]) -> None:
    size, got = 3_000_000, 0
    authority = Authority.create("vkgateway")

    async def main() -> None:
        nonlocal got
        near, reader, close = await _pair()
        with tls_server(authority, lambda peer: peer.sendall(bytes(size))) as port:
            far = await dial_server(Server(f"https://127.0.0.1:{port}", ssl=client_context(ca=authority.cert_pem)))
            joined = asyncio.create_task(run_tunnel(near, far))
            while data := await reader.read(20_000):
                got += len(data)
            await close()
            assert await joined is TunnelEnd.FAR

    run(main)
    assert got == size


@pytest.mark.parametrize("run", [_in_uvloop, _in_asyncio])
def test_half_closed_side_receives_remaining_bytes(run: Callable[..., None]) -> None:
    size, heard, got = 3_000_000, bytearray(), 0
    authority = Authority.create("vkgateway")

    def talk(peer: ssl.SSLSocket) -> None:
        while data := peer.recv(65536):
            heard.extend(data)
        peer.sendall(bytes(size))

    async def main() -> None:
        nonlocal got
        near, reader, close, writer = await _pair_with_writer()
        with tls_server(authority, talk) as port:
            far = await dial_server(Server(f"https://127.0.0.1:{port}", ssl=client_context(ca=authority.cert_pem)))
            joined = asyncio.create_task(run_tunnel(near, far))
            writer.write(b"all there is")
            writer.write_eof()
            while data := await reader.read(20_000):
                got += len(data)
            assert await joined is TunnelEnd.NEAR
        await close()

    run(main)
    assert (bytes(heard), got) == (b"all there is", size)


async def test_silent_half_closed_tunnel_ends_after_linger() -> None:
    near, _, close_near, writer = await _pair_with_writer()
    far, far_reader, close_far = await _pair()
    joined = asyncio.create_task(run_tunnel(near, far, linger=0.05))
    writer.write_eof()
    assert await far_reader.read() == b""
    assert await joined is TunnelEnd.NEAR
    await close_near()
    await close_far()


async def test_lost_connection_ends_tunnel_immediately() -> None:
    near, _, close_near, writer = await _pair_with_writer()
    far, far_reader, close_far, far_writer = await _pair_with_writer()
    joined = asyncio.create_task(run_tunnel(near, far))
    writer.close()
    assert await far_reader.read() == b""
    async with asyncio.timeout(patience(30)):
        while not joined.done():
            far_writer.write(b"is anybody there")
            await asyncio.sleep(0.01)
    assert await joined is TunnelEnd.NEAR
    await close_near()
    await close_far()


async def test_remaining_bytes_arrive_after_subject_was_deleted() -> None:
    near, reader, close_near = await _pair()
    far, _, close_far, far_writer = await _pair_with_writer()
    there = True
    quiet = patience(0.5)
    joined = asyncio.create_task(run_tunnel(near, far, alive=lambda: there, quiet=quiet))
    await asyncio.sleep(1.25 * quiet)
    assert not joined.done()
    there = False
    for _ in range(10):
        far_writer.write(b"last words ")
        await asyncio.sleep(0.15 * quiet)
    assert not joined.done()
    assert await joined is TunnelEnd.GONE
    assert await reader.read() == b"last words " * 10
    await close_near()
    await close_far()


async def test_unread_bytes_do_not_delay_end_of_deleted_subject() -> None:
    near, _, close_near, writer = await _pair_with_writer()
    far, far_reader, close_far, _ = await _pair_with_writer()
    there = True
    joined = asyncio.create_task(run_tunnel(near, far, alive=lambda: there, quiet=0.2, linger=60))
    writer.write(bytes(50_000_000))  # more than all buffers on the way to a reader that does not read
    await asyncio.sleep(0.3)
    there = False
    async with asyncio.timeout(patience(20)):
        assert await joined is TunnelEnd.GONE
    assert far_reader.at_eof() is False
    writer.transport.abort()
    await close_near()
    await close_far()


async def _pair() -> tuple[ByteStream, asyncio.StreamReader, Callable[[], Awaitable[None]]]:
    """Return a stream and the reader of its peer."""
    stream, reader, close, _ = await _pair_with_writer()
    return stream, reader, close


async def _pair_with_writer() -> tuple[
    ByteStream, asyncio.StreamReader, Callable[[], Awaitable[None]], asyncio.StreamWriter
]:
    """Return a stream, and the reader and writer of its peer."""
    accepted: asyncio.Queue[ByteStream] = asyncio.Queue()

    class Accepted(ByteStream):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            accepted.put_nowait(self)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Accepted, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=20_000)
    server.close()

    async def close() -> None:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    return await accepted.get(), reader, close, writer


async def test_last_chunk_is_sent_in_separate_record() -> None:
    # What is read of a TLS connection at once is one record.
    seen: list[bytes] = []

    def talk(peer: ssl.SSLSocket) -> None:
        while part := peer.recv(65536):
            seen.append(part)

    authority = Authority.create("real")
    far, _, close, writer = await _pair_with_writer()
    with tls_server(authority, talk) as port:
        near = await dial_server(Server(f"https://127.0.0.1:{port}", ssl=client_context(ca=authority.cert_pem)))
        writer.write(b"5\r\nhello\r\n0\r\n\r\n")
        await close()
        assert await run_tunnel(near, far, one_way=True) is TunnelEnd.FAR
    assert seen == [b"5\r\nhello\r\n", b"0\r\n\r\n"]


async def test_tunnel_reports_which_side_ended_first() -> None:
    near, _, close_near = await _pair()
    far, reader, close_far = await _pair()
    joined = asyncio.create_task(run_tunnel(near, far))
    await close_near()
    assert await reader.read() == b""
    await close_far()
    assert await joined is TunnelEnd.NEAR


async def test_idle_tunnel_ends() -> None:
    near, _, close_near = await _pair()
    far, _, close_far = await _pair()
    assert await run_tunnel(near, far, idle_timeout=0.02) is TunnelEnd.IDLE
    assert near.has_ended
    assert far.has_ended
    await close_near()
    await close_far()


async def test_cancelled_tunnel_aborts_both_connections() -> None:
    near, near_reader, close_near = await _pair()
    far, far_reader, close_far = await _pair()
    joined = asyncio.create_task(run_tunnel(near, far))
    await asyncio.sleep(0)
    joined.cancel()
    await asyncio.gather(joined, return_exceptions=True)
    for reader in (near_reader, far_reader):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    await close_near()
    await close_far()
