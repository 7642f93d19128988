"""One TCP connection, plain or TLS, whose bytes are awaited first and later joined to another's.

TLS is done here over the plain TCP transport, not by the event loop. uvloop (0.23) loses up to 256 KiB when a
peer closes while a TLS transport is paused: what it has taken from the socket and not yet handed on is
dropped. A tunnel pauses whenever one side is slower than the other, so the end of a large `kubectl exec` or
`kubectl logs` would be cut off. A paused plain transport leaves everything, the end included, in the kernel.
It also saves the event loop's 256 KiB of buffer for each TLS connection.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from vkgateway.kube.loop_throttle import LoopThrottle
from vkgateway.kube.tls_engine import CHUNK_BYTES, TlsEngine

_READ_BUFFER_BYTES = 64 * 1024
"""Bytes that wait for `read` before the peer is asked to stop, roughly."""


class Relay(Protocol):
    """What takes over a wire's bytes once it is joined to another."""

    def relay_data(self, source: ByteStream, data: bytes) -> None:
        """Pass on what `source` received."""

    def handle_eof(self, source: ByteStream) -> None:
        """Hear that `source` will receive nothing more; again once it can send nothing more either."""

    def apply_backpressure(self, sink: ByteStream, *, on: bool) -> None:
        """Hear that `sink` cannot take more for now, or can again."""


