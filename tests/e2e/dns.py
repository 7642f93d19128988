"""Direct queries to a name server, without search paths and caches of a resolver (RFC 1035)."""

from __future__ import annotations

import socket
import struct

from tests.support.machine import patience

A = 1
SRV = 33


def query_server(server: str, name: str, kind: int = A, *, timeout: float = 5) -> list[str]:
    """Return a server's answer over UDP: addresses, or targets with ports as `host:port`, empty for an unknown name."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split(".")) + b"\0"
    question = labels + struct.pack(">HH", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(patience(timeout))
        link.sendto(struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + question, (server, 53))
        response = link.recv(4096)
    count = struct.unpack(">H", response[6:8])[0]
    offset, found = 12 + len(question), []
    for _ in range(count):
        _, offset = _read_name(response, offset)
        sort, _, _, length = struct.unpack(">HHIH", response[offset : offset + 10])
        offset += 10
        if sort == A:
            found.append(socket.inet_ntoa(response[offset : offset + 4]))
        elif sort == SRV:
            port = struct.unpack(">H", response[offset + 4 : offset + 6])[0]
            found.append(f"{_read_name(response, offset + 6)[0]}:{port}")
        offset += length
    return sorted(found)


def _read_name(response: bytes, offset: int) -> tuple[str, int]:
    """Return the name at an offset, and where it ends. Names may end in a pointer to another offset."""
    labels: list[str] = []
    end = 0
    while length := response[offset]:
        if length >= 0xC0:
            end = end or offset + 2
            offset = struct.unpack(">H", response[offset : offset + 2])[0] & 0x3FFF
            continue
        labels.append(response[offset + 1 : offset + 1 + length].decode())
        offset += 1 + length
    return ".".join(labels), end or offset + 1
