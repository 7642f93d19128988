"""HTTP proxies in the user's environment: kubectl would use one even for a platform on this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

_PROXY = ("HTTPS_PROXY", "https_proxy")
_NO_PROXY = ("NO_PROXY", "no_proxy")


def no_proxy(environment: Mapping[str, str], *, address: str) -> str | None:
    """Return the NO_PROXY that excludes `address` from the proxy; None if the current one does."""
    if not any(environment.get(name) for name in _PROXY):
        return None
    value = next((environment[name] for name in _NO_PROXY if environment.get(name)), "")
    entries = [entry.strip() for entry in value.split(",") if entry.strip()]
    if any(_covers_address(entry, address) for entry in entries):
        return None
    return ",".join([*entries, address])


def _covers_address(entry: str, address: str) -> bool:
    """Return whether an entry covers the address by the rules of Go programs: all, the address, or a network."""
    try:
        return entry == "*" or ipaddress.ip_address(address) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