class ByteStream(asyncio.Protocol):
    """One connection. Whoever opened it closes it: the end of the peer's bytes alone does not."""

    def __init__(
        self,
        *,
        tls: TlsEngine | None = None,
        turns: LoopThrottle | None = None,
        on_made: Callable[[ByteStream], None] | None = None,
        on_open: Callable[[ByteStream], None] | None = None,
    ) -> None:
        self.tls = tls
        self.has_ended = False
        """No more bytes will come."""
        self.is_congested = False
        """The peer is slow to take what was written."""
        self.on_end: Callable[[], None] | None = None
        """Called once when the peer ends while the wire is not joined."""
        self.error: Exception | None = None
        self._throttle = turns
        """In which the bytes of the handshake are looked at; None: at once."""
        self._on_made = on_made
        self._on_open = on_open
        self.peer_address = "unknown"
        """Address of the other side, for the log."""
        self._transport: asyncio.Transport | None = None
        self._is_open = False
        self._is_lost = False
        self._is_closing = False
        self._eof_written = False
        self._is_write_closed = False
        self._is_paused = False
        self._read_buffer = bytearray()
        self._relay: Relay | None = None
        self._waiters: list[asyncio.Future[None]] = []

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: greet by TLS where we are the client."""
        self._transport = cast("asyncio.Transport", transport)
        self.peer_address = _peer_address(transport)
        if self._is_closing:  # given up before it was there
            self._transport.abort()
            return
        if self._on_made is not None:
            self._on_made(self)
        _enable_keepalive(transport)
        if self.tls is None:
            self._finish_opening()
            return
        self.tls.start_handshake()
        self._flush_tls()

    def data_received(self, data: bytes) -> None:
        """Decrypt, and hand on or keep."""
        if self._throttle is not None and self.tls is not None and not self.tls.is_established:
            self.pause_reading()
            self._throttle.submit_work(functools.partial(self._process_in_turn, data))
        else:
            self._process_data(data)

    def _process_in_turn(self, data: bytes) -> None:
        if not self._is_closing:
            self.resume_reading()
            self._process_data(data)

    def _process_data(self, data: bytes) -> None:
        tls = self.tls
        if tls is not None:
            fresh = not tls.is_established
            try:
                data = tls.decrypt_data(data)
            except ssl.SSLError as error:
                self._fail_tls(error)
                return
            self._flush_tls()
            if fresh and tls.is_established:
                self._finish_opening()
        if data:
            self._deliver_data(data)
        if tls is not None and tls.is_ended:
            self._handle_eof()

    def eof_received(self) -> bool:
        """Keep the other direction open until the owner closes it."""
        self._handle_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake everybody who waits."""
        self.error = self.error or exc
        self._is_lost = True
        if self.has_ended and self._relay is not None:
            self._relay.handle_eof(self)
        self._handle_eof()
        self._wake_waiters()

    def pause_writing(self) -> None:
        """Hear that the socket takes no more for now."""
        self.is_congested = True
        if self._relay is not None:
            self._relay.apply_backpressure(self, on=True)

    def resume_writing(self) -> None:
        """Hear that the socket takes more again."""
        self.is_congested = False
        if self._relay is not None:
            self._relay.apply_backpressure(self, on=False)
        self._wake_waiters()

    # What owners call.

    async def wait_opened(self) -> None:
        """Wait until bytes can be exchanged. Raises OSError (ssl.SSLError among them) where they never
        can.
        """
        while not self._is_open:
            if self.has_ended:
                raise self.error or ConnectionResetError("the connection was closed during the handshake")
            await self._wait_for_change()

    async def read(self) -> bytes:
        """Return the next bytes there are; none at the end. Raises what broke the connection."""
        while not self._read_buffer:
            if self.has_ended:
                if self.error is not None:
                    raise self.error
                return b""
            await self._wait_for_change()
        data = bytes(self._read_buffer)
        self._read_buffer.clear()
        self.resume_reading()
        return data

    def write(self, data: bytes) -> None:
        """Send bytes as the socket takes them; without effect once closed. See `drain`."""
        if self._transport is None or self._is_closing or self._eof_written or self._transport.is_closing():
            return
        if self.tls is None:
            self._transport.write(data)
            return
        view = memoryview(data)
        try:
            for start in range(0, len(view), CHUNK_BYTES):
                self.tls.encrypt_data(view[start : start + CHUNK_BYTES])
                self._flush_tls()
        except ssl.SSLError as error:
            self._fail_tls(error)

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was written, or is gone."""
        while self.is_congested and not self._is_lost:
            await self._wait_for_change()

    def pause_reading(self) -> None:
        """Take no more bytes from the network for now."""
        if not self._is_paused and self._transport is not None and not self.has_ended:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes again."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def attach_relay(self, joint: Relay) -> None:
        """Hand everything received, and to be received, to `joint`."""
        self._relay = joint
        if self._read_buffer:
            data = bytes(self._read_buffer)
            self._read_buffer.clear()
            joint.relay_data(self, data)
        self.resume_reading()
        if self.has_ended:
            joint.handle_eof(self)

    def push_back(self, data: bytes) -> None:
        """Put bytes back in front of those to come."""
        self._read_buffer[:0] = data

    @property
    def is_lost(self) -> bool:
        """The connection is gone, both ways."""
        return self._is_lost

    def write_eof(self) -> None:
        """Tell the peer, after what was written, that nothing more will come from here; it may go on sending."""
        if self._eof_written or self._is_closing or self._transport is None or self._transport.is_closing():
            return
        self._eof_written = True
        if self.tls is not None:
            self.tls.encrypt_close_notify()
            self._flush_tls()
        self._is_write_closed = True
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        """Send what is left, then close; see `close_gracefully`."""
        if self._is_closing:
            return
        if self._transport is None:
            self._is_closing = True
            return
        if self.tls is not None and not self._eof_written and not self._transport.is_closing():
            self.tls.encrypt_close_notify()
            self._flush_tls()
        self._is_closing = True
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    async def close_gracefully(self, *, linger: float) -> None:
        """Close, and wait until the peer has taken what is left, at most `linger` seconds."""
        self.close()
        try:
            async with asyncio.timeout(linger):
                while not self._is_lost and self._transport is not None:
                    await self._wait_for_change()
        except TimeoutError:
            self.abort()

    def _finish_opening(self) -> None:
        self._is_open = True
        self._wake_waiters()
        if self._on_open is not None:
            self._on_open(self)

    def _deliver_data(self, data: bytes) -> None:
        if self._relay is not None:
            self._relay.relay_data(self, data)
            return
        self._read_buffer += data
        if len(self._read_buffer) > _READ_BUFFER_BYTES:
            self.pause_reading()
        self._wake_waiters()

    def _handle_eof(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self._wake_waiters()
        if self._relay is not None:
            self._relay.handle_eof(self)
        elif self.on_end is not None:
            self.on_end()

    def _fail_tls(self, error: Exception) -> None:
        """End on a TLS error, after the alert that tells the peer why."""
        self.error = self.error or error
        self._flush_tls()
        self._is_closing = True
        if self._transport is not None:
            self._transport.close()
        self._handle_eof()

    def _flush_tls(self) -> None:
        if self.tls is not None and self._transport is not None:
            data = self.tls.take_outgoing()
            if data and not self._transport.is_closing() and not self._is_write_closed:
                self._transport.write(data)

    async def _wait_for_change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the address of the other side, as long as the connection is there: uvloop asks the socket each time."""
    try:
        name = transport.get_extra_info("peername")
    except (OSError, ValueError):  # it was lost already
        return "unknown"
    return f"{name[0]}:{name[1]}" if name else "unknown"


def _enable_keepalive(transport: asyncio.BaseTransport) -> None:
    """Find peers that vanished without a word within two minutes, on wires that may be silent for hours."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
