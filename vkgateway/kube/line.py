"""One TCP connection to a server, plain or TLS, for those who take bytes as they come.

TLS is done here over the plain transport, as in `wire`: the event loop's own costs a fourth of a request more.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from vkgateway.kube.addresses import Addresses
from vkgateway.kube.tlsbytes import Resumption, Tls

L = TypeVar("L", bound="Line")

IDLE_SECONDS: Final = 60.0
"""Seconds after which an unused connection is not trusted any more."""


class Line(asyncio.Protocol):
    """What both kinds have in common; `heard` and `lost` are for those who make something of it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._tls: Tls | None = None
        self._opened: asyncio.Future[None] | None = None
        self._refused: ssl.SSLError | None = None

    def heard(self, data: bytes) -> None:
        """Bytes came."""

    def lost(self, why: Exception | None) -> None:
        """Nothing more comes, for the last time; `why` is None where the server said that it was done."""

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self.transport is not None
        if self._tls is None:
            self.transport.write(data)
            return
        self._tls.seal(data)
        self.transport.write(self._tls.pending())

    def close(self) -> None:
        """Close once everything was sent."""
        if self.transport is not None and not self.transport.is_closing():
            if self._tls is not None and self._tls.established:
                self._tls.seal_end()
            self._flush()
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def hand_over(self, to: Line) -> None:
        """Have another take over the connection, between an answer and the next request; nothing more comes here."""
        assert self.transport is not None
        to.transport, to._tls = self.transport, self._tls
        self.transport.set_protocol(to)
        self.transport = None
        self.lost(None)

    async def open(self, tls: Tls | None, reach: Callable[[Callable[[], Line]], Awaitable[None]]) -> None:
        """Connect by `reach`, and shake hands where `tls` is given; once only.

        Raises OSError (ssl.SSLError among them).
        """
        loop = asyncio.get_running_loop()
        self._tls = tls
        opened = self._opened = loop.create_future()
        try:
            await reach(lambda: self)
            await opened
        except BaseException:
            opened.cancel()
            self.abort()
            raise

    # What the event loop calls; see asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = cast("asyncio.Transport", transport)
        if self._tls is None:
            self._open()
        else:
            self._tls.start()
            self._flush()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        tls = self._tls
        if tls is None:
            self.heard(data)
            return
        try:
            data = tls.receive(data)
        except ssl.SSLError as error:
            self._refuse(error)
            return
        self._flush()
        if self._opened is not None and tls.established:
            self._open()
        if data:
            self.heard(data)
        if tls.ended:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        cut = exc is None and self._tls is not None and not self._tls.ended
        why = self._refused or (ConnectionResetError("the server closed the connection") if cut else exc)
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(why or ConnectionResetError("the server closed the connection"))
        self.lost(why)

    def _open(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and not opened.done():
            opened.set_result(None)

    def _refuse(self, error: ssl.SSLError) -> None:
        """End on a TLS error, after the alert that tells the server why; the server's own may come with the answer."""
        self._refused = error
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)
        self._flush()
        if self.transport is not None:
            self.transport.close()

    def _flush(self) -> None:
        if self._tls is not None and self.transport is not None and (data := self._tls.pending()):
            self.transport.write(data)


class Pulse:
    """When a server was heard of last, over whichever of its connections, in the loop's time."""

    __slots__ = ("heard",)

    def __init__(self) -> None:
        self.heard = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where lines lead: `ssl` is how both sides prove themselves (None: plain), `server_hostname` the name expected of
    the server where it is not `host`. `on_connect` gets each new transport.
    """

    host: str
    port: int
    ssl: ssl.SSLContext | None
    server_hostname: str | None = None
    connect_timeout: float = 10.0
    on_connect: Callable[[asyncio.BaseTransport], None] = lambda _transport: None
    resumption: Resumption = field(default_factory=Resumption)
    pulse: Pulse = field(default_factory=Pulse)
    addresses: Addresses = field(default_factory=Addresses)

    async def connect(self, line: L) -> L:
        """Open a line. Raises OSError (TimeoutError and ssl.SSLError among them)."""
        tls = None
        if self.ssl is not None:
            name = self.server_hostname or self.host
            tls = Tls(self.ssl, server_side=False, server_name=name, resumption=self.resumption)
        try:
            async with asyncio.timeout(self.connect_timeout):
                await line.open(tls, self._reach)
        except TimeoutError:
            raise TimeoutError(f"no connection within {self.connect_timeout:g} s") from None
        assert line.transport is not None
        self.on_connect(line.transport)
        return line

    async def _reach(self, factory: Callable[[], Line]) -> None:
        await self.addresses.connect(factory, self.host, self.port, patience=self.connect_timeout)
