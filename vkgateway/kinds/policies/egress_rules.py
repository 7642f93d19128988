"""Egress rules that exclude other tenants' name servers."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from vkgateway.api.objects import Object

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PortRange = tuple[int, int]

PRIVATE_RANGES: Final = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
"""Addresses of clusters and their nodes, never on the internet (RFC 1918, RFC 6598, RFC 4193)."""
_DNS_PORTS: Final = (53, 53)
_ALL_PORTS: Final = (1, 65535)
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_DNS_PROTOCOLS: Final = frozenset({"TCP", "UDP"})


@dataclass(frozen=True, slots=True)
class NameServerRange:
    """Address and port range, first to last, of the name servers of all tenants.

    At `other_ports`, within the range, the gateway's kubelet endpoint listens and no name server.
    """

    address: str
    first_port: int
    last_port: int
    other_ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _ClosedArea:
    """Addresses at which some ports stay closed."""

    networks: Sequence[Network]
    closed: Sequence[PortRange]


def exclude_name_servers(rule: Object, *, pod_ranges: tuple[str, ...], servers: NameServerRange | None) -> list[Object]:
    """Return rules that allow what an egress rule allows, except name servers at addresses of clusters.

    Peers with selectors are kept: they select the tenant's own pods. For protocols other than TCP, UDP and SCTP, a
    NetworkPolicy cannot exclude single ports, so these protocols are closed at such addresses, too.
    """
    rules = [rule]
    for area in _closed_areas(pod_ranges, servers):
        rules = [part for one in rules for part in _split_rule(one, area)]
    return rules


@lru_cache(maxsize=64)
def _closed_areas(pod_ranges: tuple[str, ...], servers: NameServerRange | None) -> tuple[_ClosedArea, ...]:
    clusters = _ClosedArea(_outermost_networks(map(ipaddress.ip_network, (*PRIVATE_RANGES, *pod_ranges))), [_DNS_PORTS])
    if servers is None:
        return (clusters,)
    ports = _port_gaps((servers.first_port, servers.last_port), [(port, port) for port in servers.other_ports])
    listening = _ClosedArea([ipaddress.ip_network(servers.address)], [_DNS_PORTS, *ports])
    return clusters, listening


def _outermost_networks(networks: Iterable[Network]) -> list[Network]:
    """Return the networks that no other network contains."""
    found: list[Network] = []
    for one in sorted(set(networks), key=lambda network: network.prefixlen):
        if not any(_contains_network(other, one) for other in found):
            found.append(one)
    return found


def _split_rule(rule: Object, area: _ClosedArea) -> Iterator[Object]:
    peers = rule.get("to") or ()
    ports = list(rule.get("ports") or ())
    left = list(_open_ports(ports, area.closed))
    if left == ports and ports:
        yield rule
        return
    outside = [peer for peer in peers if not peer.get("ipBlock")]
    inside: list[Object] = []
    for peer in peers:
        if block := peer.get("ipBlock"):
            apart, within = _split_block(block, area.networks)
            outside += [{"ipBlock": one} for one in apart]
            inside += [{"ipBlock": one} for one in within]
    if outside:
        yield {**rule, "to": outside}
    if inside and left:
        yield {"to": inside, "ports": left}


def _split_block(block: Mapping[str, Any], networks: Sequence[Network]) -> tuple[list[Object], list[Object]]:
    """Return the part of a block outside some networks, and its parts inside."""
    cidr = ipaddress.ip_network(block["cidr"])
    excepted = [ipaddress.ip_network(one) for one in block.get("except") or ()]
    if any(_contains_network(network, cidr) for network in networks):
        return [], [dict(block)]
    held = [network for network in networks if _contains_network(cidr, network)]
    open_ones = [network for network in held if not any(_contains_network(one, network) for one in excepted)]
    apart = [*excepted, *open_ones]
    return [_ip_block(cidr, apart)], [
        _ip_block(one, [away for away in excepted if _contains_network(one, away)]) for one in open_ones
    ]


def _ip_block(cidr: Network, excepted: Sequence[Network]) -> Object:
    return {"cidr": str(cidr), **({"except": list(dict.fromkeys(map(str, excepted)))} if excepted else {})}


def _contains_network(one: Network, other: Network) -> bool:
    return one.version == other.version and one.prefixlen <= other.prefixlen and one.overlaps(other)


def _open_ports(ports: Sequence[Mapping[str, Any]], closed: Sequence[PortRange]) -> Iterator[Object]:
    """Yield the ports without the closed ones.

    Named ports are dropped: they refer to pods, which peers select by label.
    """
    for port in ports or [{"protocol": protocol} for protocol in _PROTOCOLS]:
        number, protocol = port.get("port"), port.get("protocol") or "TCP"
        if isinstance(number, str):
            continue
        requested = _ALL_PORTS if number is None else (number, port.get("endPort") or number)
        shut = [
            one for one in closed if protocol in _DNS_PROTOCOLS and one[0] <= requested[1] and requested[0] <= one[1]
        ]
        if not shut:
            yield dict(port)
            continue
        for first, last in _port_gaps(requested, shut):
            yield {"port": first, **({"endPort": last} if last > first else {}), "protocol": protocol}


def _port_gaps(requested: PortRange, closed: Sequence[PortRange]) -> Iterator[PortRange]:
    """Yield the parts of a port range that some ranges do not cover."""
    first = requested[0]
    for begin, end in sorted(closed):
        if first < begin:
            yield first, begin - 1
        first = max(first, end + 1)
    if first <= requested[1]:
        yield first, requested[1]
