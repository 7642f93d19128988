"""One connection: what becomes of it when its owner gives it up at an odd time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvloop

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.loop_throttle import LoopThrottle
from vkgateway.kube.tls_engine import TlsEngine


class FakeTransport(asyncio.Transport):
    """Goes nowhere."""

    paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...


async def _give_up_before_it_is_made(end: Callable[[ByteStream], None]) -> bytes:
    """What the peer reads of a connection whose owner ended it between accepting and its transport."""

    def accept() -> ByteStream:
        wire = ByteStream()
        end(wire)
        return wire

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                return await reader.read()
            return b""
    finally:
        writer.close()
        server.close()


class LostTransport(FakeTransport):
    """One that was closed before it was handed over, as uvloop's answers then."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        if name == "peername":
            raise ValueError("negative file descriptor")
        return default

    def is_closing(self) -> bool:
        return True


def test_the_peer_of_a_connection_that_was_lost_at_once_is_unknown() -> None:
    wire = ByteStream()
    wire.connection_made(LostTransport())
    assert wire.peer_address == "unknown"


async def _peer_after_its_end() -> tuple[str, str]:
    """What a wire says of its peer when its socket is closed, and the peer's own address."""
    made: asyncio.Future[ByteStream] = asyncio.get_running_loop().create_future()
    server = await asyncio.get_running_loop().create_server(lambda: ByteStream(on_made=made.set_result), "127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    host, port = writer.get_extra_info("sockname")
    async with asyncio.timeout(5):
        wire = await made
        await wire.close_gracefully(linger=5)
    writer.close()
    await writer.wait_closed()
    server.close()
    return wire.peer_address, f"{host}:{port}"


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_the_peer_is_known_after_the_end_of_the_connection(run: Callable[..., Any]) -> None:
    told, is_it = run(_peer_after_its_end())
    assert told == is_it


@pytest.mark.parametrize("end", [ByteStream.close, ByteStream.abort])
@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_what_is_given_up_before_it_is_made_is_closed_all_the_same(
    run: Callable[..., Any], end: Callable[[ByteStream], None]
) -> None:
    assert run(_give_up_before_it_is_made(end)) == b""


async def test_handshakes_of_a_crowd_come_one_a_turn() -> None:
    """Each costs a millisecond; a hundred at once would hold up all other work for as long as all of them take."""
    turns = LoopThrottle()
    seen: list[int] = []
    turn = 0

    class Handshake:
        is_established = False
        is_ended = False

        def start_handshake(self) -> None: ...

        def take_outgoing(self) -> bytes:
            return b""

        def decrypt_data(self, data: bytes) -> bytes:
            seen.append(turn)
            if data == b"last":
                self.is_established = True
                return b"first words"
            return b""

    wires = [ByteStream(tls=cast("TlsEngine", Handshake()), turns=turns) for _ in range(5)]
    transports = [FakeTransport() for _ in wires]
    for wire, transport in zip(wires, transports, strict=True):
        wire.connection_made(transport)
        wire.data_received(b"hello")
    assert all(transport.paused for transport in transports)
    for _ in range(8):
        await asyncio.sleep(0)
        turn += 1
    assert seen == [0, 1, 2, 3, 4]
    assert not any(transport.paused for transport in transports)

    wires[0].data_received(b"last")
    wires[1].data_received(b"last")
    wires[1].abort()
    await asyncio.sleep(0)
    assert await wires[0].read() == b"first words"
    wires[0].data_received(b"at once from now on")
    assert len(seen) == 7
