"""Addresses of the gateway: where it listens, and where API servers and pods reach it."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.transport import Traffic
from vkgateway.settings.config import Config
from vkgateway.tenants.metrics import TRAFFIC

log = structlog.get_logger(__name__)

CHECK_SECONDS = 60.0
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


class AddressMonitor:
    """Check, every minute, that the advertised name still resolves to the advertised address.

    The address is in nodes and in the certificate, so a changed one needs a restart of the gateway.
    """

    def __init__(self, address: GatewayAddress, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._address = address
        self._clock = clock
        self._problem = ""

    def problem(self) -> str:
        """Return the sentence for /readyz; empty while the address is correct."""
        return self._problem

    async def run(self) -> None:
        """Check until cancelled; returns at once if an IP address is advertised, not a name."""
        while self._address.advertised_name:
            await self._clock.sleep(CHECK_SECONDS)
            try:
                found = await _resolve_all(self._address.advertised_name)
            except UnavailableError as error:  # no DNS server, for example: the address is probably still correct
                log.warning("advertised name not checked", error=str(error))
                continue
            self._problem = "" if self._address.advertised in found else self._change_text(found)
            if self._problem:
                log.error("the gateway's address has changed", error=self._problem)

    def _change_text(self, found: Sequence[str]) -> str:
        return (
            f"{self._address.advertised_name} resolves to {', '.join(found)}, but nodes have the address "
            f"{self._address.advertised}. Restart the gateway: kubectl rollout restart"
        )


async def _resolve_name(name: str) -> str:
    """Return the first IP address of a DNS name."""
    return (await _resolve_all(name))[0]


async def _resolve_all(name: str) -> list[str]:
    """Return the IP addresses of a DNS name, without duplicates."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnavailableError(
            f"kubelet.advertiseAddress: {name!r} does not resolve: {error.strerror or error}",
            hint="Check that the Service exists; the gateway retries.",
        ) from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


# A documentation address (RFC 5737). Nothing is sent: connecting a UDP socket only selects the route.
_PROBE_ADDRESS = ("192.0.2.1", 9)


def connect_management(settings: Config, *, name: str, traffic: Traffic = TRAFFIC["management"]) -> Client:
    """Return a client of the management cluster. Raises InputError if no connection is configured."""
    management = settings.management_cluster
    connections = settings.sync.connections
    file = Path(management.kubeconfig).expanduser() if management.kubeconfig else None
    if file is None and settings.data_dir:
        platform = Path(settings.data_dir) / "compute.kubeconfig"
        file = platform if platform.exists() else None
    if file is None:
        try:
            return Client.in_cluster(name=name, max_connections=connections, traffic=traffic)
        except InputError as error:
            hint = "Set managementCluster.kubeconfig, or start an embedded platform with `vkgateway up`."
            raise InputError(f"no connection to {name}: {error}", hint=hint) from error
    return Client.from_kubeconfig(
        file, context=management.context or None, name=name, max_connections=connections, traffic=traffic
    )


def primary_address() -> str:
    """Return the source address of this machine's default route. Raises InputError if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_PROBE_ADDRESS)
        except OSError as error:
            raise InputError(
                f"this machine has no primary address: {error.strerror}",
                hint="Set `address` to an address of this machine.",
            ) from error
        address: str = probe.getsockname()[0]
    return address
