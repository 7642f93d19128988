"""Ports for programs that do not choose one themselves."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 1024
_CHOICES = 10_000


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port on which no program listens.

    It is below the ports that the kernel gives to connections: until a program listens on it, no connection gets it.
    """
    first = int(_RANGE.read_text().split()[0])
    while True:
        port = random.randrange(max(_LOWEST, first - _CHOICES), max(2 * _LOWEST, first))
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        return port
