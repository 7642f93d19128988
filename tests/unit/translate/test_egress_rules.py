"""Egress to addresses: rules keep what they allow, except name servers at addresses of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkgateway.kinds.policies.egress_rules import NameServerRange, exclude_name_servers

SERVERS = NameServerRange("10.213.0.1", 10000, 19999, other_ports=(10352,))
PODS = ("10.214.0.0/24", "198.18.0.0/16", "198.18.7.0/24")
OWN: dict[str, Any] = {"podSelector": {}}

_CIDRS = st.sampled_from(
    ["0.0.0.0/0", "10.0.0.0/8", "10.213.0.0/24", "10.213.0.1/32", "192.0.0.0/2", "198.18.7.0/24", "203.0.113.0/24"]
)
_EXCEPTED = st.lists(st.sampled_from(["10.213.0.0/16", "10.213.0.1/32", "10.0.0.0/7", "203.0.113.9/32"]), max_size=2)
_BLOCKS = st.builds(
    lambda cidr, apart: {
        "cidr": cidr,
        "except": [one for one in apart if IPv4Network(one).subnet_of(IPv4Network(cidr)) and one != cidr],
    },
    _CIDRS,
    _EXCEPTED,
)
_PROTOCOLS = st.sampled_from(["TCP", "UDP", "SCTP"])
_PORTS = st.one_of(
    st.builds(
        lambda port, protocol: {"port": port, "protocol": protocol}, st.sampled_from([53, 80, 10001]), _PROTOCOLS
    ),
    st.builds(lambda first, last: {"port": first, "endPort": last}, st.integers(1, 60), st.integers(60, 30000)),
    st.just({"protocol": "UDP"}),
)
_RULES = st.builds(
    lambda blocks, ports: {"to": [{"ipBlock": one} for one in blocks], **({"ports": ports} if ports else {})},
    st.lists(_BLOCKS, min_size=1, max_size=3),
    st.lists(_PORTS, max_size=3),
)
_INSIDE = ("10.213.0.1", "10.213.0.2", "10.9.9.9", "192.168.1.1", "198.18.7.7")
_ADDRESSES = (*_INSIDE, "203.0.113.9", "8.8.8.8", "192.0.2.1")
_NUMBERS = (1, 52, 53, 54, 80, 9999, 10000, 10351, 10352, 10353, 15000, 19999, 20000, 65535)
_ASKED = [(protocol, port) for protocol in ("TCP", "UDP", "SCTP") for port in _NUMBERS]


def confined(rule: dict[str, Any], servers: NameServerRange | None = SERVERS) -> list[dict[str, Any]]:
    return exclude_name_servers(rule, pod_ranges=PODS, servers=servers)


def opens(rules: Sequence[dict[str, Any]], address: str, protocol: str, port: int) -> bool:
    """Return whether rules allow egress (networking/v1)."""
    return any(
        any(_in_block(peer["ipBlock"], address) for peer in rule["to"] if "ipBlock" in peer)
        and any(_is_port(one, protocol, port) for one in rule.get("ports") or [{"any": True}])
        for rule in rules
    )


def _in_block(block: dict[str, Any], address: str) -> bool:
    target = ip_address(address)
    return target in ip_network(block["cidr"]) and not any(
        target in ip_network(one) for one in block.get("except") or ()
    )


def _is_port(rule: dict[str, Any], protocol: str, port: int) -> bool:
    if "any" in rule:
        return True
    first = rule.get("port", 1)
    last = rule.get("endPort") or rule.get("port", 65535)
    return (rule.get("protocol") or "TCP") == protocol and bool(first <= port <= last)


@given(_RULES)
def test_only_cluster_name_servers_are_closed(rule: dict[str, Any]) -> None:
    found = confined(rule)
    for address in _ADDRESSES:
        for protocol, port in _ASKED:
            asks = protocol in ("TCP", "UDP") and (
                (address in _INSIDE and port == 53)
                or (address == SERVERS.address and 10000 <= port <= 19999 and port not in SERVERS.other_ports)
            )
            assert opens(found, address, protocol, port) == (opens([rule], address, protocol, port) and not asks)


@given(_RULES)
def test_rules_are_valid(rule: dict[str, Any]) -> None:
    for one in confined(rule):
        assert one["to"], "an empty list would mean everybody"
        assert "ports" not in one or one["ports"], "an empty list would mean every port"
        for block in (peer["ipBlock"] for peer in one["to"]):
            assert all(ip_network(away) != ip_network(block["cidr"]) for away in block.get("except", ()))
            assert all(IPv4Network(away).subnet_of(IPv4Network(block["cidr"])) for away in block.get("except", ()))
        assert all(1 <= port.get("port", 1) <= port.get("endPort", 65535) <= 65535 for port in one.get("ports", ()))


def test_selectors_keep_all_ports() -> None:
    assert confined({"to": [OWN]}) == [{"to": [OWN]}]
    assert confined({"to": [OWN, {"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 53, "protocol": "UDP"}]}) == [
        {"to": [OWN], "ports": [{"port": 53, "protocol": "UDP"}]}
    ]


def test_rule_without_name_servers_is_unchanged() -> None:
    rule = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 443, "protocol": "TCP"}]}
    assert confined(rule) == [rule]


@pytest.mark.parametrize("cidr", ["::/0", "fd00::/8", "2001:db8::/32"])
def test_ipv6_blocks_are_split(cidr: str) -> None:
    found = confined({"to": [{"ipBlock": {"cidr": cidr}}]})
    assert opens(found, "fd00::53", "UDP", 80) == (cidr != "2001:db8::/32")
    assert not opens(found, "fd00::53", "UDP", 53)
    assert opens(found, "2001:db8::53", "UDP", 53) == (cidr != "fd00::/8")
