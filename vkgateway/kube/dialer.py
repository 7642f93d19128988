"""TCP connections to a host with several addresses: a silent address leaves time for the next one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from vkgateway.api.names import is_ip_address


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
