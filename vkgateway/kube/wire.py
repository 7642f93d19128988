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

from vkgateway.kube.tlsbytes import PORTION, Tls
from vkgateway.kube.turns import Turns

_INBOX = 64 * 1024
"""Bytes that wait for `read` before the peer is asked to stop, roughly."""


class Joint(Protocol):
    """What takes over a wire's bytes once it is joined to another."""

    def carry(self, source: Wire, data: bytes) -> None:
        """Pass on what `source` received."""

    def finish(self, source: Wire) -> None:
        """Hear that `source` will receive nothing more; again once it can send nothing more either."""

    def throttle(self, sink: Wire, *, on: bool) -> None:
        """Hear that `sink` cannot take more for now, or can again."""


class Wire(asyncio.Protocol):
    """One connection. Whoever opened it closes it: the end of the peer's bytes alone does not."""

    def __init__(
        self,
        *,
        tls: Tls | None = None,
        turns: Turns | None = None,
        on_made: Callable[[Wire], None] | None = None,
        on_open: Callable[[Wire], None] | None = None,
    ) -> None:
        self.tls = tls
        self.ended = False
        """No more bytes will come."""
        self.congested = False
        """The peer is slow to take what was written."""
        self.on_end: Callable[[], None] | None = None
        """Called once when the peer ends while the wire is not joined."""
        self.error: Exception | None = None
        self._turns = turns
        """In which the bytes of the handshake are looked at; None: at once."""
        self._on_made = on_made
        self._on_open = on_open
        self.peer = "unknown"
        """Address of the other side, for the log."""
        self._transport: asyncio.Transport | None = None
        self._opened = False
        self._lost = False
        self._closing = False
        self._said_all = False
        self._shut = False
        self._paused = False
        self._inbox = bytearray()
        self._joint: Joint | None = None
        self._waiters: list[asyncio.Future[None]] = []

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: greet by TLS where we are the client."""
        self._transport = cast("asyncio.Transport", transport)
        self.peer = _peer_of(transport)
        if self._closing:  # given up before it was there
            self._transport.abort()
            return
        if self._on_made is not None:
            self._on_made(self)
        _keep_alive(transport)
        if self.tls is None:
            self._open()
            return
        self.tls.start()
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Decrypt, and hand on or keep."""
        if self._turns is not None and self.tls is not None and not self.tls.established:
            self.pause()
            self._turns.ask(functools.partial(self._take_turn, data))
        else:
            self._receive(data)

    def _take_turn(self, data: bytes) -> None:
        if not self._closing:
            self.resume()
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        tls = self.tls
        if tls is not None:
            fresh = not tls.established
            try:
                data = tls.receive(data)
            except ssl.SSLError as error:
                self._fail(error)
                return
            self._flush()
            if fresh and tls.established:
                self._open()
        if data:
            self._deliver(data)
        if tls is not None and tls.ended:
            self._end()

    def eof_received(self) -> bool:
        """Keep the other direction open until the owner closes it."""
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake everybody who waits."""
        self.error = self.error or exc
        self._lost = True
        if self.ended and self._joint is not None:
            self._joint.finish(self)
        self._end()
        self._wake()

    def pause_writing(self) -> None:
        """Hear that the socket takes no more for now."""
        self.congested = True
        if self._joint is not None:
            self._joint.throttle(self, on=True)

    def resume_writing(self) -> None:
        """Hear that the socket takes more again."""
        self.congested = False
        if self._joint is not None:
            self._joint.throttle(self, on=False)
        self._wake()

    # What owners call.

    async def opened(self) -> None:
        """Wait until bytes can be exchanged. Raises OSError (ssl.SSLError among them) where they never
        can.
        """
        while not self._opened:
            if self.ended:
                raise self.error or ConnectionResetError("the connection was closed during the handshake")
            await self._change()

    async def read(self) -> bytes:
        """Return the next bytes there are; none at the end. Raises what broke the connection."""
        while not self._inbox:
            if self.ended:
                if self.error is not None:
                    raise self.error
                return b""
            await self._change()
        data = bytes(self._inbox)
        self._inbox.clear()
        self.resume()
        return data

    def write(self, data: bytes) -> None:
        """Send bytes as the socket takes them; without effect once closed. See `drain`."""
        if self._transport is None or self._closing or self._said_all or self._transport.is_closing():
            return
        if self.tls is None:
            self._transport.write(data)
            return
        view = memoryview(data)
        try:
            for start in range(0, len(view), PORTION):
                self.tls.seal(view[start : start + PORTION])
                self._flush()
        except ssl.SSLError as error:
            self._fail(error)

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was written, or is gone."""
        while self.congested and not self._lost:
            await self._change()

    def pause(self) -> None:
        """Take no more bytes from the network for now."""
        if not self._paused and self._transport is not None and not self.ended:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Take bytes again."""
        if self._paused and self._transport is not None:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def join(self, joint: Joint) -> None:
        """Hand everything received, and to be received, to `joint`."""
        self._joint = joint
        if self._inbox:
            data = bytes(self._inbox)
            self._inbox.clear()
            joint.carry(self, data)
        self.resume()
        if self.ended:
            joint.finish(self)

    def unread(self, data: bytes) -> None:
        """Put bytes back in front of those to come."""
        self._inbox[:0] = data

    @property
    def lost(self) -> bool:
        """The connection is gone, both ways."""
        return self._lost

    def end_writing(self) -> None:
        """Tell the peer, after what was written, that nothing more will come from here; it may go on sending."""
        if self._said_all or self._closing or self._transport is None or self._transport.is_closing():
            return
        self._said_all = True
        if self.tls is not None:
            self.tls.seal_end()
            self._flush()
        self._shut = True
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        """Send what is left, then close; see `closed`."""
        if self._closing:
            return
        if self._transport is None:
            self._closing = True
            return
        if self.tls is not None and not self._said_all and not self._transport.is_closing():
            self.tls.seal_end()
            self._flush()
        self._closing = True
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    async def closed(self, *, linger: float) -> None:
        """Close, and wait until the peer has taken what is left, at most `linger` seconds."""
        self.close()
        try:
            async with asyncio.timeout(linger):
                while not self._lost and self._transport is not None:
                    await self._change()
        except TimeoutError:
            self.abort()

    def _open(self) -> None:
        self._opened = True
        self._wake()
        if self._on_open is not None:
            self._on_open(self)

    def _deliver(self, data: bytes) -> None:
        if self._joint is not None:
            self._joint.carry(self, data)
            return
        self._inbox += data
        if len(self._inbox) > _INBOX:
            self.pause()
        self._wake()

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._wake()
        if self._joint is not None:
            self._joint.finish(self)
        elif self.on_end is not None:
            self.on_end()

    def _fail(self, error: Exception) -> None:
        """End on a TLS error, after the alert that tells the peer why."""
        self.error = self.error or error
        self._flush()
        self._closing = True
        if self._transport is not None:
            self._transport.close()
        self._end()

    def _flush(self) -> None:
        if self.tls is not None and self._transport is not None:
            data = self.tls.pending()
            if data and not self._transport.is_closing() and not self._shut:
                self._transport.write(data)

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the other side, as long as the connection is there: uvloop asks the socket each time."""
    try:
        name = transport.get_extra_info("peername")
    except (OSError, ValueError):  # it was lost already
        return "unknown"
    return f"{name[0]}:{name[1]}" if name else "unknown"


def _keep_alive(transport: asyncio.BaseTransport) -> None:
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
