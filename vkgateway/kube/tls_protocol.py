"""One TCP connection to a server, plain or TLS, for those who take bytes as they come.

TLS is done here over the plain transport, as in `wire`: the event loop's own costs a fourth of a request more.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from vkgateway.kube.dialer import HostDialer
from vkgateway.kube.tls_engine import TlsEngine, TlsSessions

L = TypeVar("L", bound="TlsProtocol")

IDLE_SECONDS: Final = 60.0
"""Seconds after which an unused connection is not trusted any more."""


class TlsProtocol(asyncio.Protocol):
    """What both kinds have in common; `heard` and `handle_close` are for those who make something of it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._tls: TlsEngine | None = None
        self._opening: asyncio.Future[None] | None = None
        self._tls_error: ssl.SSLError | None = None

    def handle_data(self, data: bytes) -> None:
        """Bytes came."""

    def handle_close(self, why: Exception | None) -> None:
        """Nothing more comes, for the last time; `why` is None where the server said that it was done."""

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self.transport is not None
        if self._tls is None:
            self.transport.write(data)
            return
        self._tls.encrypt_data(data)
        self.transport.write(self._tls.take_outgoing())

    def close(self) -> None:
        """Close once everything was sent."""
        if self.transport is not None and not self.transport.is_closing():
            if self._tls is not None and self._tls.is_established:
                self._tls.encrypt_close_notify()
            self._flush_tls()
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def hand_over_to(self, to: TlsProtocol) -> None:
        """Have another take over the connection, between an answer and the next request; nothing more comes here."""
        assert self.transport is not None
        to.transport, to._tls = self.transport, self._tls
        self.transport.set_protocol(to)
        self.transport = None
        self.handle_close(None)

    async def open_connection(
        self, tls: TlsEngine | None, reach: Callable[[Callable[[], TlsProtocol]], Awaitable[None]]
    ) -> None:
        """Connect by `reach`, and shake hands where `tls` is given; once only.

        Raises OSError (ssl.SSLError among them).
        """
        loop = asyncio.get_running_loop()
        self._tls = tls
        opened = self._opening = loop.create_future()
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
            self._finish_opening()
        else:
            self._tls.start_handshake()
            self._flush_tls()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        tls = self._tls
        if tls is None:
            self.handle_data(data)
            return
        try:
            data = tls.decrypt_data(data)
        except ssl.SSLError as error:
            self._fail_handshake(error)
            return
        self._flush_tls()
        if self._opening is not None and tls.is_established:
            self._finish_opening()
        if data:
            self.handle_data(data)
        if tls.is_ended:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        cut = exc is None and self._tls is not None and not self._tls.is_ended
        why = self._tls_error or (ConnectionResetError("the server closed the connection") if cut else exc)
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(why or ConnectionResetError("the server closed the connection"))
        self.handle_close(why)

    def _finish_opening(self) -> None:
        opened, self._opening = self._opening, None
        if opened is not None and not opened.done():
            opened.set_result(None)

    def _fail_handshake(self, error: ssl.SSLError) -> None:
        """End on a TLS error, after the alert that tells the server why; the server's own may come with the answer."""
        self._tls_error = error
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(error)
        self._flush_tls()
        if self.transport is not None:
            self.transport.close()

    def _flush_tls(self) -> None:
        if self._tls is not None and self.transport is not None and (data := self._tls.take_outgoing()):
            self.transport.write(data)


class ServerActivity:
    """When a server was heard of last, over whichever of its connections, in the loop's time."""

    __slots__ = ("last_heard",)

    def __init__(self) -> None:
        self.last_heard = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where lines lead: `ssl` is how both sides prove themselves (None: plain), `server_hostname` the name expected of
    the server where it is not `host`. `on_connect` gets each new transport.
    """

    host: str
    port: int
    ssl: ssl.SSLContext | None
    server_hostname: str | None = None
    connect_timeout: float = 10.0
    on_connect: Callable[[asyncio.BaseTransport], None] = lambda _transport: None
    tls_sessions: TlsSessions = field(default_factory=TlsSessions)
    activity: ServerActivity = field(default_factory=ServerActivity)
    dialer: HostDialer = field(default_factory=HostDialer)

    async def open_connection(self, line: L) -> L:
        """Open a line. Raises OSError (TimeoutError and ssl.SSLError among them)."""
        tls = None
        if self.ssl is not None:
            name = self.server_hostname or self.host
            tls = TlsEngine(self.ssl, server_side=False, server_name=name, resumption=self.tls_sessions)
        try:
            async with asyncio.timeout(self.connect_timeout):
                await line.open_connection(tls, self._dial_host)
        except TimeoutError:
            raise TimeoutError(f"no connection within {self.connect_timeout:g} s") from None
        assert line.transport is not None
        self.on_connect(line.transport)
        return line

    async def _dial_host(self, factory: Callable[[], TlsProtocol]) -> None:
        await self.dialer.connect(factory, self.host, self.port, patience=self.connect_timeout)
