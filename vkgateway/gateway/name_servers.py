"""Tenants' name servers, run as processes."""

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
    """Implementation of `sync.network.name_service.NameServers` with processes.

    The processes listen at `address`; `forwarder` is HOST:PORT. `other_ports` are ports at the same address that tenant
    pods may reach: the kubelet endpoint's.
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
        """Stop the name servers of all other compute clusters. Raises VkgatewayError."""
        await self._processes.remove_stale(clusters)


@contextlib.asynccontextmanager
async def retire_periodically(
    names: ProcessNameServers, known: Callable[[], Collection[str] | None], *, seconds: float = _CHECK_SECONDS
) -> AsyncIterator[None]:
    """Stop the name servers of deleted compute clusters periodically within the block.

    `known` returns the names of all compute clusters, connected or not; None while unknown.
    """

    async def retire() -> None:
        while True:
            await asyncio.sleep(seconds)
            if (clusters := known()) is None:
                continue
            try:
                await names.retire(clusters)
            except VkgatewayError as error:
                log.warning("name servers not checked", error=str(error))

    task = asyncio.create_task(retire(), name="retire-name-servers")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
