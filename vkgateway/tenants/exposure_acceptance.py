"""Objections to the exposure of a tenant's API server (pure)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator

from vkgateway.api.names import is_ip_address
from vkgateway.api.types import ApiServerExposure, ExposureType

_ROUTED: frozenset[ExposureType] = frozenset({"TLSRoute", "Ingress"})
_SERVICES: frozenset[ExposureType] = frozenset({"NodePort", "LoadBalancer"})


def exposure_problems(exposure: ApiServerExposure, *, is_host: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Yield field, relative to the exposure, and sentence for each contradiction. `is_host` accepts names and IPs."""
    kind = exposure.type
    if exposure.hostname and not is_host(exposure.hostname):
        yield "hostname", f"{exposure.hostname!r} is neither a DNS name (such as api.example.com) nor an IP address"
    if kind in _ROUTED and (not exposure.hostname or is_ip_address(exposure.hostname)):
        yield "hostname", f"type {kind} needs a DNS name, by which clients are told apart; set one"
    if kind == "TLSRoute" and exposure.gateway is None:
        yield "gateway", "type TLSRoute needs a Gateway; set its namespace and name"
    yield from _unused_fields(exposure)
    for index, cidr in enumerate(exposure.source_ranges):
        try:
            ipaddress.ip_network(cidr)
        except ValueError:
            yield f"sourceRanges[{index}]", f"{cidr!r} is not a range of addresses, such as 192.0.2.0/24"


def _unused_fields(exposure: ApiServerExposure) -> Iterator[tuple[str, str]]:
    """Yield the fields that the type has no use for: a range that does not apply protects nothing."""
    types: dict[str, tuple[bool, frozenset[ExposureType]]] = {
        "hostname": (bool(exposure.hostname), _SERVICES | _ROUTED),
        "port": (bool(exposure.port), _SERVICES | _ROUTED),
        "annotations": (bool(exposure.annotations), _SERVICES | _ROUTED),
        "sourceRanges": (bool(exposure.source_ranges), _SERVICES),
        "loadBalancerClass": (bool(exposure.load_balancer_class), frozenset({"LoadBalancer"})),
        "ingressClass": (bool(exposure.ingress_class), frozenset({"Ingress"})),
        "gateway": (exposure.gateway is not None, frozenset({"TLSRoute"})),
    }
    for field, (is_set, allowed) in types.items():
        if is_set and exposure.type not in allowed:
            names = " or ".join(sorted(allowed))
            yield field, f"type {exposure.type} does not use it; remove it, or set the type to {names}"
