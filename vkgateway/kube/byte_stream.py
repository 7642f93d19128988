"""A connection whose bytes its owner reads first and relays to another connection later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from vkgateway.kube.duplex_protocol import DuplexProtocol
from vkgateway.kube.tls_engine import TlsEngine

_READ_BUFFER_BYTES = 64 * 1024
"""Approximate size of the read buffer at which reading pauses."""


class Relay(Protocol):
    """Receiver of a stream's events after `ByteStream.attach_relay`."""

    def relay_data(self, source: ByteStream, data: bytes) -> None:
        """Pass on bytes that `source` received."""

    def handle_eof(self, source: ByteStream) -> None:
        """Process the end of the bytes of `source`. Called a second time if `source` cannot send either."""

    def apply_backpressure(self, sink: ByteStream, *, on: bool) -> None:
        """Pause (`on`) or resume the other side, because the write buffer of `sink` is full or has space."""


class ByteStream(DuplexProtocol):
    """A connection with a read buffer, or with a relay that receives the bytes instead."""

    def __init__(self, tls: TlsEngine | None = None) -> None:
        super().__init__(tls)
        self.on_end: Callable[[], None] | None = None
        """Called once when the peer's bytes end while no relay is attached."""
        self.peer_address = "unknown"
        """Address of the peer, for logs."""
        self._read_buffer = bytearray()
        self._relay: Relay | None = None

    async def read(self) -> bytes:
        """Return the next bytes, or no bytes at the end. Raises the error that ended the connection."""
        while not self._read_buffer:
            if self.has_ended:
                if self.error is not None:
                    raise self.error
                return b""
            await self._changes.wait()
        data = bytes(self._read_buffer)
        self._read_buffer.clear()
        self.resume_reading()
        return data

    def push_back(self, data: bytes) -> None:
        """Insert bytes at the front of the read buffer."""
        self._read_buffer[:0] = data

    def attach_relay(self, relay: Relay) -> None:
        """Pass the buffered bytes and all later bytes to `relay`."""
        self._relay = relay
        if self._read_buffer:
            data = bytes(self._read_buffer)
            self._read_buffer.clear()
            relay.relay_data(self, data)
        self.resume_reading()
        if self.has_ended:
            relay.handle_eof(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read the peer's address and start TLS, unless the owner closed the stream before."""
        self.peer_address = _peer_address(transport)
        if self._is_closing:
            self.transport = cast("asyncio.Transport", transport)
            self.transport.abort()
        else:
            super().connection_made(transport)

    def pause_writing(self) -> None:
        """Apply back-pressure to the relay."""
        super().pause_writing()
        if self._relay is not None:
            self._relay.apply_backpressure(self, on=True)

    def resume_writing(self) -> None:
        """Release the back-pressure."""
        super().resume_writing()
        if self._relay is not None:
            self._relay.apply_backpressure(self, on=False)

    def handle_data(self, data: bytes) -> None:
        """Relay or buffer the bytes."""
        if self._relay is not None:
            self._relay.relay_data(self, data)
            return
        self._read_buffer += data
        if len(self._read_buffer) > _READ_BUFFER_BYTES:
            self.pause_reading()
        self._changes.notify_all()

    def handle_end(self) -> None:
        """Report the end once, to the relay or `on_end`."""
        if self.has_ended:
            return
        super().handle_end()
        if self._relay is not None:
            self._relay.handle_eof(self)
        elif self.on_end is not None:
            self.on_end()

    def handle_close(self, error: Exception | None) -> None:
        """Report the loss of a connection whose bytes had ended before."""
        self.is_lost = True
        if self.has_ended and self._relay is not None:
            self._relay.handle_eof(self)
        super().handle_close(error)


def _peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the peer's address. Read while the connection exists: uvloop asks the socket each time."""
    try:
        name = transport.get_extra_info("peername")
    except (OSError, ValueError):  # the connection was lost already
        return "unknown"
    return f"{name[0]}:{name[1]}" if name else "unknown"
