"""A connection whose bytes its owner reads first and relays to another connection later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, Protocol, cast

from vkgateway.kube.sockets import TUNNEL_KEEPALIVE, KeepAlive
from vkgateway.kube.tls_engine import TlsEngine
from vkgateway.kube.tls_protocol import TlsProtocol


class ChangeNotifier:
    """Lets tasks wait for the next change of a state."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next `notify_all`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def notify_all(self) -> None:
        """Wake all waiting tasks."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class DuplexProtocol(TlsProtocol):
    """A connection that its owner closes: the end of the peer's bytes alone does not close it.

    The owner may end or abort the connection at any time, also before the event loop has established it.
    """

    keepalive: ClassVar[KeepAlive] = TUNNEL_KEEPALIVE
    detects_truncation: ClassVar[bool] = False
    """The endpoints of a tunnel detect truncation: the gateway passes the end on."""

    def __init__(self, tls: TlsEngine | None = None) -> None:
        super().__init__(tls)
        self.has_ended = False
        """No more bytes will arrive."""
        self.is_lost = False
        """The connection is closed in both directions."""
        self.is_congested = False
        """The peer reads more slowly than this side writes."""
        self._changes = ChangeNotifier()
        self._is_closing = False
        self._is_paused = False
        self._eof_written = False
        self._is_write_closed = False

    # Hooks of subclasses.

    def handle_end(self) -> None:
        """Process the end of the peer's bytes: close_notify, EOF, a TLS error or the loss of the connection."""
        if not self.has_ended:
            self.has_ended = True
            self._finish_opening(self.error or ConnectionResetError("the connection was closed during the handshake"))
            self._changes.notify_all()

    def handle_close(self, error: Exception | None) -> None:  # noqa: ARG002 - the base class keeps the error
        """Process the end of the connection."""
        self.is_lost = True
        self.handle_end()
        self._changes.notify_all()

    # Methods of owners.

    def write(self, data: bytes) -> None:
        """Send bytes. Without effect after `close` and `write_eof`. See `drain`."""
        if self.transport is None or self._is_closing or self._eof_written or self.transport.is_closing():
            return
        super().write(data)

    async def drain(self) -> None:
        """Wait until the peer has read most of the written bytes, or the connection is lost."""
        while self.is_congested and not self.is_lost:
            await self._changes.wait()

    def write_eof(self) -> None:
        """End the written bytes. The peer may continue to send."""
        if self._eof_written or self._is_closing or self.transport is None or self.transport.is_closing():
            return
        self._eof_written = True
        if self.tls is not None:
            self.tls.encrypt_close_notify()
            self._flush_tls()
        self._is_write_closed = True
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def pause_reading(self) -> None:
        """Stop reading from the network."""
        if not self._is_paused and self.transport is not None and not self.has_ended:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue to read from the network."""
        if self._is_paused and self.transport is not None:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def close(self) -> None:
        """Send the buffered bytes and close_notify, then close the connection. See `close_gracefully`."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self._eof_written:
            super().close()
        elif self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection immediately and drop buffered bytes."""
        self._is_closing = True
        super().abort()

    async def close_gracefully(self, *, linger: float) -> None:
        """Close, and wait at most `linger` seconds until the peer has read the buffered bytes."""
        self.close()
        try:
            async with asyncio.timeout(linger):
                while not self.is_lost and self.transport is not None:
                    await self._changes.wait()
        except TimeoutError:
            self.abort()

    # Callbacks of the event loop.

    def eof_received(self) -> bool:
        """Keep the other direction open until the owner closes the connection."""
        self.handle_end()
        return True

    def pause_writing(self) -> None:
        """Note that the write buffer is full."""
        self.is_congested = True

    def resume_writing(self) -> None:
        """Note that the write buffer has space."""
        self.is_congested = False
        self._changes.notify_all()

    def _flush_tls(self) -> None:
        if not self._is_write_closed:
            super()._flush_tls()


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
