"""Ports that are free, and whose those are that are not."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Container, Iterable, Mapping

import psutil

from vkgateway.model.errors import ConflictError, InputError

_HIGHEST = 65535
_SEARCHED = 2000

PortTest = Callable[[str, int], bool]


def is_free(address: str, port: int) -> bool:
    """Whether a server could listen at `address` and `port` now."""
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
    asked: Mapping[str, int],
    port_range: tuple[int, int] | None,
    ours: Callable[[], Container[int]] = frozenset,
    others: Container[tuple[str, int]] = (),
    free: PortTest = is_free,
) -> dict[str, int]:
    """Choose a port for each name in `preferred`, at the address that `addresses` gives it.

    A port `asked` for counts first, then the one `kept` from before (either has to be free; one that is kept may be
    among `ours`, those our own processes hold, which is asked once one is not free); else the preferred one or the next
    free one after it, within `port_range`, that is not one of the `others` (address and port): those will be in use.

    Raises:
        ConflictError: a port that was asked for or kept is in use by somebody else.
        InputError: one is meant for two.
    """
    chosen: dict[str, int] = {}
    fixed = {**kept, **asked}
    _check_distinct(fixed, addresses=addresses, asked=asked)
    for name, port in fixed.items():
        address = addresses[name]
        # In this order, for one of ours may start while it is looked, or end.
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
    """Read `FROM-TO`. Raises InputError where that is not two ports in order."""
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high) <= _HIGHEST):
        raise InputError(f"port range {text!r} is not FROM-TO with 1 <= FROM <= TO <= {_HIGHEST}, like 20000-20999")
    return int(low), int(high)


def parse_port(text: str, *, names: Iterable[str]) -> tuple[str, int]:
    """Read `NAME=PORT`. Raises InputError where the name is unknown or the port is none."""
    name, _, port = text.partition("=")
    known = list(names)
    if name not in known:
        raise InputError(f"there is no port called {name!r}", hint=f"They are called {', '.join(known)}.")
    if not (port.isdecimal() and 0 < int(port) <= _HIGHEST):
        raise InputError(f"port {port!r} for {name} is not a number from 1 to {_HIGHEST}")
    return name, int(port)


def _check_distinct(fixed: Mapping[str, int], *, addresses: Mapping[str, str], asked: Container[str]) -> None:
    """See that no two of our own are to listen at one place: whichever started last would never come up."""
    at: dict[tuple[str, int], str] = {}
    for name, port in fixed.items():
        other = at.setdefault((addresses[name], port), name)
        if other != name:
            new, old = (name, other) if name in asked and other not in asked else (other, name)
            raise InputError(
                f"port {port} at {addresses[name]} is meant for {new} and for {old}",
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
        hint="Give another range with --port-range FROM-TO.",
    )


def _in_use_error(name: str, *, address: str, port: int) -> ConflictError:
    return ConflictError(
        f"port {port} at {address}, meant for {name}, is in use by {_find_holder(port)}",
        hint=f"Stop that, or choose another port with `--port {name}=PORT`.",
    )


def _find_holder(port: int) -> str:
    """Return the process that listens at a port, as far as we may see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status != psutil.CONN_LISTEN or not connection.laddr or not connection.pid:
                continue
            if connection.laddr.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return "another process"
