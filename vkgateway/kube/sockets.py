"""Options of TCP sockets: keep-alive, which detects a peer whose machine or network has failed, and closing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final, NamedTuple


class KeepAlive(NamedTuple):
    """TCP keep-alive settings of a connection, in seconds. `user_timeout` also bounds unacknowledged data."""

    idle: int
    interval: int
    probes: int
    user_timeout: int | None = None


REQUEST_KEEPALIVE: Final = KeepAlive(idle=15, interval=5, probes=3, user_timeout=30)
"""Detects a lost peer within 30 s, also while a watch only receives."""
TUNNEL_KEEPALIVE: Final = KeepAlive(idle=60, interval=15, probes=4)
"""Detects a lost peer within two minutes on connections that may be silent for hours."""


def enable_keepalive(transport: asyncio.BaseTransport, settings: KeepAlive) -> None:
    """Enable keep-alive on a TCP transport, with the options that the system supports. Ignore other transports."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = {
        "TCP_KEEPIDLE": settings.idle,
        "TCP_KEEPINTVL": settings.interval,
        "TCP_KEEPCNT": settings.probes,
        "TCP_USER_TIMEOUT": None if settings.user_timeout is None else settings.user_timeout * 1000,
    }
    with contextlib.suppress(OSError):  # the connection was lost already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if value is not None and hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def discard_on_close(transport: asyncio.BaseTransport) -> None:
    """Make closing a transport discard unacknowledged bytes. Otherwise the kernel continues to send them."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
