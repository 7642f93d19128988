"""Tenants' name servers as the reconcilers call them, run as processes."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Callable, Collection, Mapping

import structlog

from vkgateway.controlplane.name_servers import PORTS, NameServerProcesses
from vkgateway.gateway.settings_validation import address_and_port
from vkgateway.model.errors import VkgatewayError
from vkgateway.sync.network.platform_service import Endpoint
from vkgateway.translate.egress_rules import NameServerRange

log = structlog.get_logger(__name__)

_CHECK_SECONDS = 60.0


class ProcessNameServers:
    """See `sync.names.NameServers`. `address` is where the processes listen, `forwarder_endpoint` is HOST:PORT.

    `other_ports` are ports at the same address that tenants' pods reach: the kubelet endpoint's.
    """

    def __init__(
        self, processes: NameServerProcesses, *, address: str, forwarder: str, other_ports: Collection[int] = ()
    ) -> None:
        self._processes = processes
        self._other_ports = tuple(sorted(port for port in other_ports if port in PORTS))
        self._address = address
        self._forwarder = Endpoint(*address_and_port(forwarder))

    @property
    def forwarder_endpoint(self) -> Endpoint | None:
        """See `NameServers`."""
        return self._forwarder

    @property
    def listening_range(self) -> NameServerRange | None:
        """See `NameServers`."""
        try:
            ipaddress.ip_address(self._address)
        except ValueError:
            return None
        return NameServerRange(self._address, PORTS[0], PORTS[-1], self._other_ports)

    async def serve_tenant(self, tenant: str, cluster: str, addresses: Mapping[str, str]) -> Endpoint:
        """See `NameServers`."""
        return Endpoint(self._address, await self._processes.ensure_server(tenant, cluster, addresses))

    async def retire(self, clusters: Collection[str]) -> None:
        """End those for compute clusters that are not among these. Raises VkgatewayError."""
        await self._processes.remove_stale(clusters)


@contextlib.asynccontextmanager
async def retire_periodically(
    names: ProcessNameServers, known: Callable[[], Collection[str] | None], *, seconds: float = _CHECK_SECONDS
) -> AsyncIterator[None]:
    """For as long as the block lasts, end name servers for compute clusters that nobody has any more.

    `known` tells the compute clusters that there are, connected or not; None: that is not known now.
    """

    async def look() -> None:
        while True:
            await asyncio.sleep(seconds)
            if (clusters := known()) is None:
                continue
            try:
                await names.retire(clusters)
            except VkgatewayError as error:
                log.warning("name servers were not looked at", error=str(error))

    task = asyncio.create_task(look(), name="retire-name-servers")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
