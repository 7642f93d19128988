"""Peers and ports of NetworkPolicy rules as matches of nftables. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from vkgateway.kinds.pods.translation.node_terms import all_match
from vkgateway.kinds.policies.translation import Direction
from vkgateway_platform.embedded.netpol.cluster_state import ClusterState, Pod

Side = Literal["saddr", "daddr"]

_SIDES: dict[Direction, Side] = {"Ingress": "saddr", "Egress": "daddr"}
_LISTS: dict[Direction, str] = {"Ingress": "from", "Egress": "to"}
_PROTOCOLS = {"TCP": "tcp", "UDP": "udp", "SCTP": "sctp"}
_LAST_PORT = 65535


def selector_matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches; an empty one always does."""
    wanted = selector or {}
    exact = (wanted.get("matchLabels") or {}).items()
    required = [{"key": key, "operator": "In", "values": [value]} for key, value in exact]
    return all_match(labels, [*required, *(wanted.get("matchExpressions") or ())])


def nft_set(values: Iterable[str]) -> str:
    """Return an anonymous set."""
    return f"{{ {', '.join(values)} }}"


class PolicyRule:
    """One rule of a policy; `members` are the pods that the policy selects."""

    def __init__(
        self,
        world: ClusterState,
        direction: Direction,
        rule: Mapping[str, Any],
        *,
        namespace: str,
        members: Sequence[Pod],
    ) -> None:
        self._world = world
        self._direction = direction
        self._rule = rule
        self._namespace = namespace
        self._members = members

    def packet_matches(self) -> Iterator[str]:
        """Yield matches, one of which applies to each packet that the rule allows; `""` matches all."""
        peers = self._rule.get(_LISTS[self._direction])
        chosen = [pod for pod in self._world.pods if not peers or any(self._is_peer(peer, pod) for peer in peers)]
        addresses = list(self._address_matches(peers, chosen))
        for port in self._port_matches(chosen):
            yield from (f"{address} {port}".strip() for address in addresses)

    def _address_matches(self, peers: Sequence[Mapping[str, Any]] | None, chosen: Sequence[Pod]) -> Iterator[str]:
        side = _SIDES[self._direction]
        if not peers:
            yield ""
            return
        if chosen:
            yield f"ip {side} {nft_set(sorted(pod.address for pod in chosen))}"
        for peer in peers:
            if block := peer.get("ipBlock"):
                yield from _block_matches(side, block)

    def _is_peer(self, peer: Mapping[str, Any], pod: Pod) -> bool:
        if peer.get("ipBlock"):
            return False
        namespaces = peer.get("namespaceSelector")
        if namespaces is None:
            meant = pod.namespace == self._namespace
        else:
            meant = selector_matches(namespaces, self._world.namespaces.get(pod.namespace, {}))
        return meant and selector_matches(peer.get("podSelector"), pod.labels)

    def _port_matches(self, peers: Sequence[Pod]) -> Iterator[str]:
        """Yield matches of the packet's port."""
        ports = self._rule.get("ports")
        if not ports:
            yield ""
            return
        receivers = self._members if self._direction == "Ingress" else peers
        for name, keyword in _PROTOCOLS.items():
            here = [port for port in ports if (port.get("protocol") or "TCP") == name]
            if numbers := _port_ranges(here):
                yield f"{keyword} dport {nft_set(numbers)}"
            named = {port["port"] for port in here if isinstance(port.get("port"), str)}
            pairs = sorted(
                f"{pod.address} . {port.container_port}"
                for pod in receivers
                for port in pod.ports
                if port.name in named and port.protocol == name
            )
            if pairs:
                yield f"ip daddr . {keyword} dport {nft_set(dict.fromkeys(pairs))}"


def _block_matches(side: Side, block: Mapping[str, Any]) -> Iterator[str]:
    cidr = ipaddress.ip_network(block["cidr"], strict=False)
    if not isinstance(cidr, ipaddress.IPv4Network):
        return
    match = f"ip {side} {cidr}"
    excepted = [ipaddress.ip_network(entry, strict=False) for entry in block.get("except") or ()]
    apart = list(
        ipaddress.collapse_addresses(network for network in excepted if isinstance(network, ipaddress.IPv4Network))
    )
    yield f"{match} ip {side} != {nft_set(map(str, apart))}" if apart else match


def _port_ranges(ports: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return numbered ports as ranges that do not overlap, as sets of nftables require."""
    found: list[tuple[int, int]] = []
    for port in ports:
        number = port.get("port")
        if number is None:
            found.append((0, _LAST_PORT))
        elif isinstance(number, int):
            found.append((number, port.get("endPort") or number))
    merged: list[tuple[int, int]] = []
    for first, last in sorted(found):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return [f"{first}-{last}" if first != last else str(first) for first, last in merged]
