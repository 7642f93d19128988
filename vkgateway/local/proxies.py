"""A proxy in the user's environment: kubectl would ask it for the way to a platform on this very machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

_PROXY = ("HTTPS_PROXY", "https_proxy")
_NO_PROXY = ("NO_PROXY", "no_proxy")


def no_proxy(environment: Mapping[str, str], *, address: str) -> str | None:
    """Return what NO_PROXY has to be for `address` to be reached straight; None where it is so already."""
    if not any(environment.get(name) for name in _PROXY):
        return None
    said = next((environment[name] for name in _NO_PROXY if environment.get(name)), "")
    entries = [entry.strip() for entry in said.split(",") if entry.strip()]
    if any(_covers_address(entry, address) for entry in entries):
        return None
    return ",".join([*entries, address])


def _covers_address(entry: str, address: str) -> bool:
    """Whether an entry stands for the address, as Go's programs read it: everything, itself or a network around it."""
    try:
        return entry == "*" or ipaddress.ip_address(address) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
