"""The address of a server, and how connections to it are opened."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from vkgateway.api.names import is_ip_address
from vkgateway.kube.tls_engine import TlsEngine, TlsSessions
from vkgateway.kube.tls_protocol import TlsProtocol


class HostDialer:
    """Dialer of one host. It resolves the host for each connection, and tries the last good address first."""

    __slots__ = ("_last_good",)

    def __init__(self) -> None:
        self._last_good = ""

    async def connect(self, factory: Callable[[], asyncio.Protocol], host: str, port: int, *, patience: float) -> None:
        """Connect within `patience` seconds, divided among the addresses. Raises OSError."""
        loop = asyncio.get_running_loop()
        if is_ip_address(host):
            await loop.create_connection(factory, host, port)
            return
        until = loop.time() + patience
        addresses = await self._resolve_host(host, port)
        for untried in range(len(addresses), 0, -1):
            address = addresses[-untried]
            try:
                async with asyncio.timeout((until - loop.time()) / untried):
                    await loop.create_connection(factory, address, port)
            except OSError:  # includes TimeoutError
                if untried == 1:
                    raise
            else:
                self._last_good = address
                return

    async def _resolve_host(self, host: str, port: int) -> list[str]:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = dict.fromkeys(str(info[4][0]) for info in found)
        return sorted(addresses, key=lambda address: address != self._last_good)


P = TypeVar("P", bound=TlsProtocol)

IDLE_SECONDS: Final = 60.0
"""Seconds after which an unused connection is closed instead of reused."""


class ServerActivity:
    """Time of the last byte from a server over any of its connections, in the event loop's time."""

    __slots__ = ("last_heard",)

    def __init__(self) -> None:
        self.last_heard = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a server and the settings of its connections.

    `ssl` holds the TLS identities (None: plain TCP). `server_hostname` is the name that the server's certificate must
    carry instead of `host`. With `tls_sessions`, later handshakes resume earlier sessions.
    """

    host: str
    port: int
    ssl: ssl.SSLContext | None
    server_hostname: str | None = None
    connect_timeout: float = 10.0
    tls_sessions: TlsSessions | None = field(default_factory=TlsSessions)
    activity: ServerActivity = field(default_factory=ServerActivity)
    dialer: HostDialer = field(default_factory=HostDialer)

    async def open_connection(self, protocol: P) -> P:
        """Open a connection, TLS handshake included. Raises OSError (TimeoutError and ssl.SSLError included)."""
        if self.ssl is not None:
            name = self.server_hostname or self.host
            protocol.tls = TlsEngine(self.ssl, server_side=False, server_name=name, resumption=self.tls_sessions)
        try:
            async with asyncio.timeout(self.connect_timeout):
                await self.dialer.connect(lambda: protocol, self.host, self.port, patience=self.connect_timeout)
                await protocol.wait_opened()
        except TimeoutError:
            protocol.abort()
            raise TimeoutError(f"no connection within {self.connect_timeout:g} s") from None
        except BaseException:
            protocol.abort()
            raise
        return protocol
