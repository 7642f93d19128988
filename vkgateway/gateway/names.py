"""Tenants' name servers as the reconcilers call them, run as processes."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from vkgateway.controlplane.names import NameProcesses
from vkgateway.model.errors import InputError
from vkgateway.sync.network.ownservices import Endpoint


class ProcessNameServers:
    """See `sync.names.NameServers`. `address` is where the processes listen, `forwarder` is HOST:PORT."""

    def __init__(self, processes: NameProcesses, *, address: str, forwarder: str) -> None:
        self._processes = processes
        self._address = address
        self._forwarder = endpoint(forwarder)

    @property
    def forwarder(self) -> Endpoint | None:
        """See `NameServers`."""
        return self._forwarder

    async def serve(self, tenant: str, cluster: str, addresses: Mapping[str, str]) -> Endpoint:
        """See `NameServers`."""
        return Endpoint(self._address, await self._processes.serve(tenant, cluster, addresses))


def endpoint(text: str) -> Endpoint:
    """Read `ADDRESS:PORT`, an IPv6 address in brackets. Raises InputError."""
    address, _, port = text.rpartition(":")
    try:
        return Endpoint(str(ipaddress.ip_address(address.strip("[]"))), int(port))
    except ValueError as error:
        raise InputError(f"names.forwarder: {text!r} is not an IP address and a port, as in 10.0.0.2:53") from error
