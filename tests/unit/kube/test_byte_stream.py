"""Byte streams: peer address, and streams that their owner closes early."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from tests.support.machine import patience
from vkgateway.kube.byte_stream import ByteStream


class FakeTransport(asyncio.Transport):
    """Transport without a peer."""

    paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...


async def _end_before_connection_made(end: Callable[[ByteStream], None]) -> bytes:
    """Return what the peer reads from a stream whose owner ended it before `connection_made`."""

    def accept() -> ByteStream:
        stream = ByteStream()
        end(stream)
        return stream

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(patience(5)):
            with contextlib.suppress(ConnectionResetError):
                return await reader.read()
            return b""
    finally:
        writer.close()
        server.close()


class LostTransport(FakeTransport):
    """Transport of a connection that was lost before `connection_made`, like uvloop's."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        if name == "peername":
            raise ValueError("negative file descriptor")
        return default

    def is_closing(self) -> bool:
        return True


def test_peer_address_of_lost_connection_is_unknown() -> None:
    stream = ByteStream()
    stream.connection_made(LostTransport())
    assert stream.peer_address == "unknown"


async def _peer_after_close() -> tuple[str, str]:
    """Return the peer address of a closed stream, and the peer's own address."""
    accepted: asyncio.Future[ByteStream] = asyncio.get_running_loop().create_future()

    class Accepted(ByteStream):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            accepted.set_result(self)

    server = await asyncio.get_running_loop().create_server(Accepted, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    host, port = writer.get_extra_info("sockname")
    async with asyncio.timeout(patience(5)):
        stream = await accepted
        await stream.close_gracefully(linger=5)
    writer.close()
    await writer.wait_closed()
    server.close()
    return stream.peer_address, f"{host}:{port}"


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_peer_address_survives_close(run: Callable[..., Any]) -> None:
    reported, actual = run(_peer_after_close())
    assert reported == actual


@pytest.mark.parametrize("end", [ByteStream.close, ByteStream.abort])
@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_stream_ended_before_connection_made_is_closed(
    run: Callable[..., Any], end: Callable[[ByteStream], None]
) -> None:
    assert run(_end_before_connection_made(end)) == b""
