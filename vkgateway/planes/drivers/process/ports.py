"""Ports of API servers on this machine: choose one, and detect other programs that use it."""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Callable, Iterator, Mapping

from vkgateway.api.errors import ConflictError, InputError, UnavailableError

# Below Linux's range for outgoing connections (32768 and up), so that a port stays free while its server is down.
PORTS = range(20000, 30000)

PortCheck = Callable[[str, int], bool]


def is_port_free(address: str, port: int) -> bool:
    """Return whether a server can listen at an address and port.

    Raises:
        InputError: this machine does not have the address, or forbids the port.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        # Go's servers set it too: connections of a server that has just stopped do not block the port.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise InputError(f"nothing can listen at {address} port {port}: {error.strerror}") from error
    return True


def choose_port(
    tenant: str,
    *,
    requested: int,
    assigned: Mapping[int, str],
    address: str,
    ports: range = PORTS,
    can_bind: PortCheck = is_port_free,
) -> int:
    """Return a port for a tenant's new server: `requested`, or a free one of `ports` if that is 0.

    `assigned` maps the ports of all tenants, running or not, to their names. The search starts at a port that depends
    on the tenant's name, so that platforms that share an address rarely collide.

    Raises:
        ConflictError: another tenant or program has the requested port.
        UnavailableError: no port of the range is free.
    """
    if requested:
        owner = assigned.get(requested, tenant)
        if owner != tenant:
            raise ConflictError(f"port {requested} belongs to tenant {owner!r}", hint="Choose another port, or none.")
        require_free(tenant, address=address, port=requested, can_bind=can_bind)
        return requested
    for port in _ports_from_name(tenant, ports):
        if assigned.get(port, tenant) == tenant and can_bind(address, port):
            return port
    raise UnavailableError(f"no port from {ports.start} to {ports.stop - 1} is free at {address}")


def require_free(tenant: str, *, address: str, port: int, can_bind: PortCheck = is_port_free) -> None:
    """Raise ConflictError if another program listens on the port of a tenant's API server."""
    if not can_bind(address, port):
        raise ConflictError(
            f"port {port} at {address}, where the API server of tenant {tenant!r} listens, is in use by"
            " another program",
            hint="Stop that program, or set another spec.apiServer.port in the Tenant.",
        )


def _ports_from_name(tenant: str, ports: range) -> Iterator[int]:
    start = int.from_bytes(hashlib.sha256(tenant.encode()).digest()[:4]) % len(ports)
    yield from ports[start:]
    yield from ports[:start]
