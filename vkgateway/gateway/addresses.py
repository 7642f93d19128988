"""Addresses of the gateway: where it listens, and where API servers and pods reach it."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass

from vkgateway.gateway.config import Config
from vkgateway.gateway.management_connection import primary_address
from vkgateway.model.errors import InputError, UnavailableError

_HINT = "Set kubelet.advertiseAddress to an address at which API servers reach the gateway, such as a Service's."


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAddress:
    """Listen address of the kubelet endpoint, and the IP address and port at which others reach it."""

    listen: str
    advertised: str
    """IP address in nodes, webhooks and EndpointSlices."""
    advertised_name: str = ""
    """DNS name from which the IP address was resolved, if any."""
    advertised_port: int = 0
    """0 if the port changes at each start."""

    @property
    def machine_address(self) -> str:
        """Address at which other programs of this machine can listen."""
        return self.advertised if is_unspecified(self.listen) else self.listen

    @property
    def certificate_ips(self) -> tuple[str, ...]:
        """IP addresses in the serving certificate."""
        listen = () if is_unspecified(self.listen) else (self.listen,)
        return tuple(dict.fromkeys((*listen, self.advertised)))

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """DNS names in the serving certificate."""
        return (self.advertised_name,) if self.advertised_name else ()


def is_unspecified(address: str) -> bool:
    """Return whether the address means all interfaces: 0.0.0.0 or ::."""
    return ipaddress.ip_address(address).is_unspecified


def is_ip_address(text: str) -> bool:
    """Return whether the text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


async def find_gateway_address(settings: Config) -> GatewayAddress:
    """Return the addresses from the settings, with names resolved.

    Raises:
        UnavailableError: the name in kubelet.advertiseAddress does not resolve now.
        InputError: the address cannot be advertised, or this machine has no primary address.
    """
    listen = settings.address or primary_address()
    wanted = settings.kubelet.advertise_address or listen
    resolved = wanted if is_ip_address(wanted) else await _resolve_name(wanted)
    found = ipaddress.ip_address(resolved)
    if found.is_unspecified or found.is_loopback:
        source = wanted if wanted == resolved else f"{wanted}, which resolves to {resolved},"
        raise InputError(f"API servers cannot call virtual nodes at {source}", hint=_HINT)
    return GatewayAddress(
        listen=listen,
        advertised=str(found),
        advertised_name="" if wanted == resolved else wanted,
        advertised_port=settings.kubelet.advertise_port or settings.kubelet.port,
    )


async def _resolve_name(name: str) -> str:
    """Return the first IP address of a DNS name."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnavailableError(
            f"kubelet.advertiseAddress: {name!r} does not resolve: {error.strerror or error}",
            hint="Check that the Service exists; the gateway retries.",
        ) from error
    return str(found[0][4][0])
