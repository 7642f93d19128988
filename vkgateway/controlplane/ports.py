"""Choosing the port of a tenant's API server, and seeing whether somebody else sits on it."""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Callable, Iterator, Mapping

from vkgateway.model.errors import ConflictError, InputError, UnavailableError

# Below the range from which Linux picks ports for outgoing connections (32768 and up), so that a port stays
# free while its server is down.
PORTS = range(20000, 30000)

PortCheck = Callable[[str, int], bool]


def is_port_free(address: str, port: int) -> bool:
    """Whether a server could listen there now.

    Raises:
        InputError: the address is none of this machine's, or the port is one that we may not use.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        # As Go's servers do: connections of a server just stopped do not count.
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
    wanted: int,
    given: Mapping[int, str],
    address: str,
    ports: range = PORTS,
    can_bind: PortCheck = is_port_free,
) -> int:
    """Choose a port for a tenant's new API server: `wanted`, or where that is 0 a free one of `ports`.

    `given` tells which ports belong to which tenant, running or not. Where the search starts depends on
    the tenant's name, so that platforms that share an address rarely meet.

    Raises:
        ConflictError: the wanted port belongs to another tenant or program.
        UnavailableError: no port of the range is free.
    """
    if wanted:
        owner = given.get(wanted, tenant)
        if owner != tenant:
            raise ConflictError(f"port {wanted} belongs to tenant {owner!r}", hint="choose another, or none")
        require_free(tenant, address=address, port=wanted, can_bind=can_bind)
        return wanted
    for port in _ports_from_name(tenant, ports):
        if given.get(port, tenant) == tenant and can_bind(address, port):
            return port
    raise UnavailableError(f"no port from {ports.start} to {ports.stop - 1} is free at {address}")


def require_free(tenant: str, *, address: str, port: int, can_bind: PortCheck = is_port_free) -> None:
    """Raise ConflictError where another program listens on the tenant's port."""
    if not can_bind(address, port):
        raise ConflictError(
            f"port {port} at {address}, where the API server of tenant {tenant!r} listens, is in use by"
            " another program",
            hint="stop that program, or give the tenant another spec.apiServer.port",
        )


def _ports_from_name(tenant: str, ports: range) -> Iterator[int]:
    start = int.from_bytes(hashlib.sha256(tenant.encode()).digest()[:4]) % len(ports)
    yield from ports[start:]
    yield from ports[:start]
