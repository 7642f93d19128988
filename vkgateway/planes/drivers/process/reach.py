"""Addresses that API servers of this machine may connect to, whatever a tenant's admin writes."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

from vkgateway.kinds.policies.translation import NODE_ADDRESSES
from vkgateway.planes.webhook_ranges import Address, Network, opens_address

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv4 addresses for machines without IPv4 (RFC 6052)."""
_CLOUD: Final = tuple(
    ipaddress.ip_network(cidr) for cidr in (*NODE_ADDRESSES[4], *NODE_ADDRESSES[6], "168.63.129.16/32")
)
"""Addresses at which clouds answer for a machine. Azure's is public."""


def canonical_address(text: str) -> Address:
    """Return an IP address in the form in which it is dialled: an IPv4-mapped one is IPv4. Raises ValueError."""
    parsed = ipaddress.ip_address(text)
    return (parsed.version == 6 and parsed.ipv4_mapped) or parsed


def is_outside(text: str) -> bool:
    """Return whether an address is public and not one of this machine."""
    address = canonical_address(text)
    inner = _translated_address(address)
    return all(_is_public(one) and not _is_own(one) for one in (address, inner) if one is not None)


def is_in_ranges(text: str, ranges: Sequence[Network]) -> bool:
    """Return whether one of these ranges opens an address for webhooks by URL."""
    address = canonical_address(text)
    holding = [network for network in ranges if address in network]
    return any(opens_address(network, address, is_own=_is_own(address)) for network in holding)


def _is_own(address: Address) -> bool:
    """Return whether this machine has an address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _is_public(address: Address) -> bool:
    if not address.is_global or address.is_multicast or any(address in cloud for cloud in _CLOUD):
        return False
    if address.version == 4 or address in _NAT64:
        return True
    return not (address.is_site_local or address.is_reserved)


def _translated_address(address: Address) -> Address | None:
    """Return the IPv4 address to which the network may translate an IPv6 address (NAT64, 6to4); None for others."""
    if address.version == 4:
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour
