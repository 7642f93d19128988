"""Ranges of addresses that operators open for webhooks by URL of tenants whose API servers are processes."""

from __future__ import annotations

import ipaddress

from vkgateway.api.errors import InputError
from vkgateway.kinds.policies.translation import NODE_ADDRESSES

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_CLOSED: tuple[Network, ...] = tuple(ipaddress.ip_network(cidr) for cidrs in NODE_ADDRESSES.values() for cidr in cidrs)
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


def parse_webhook_range(text: str) -> Network:
    """Return a range of addresses that webhooks by URL may have.

    Raises InputError: it is no CIDR, or none of its addresses would ever be reached.
    """
    try:
        found = ipaddress.ip_network(text)
    except ValueError as error:
        raise InputError(f"{text!r} is not a CIDR", hint="Use the form 10.20.0.0/16, without host bits.") from error
    if found.version == 6 and found.subnet_of(_MAPPED):
        raise InputError(f"{text!r} has IPv4-mapped addresses", hint="Write the range as IPv4, such as 10.20.0.0/16.")
    if found.is_loopback and found.num_addresses > 1:
        raise InputError(
            f"{text!r} has loopback addresses, which a range never opens",
            hint="Name each address, such as 127.0.0.1/32. It opens every server of this machine there.",
        )
    if found.is_multicast or found.is_unspecified or any(_is_within(found, closed) for closed in _CLOSED):
        raise InputError(
            f"{text!r} has link-local or other addresses that no webhook can have",
            hint="Remove it: clouds answer there with credentials of this machine.",
        )
    return found


def opens_address(network: Network, address: Address, *, is_own: bool) -> bool:
    """Return whether a range opens an address.

    A range of several addresses opens none of this machine, `is_own`: an operator who opens the company's network does
    not mean the servers of the platform in it.
    """
    if address not in network or any(address in closed for closed in _CLOSED):
        return False
    if address.is_multicast or address.is_unspecified:
        return False
    return network.num_addresses == 1 or not (is_own or address.is_loopback)


def _is_within(network: Network, other: Network) -> bool:
    if isinstance(network, ipaddress.IPv4Network):
        return isinstance(other, ipaddress.IPv4Network) and network.subnet_of(other)
    return isinstance(other, ipaddress.IPv6Network) and network.subnet_of(other)
