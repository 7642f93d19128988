"""Connections that HTTP servers accept."""

from __future__ import annotations

import asyncio
import functools
from typing import Protocol

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.loop_throttle import LoopThrottle
from vkgateway.kube.tls_engine import TlsEngine


class StreamAcceptor(Protocol):
    """Owner of accepted streams."""

    def accept_stream(self, stream: ByteStream) -> None:
        """Serve a new stream, whose TLS handshake, if any, is not complete."""


class AcceptedStream(ByteStream):
    """A connection of a client. `throttle` limits TLS handshakes to one per iteration of the event loop."""

    def __init__(self, tls: TlsEngine | None, *, throttle: LoopThrottle, acceptor: StreamAcceptor) -> None:
        super().__init__(tls)
        self._throttle = throttle
        self._acceptor = acceptor

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the stream to the acceptor."""
        super().connection_made(transport)
        self._acceptor.accept_stream(self)

    def data_received(self, data: bytes) -> None:
        """Process bytes; bytes of the handshake wait for their iteration of the event loop."""
        if self.tls is not None and not self.tls.is_established:
            self.pause_reading()
            self._throttle.submit_work(functools.partial(self._receive_throttled, data))
        else:
            super().data_received(data)

    def _receive_throttled(self, data: bytes) -> None:
        if not self._is_closing:
            self.resume_reading()
            super().data_received(data)
