"""Accepted connections: handshakes take turns."""

from __future__ import annotations

import asyncio
from typing import cast

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.loop_throttle import LoopThrottle
from vkgateway.kube.tls_engine import TlsEngine
from vkgateway.nodes.listener import AcceptedStream


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


async def test_one_handshake_per_loop_iteration() -> None:
    """A handshake costs a millisecond: a hundred in one iteration would delay all other work."""
    throttle = LoopThrottle()
    accepted: list[ByteStream] = []

    class Acceptor:
        def accept_stream(self, stream: ByteStream) -> None:
            accepted.append(stream)

    iterations: list[int] = []
    iteration = 0

    class Handshake:
        is_established = False
        is_ended = False

        def start_handshake(self) -> None: ...

        def take_outgoing(self) -> bytes:
            return b""

        def decrypt_data(self, data: bytes) -> bytes:
            iterations.append(iteration)
            if data == b"last":
                self.is_established = True
                return b"first words"
            return b""

    streams = [AcceptedStream(cast("TlsEngine", Handshake()), throttle=throttle, acceptor=Acceptor()) for _ in range(5)]
    transports = [FakeTransport() for _ in streams]
    for stream, transport in zip(streams, transports, strict=True):
        stream.connection_made(transport)
        stream.data_received(b"hello")
    assert accepted == streams
    assert all(transport.paused for transport in transports)
    for _ in range(8):
        await asyncio.sleep(0)
        iteration += 1
    assert iterations == [0, 1, 2, 3, 4]
    assert not any(transport.paused for transport in transports)

    streams[0].data_received(b"last")
    streams[1].data_received(b"last")
    streams[1].abort()
    await asyncio.sleep(0)
    assert await streams[0].read() == b"first words"
    streams[0].data_received(b"at once from now on")
    assert len(iterations) == 7
