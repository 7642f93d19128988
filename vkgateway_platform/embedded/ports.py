"""Free ports, and the owners of ports in use."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Container, Iterable, Mapping

import psutil

from vkgateway.api.errors import ConflictError, InputError

_HIGHEST = 65535
_SEARCHED = 2000

PortTest = Callable[[str, int], bool]


def is_free(address: str, port: int) -> bool:
    """Return whether a server can listen at an address and port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
    return True


def choose_ports(
    preferred: Mapping[str, int],
    *,
    addresses: Mapping[str, str],
    kept: Mapping[str, int],
    requested: Mapping[str, int],
    port_range: tuple[int, int] | None,
    ours: Callable[[], Container[int]] = frozenset,
    others: Container[tuple[str, int]] = (),
    free: PortTest = is_free,
) -> dict[str, int]:
    """Choose a port for each name in `preferred`, at its address in `addresses`.

    A port in `requested` comes first, then the one in `kept`. Both must be free; a kept port may be one of `ours`, the
    ports of the platform's own processes, which is called only if a port is in use. Otherwise it is the preferred port,
    or the next free one in `port_range`. That port must not be in `others`, the addresses and ports of other platforms.

    Raises:
        ConflictError: another program uses a port in `requested` or `kept`.
        InputError: two names have the same port.
    """
    chosen: dict[str, int] = {}
    fixed = {**kept, **requested}
    _check_distinct(fixed, addresses=addresses, requested=requested)
    for name, port in fixed.items():
        address = addresses[name]
        # In this order, since one of the platform's processes may start or exit meanwhile.
        if not (free(address, port) or (kept.get(name) == port and port in ours()) or free(address, port)):
            raise _in_use_error(name, address=address, port=port)
        chosen[name] = port
    for name, first in preferred.items():
        if name not in chosen:
            chosen[name] = _find_port(
                name,
                first,
                address=addresses[name],
                port_range=port_range,
                used=set(chosen.values()),
                free=lambda address, port: (address, port) not in others and free(address, port),
            )
    return chosen


def parse_range(text: str) -> tuple[int, int]:
    """Parse `FROM-TO`. Raises InputError if these are not two ports in order."""
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high) <= _HIGHEST):
        raise InputError(f"port range {text!r} is not FROM-TO with 1 <= FROM <= TO <= {_HIGHEST}, like 20000-20999")
    return int(low), int(high)


def parse_port(text: str, *, names: Iterable[str]) -> tuple[str, int]:
    """Parse `NAME=PORT`. Raises InputError if the name is unknown or the port is invalid."""
    name, _, port = text.partition("=")
    known = list(names)
    if name not in known:
        raise InputError(f"port {name!r} does not exist", hint=f"Available ports: {', '.join(known)}.")
    if not (port.isdecimal() and 0 < int(port) <= _HIGHEST):
        raise InputError(f"port {port!r} for {name} is not a number from 1 to {_HIGHEST}")
    return name, int(port)


def _check_distinct(fixed: Mapping[str, int], *, addresses: Mapping[str, str], requested: Container[str]) -> None:
    """Check that no two servers listen at the same address and port: the second could not start."""
    at: dict[tuple[str, int], str] = {}
    for name, port in fixed.items():
        other = at.setdefault((addresses[name], port), name)
        if other != name:
            new, old = (name, other) if name in requested and other not in requested else (other, name)
            raise InputError(
                f"port {port} at {addresses[name]} is set for both {new} and {old}",
                hint=f"Choose another one with `--port {new}=PORT`.",
            )


def _find_port(
    name: str, first: int, *, address: str, port_range: tuple[int, int] | None, used: set[int], free: PortTest
) -> int:
    low, high = port_range or (first, min(first + _SEARCHED, _HIGHEST))
    for port in range(low, high + 1):
        if port not in used and free(address, port):
            return port
    raise ConflictError(
        f"no port is free at {address} from {low} to {high} for {name}",
        hint="Set another range with --port-range FROM-TO.",
    )


def _in_use_error(name: str, *, address: str, port: int) -> ConflictError:
    return ConflictError(
        f"port {port} at {address} for {name} is in use by {_find_holder(port)}",
        hint=f"Stop that process, or choose another port with `--port {name}=PORT`.",
    )


def _find_holder(port: int) -> str:
    """Return the process that listens at a port, if this user may inspect it."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status != psutil.CONN_LISTEN or not connection.laddr or not connection.pid:
                continue
            if connection.laddr.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return "another process"
