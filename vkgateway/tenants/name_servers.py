"""Tenants' name servers as the reconcilers call them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping

import structlog

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import VkgatewayError
from vkgateway.kinds.policies.egress_rules import NameServerRange
from vkgateway.kinds.services.platform_service import Endpoint
from vkgateway.planes.drivers.base import NameServers
from vkgateway.runtime.background import background_task
from vkgateway.settings.validation import address_and_port

log = structlog.get_logger(__name__)

_CHECK_SECONDS = 60.0


class ForwardingNameServers:
    """Name servers of a driver, with the forwarder that answers for tenants without Services.

    Implements `platform_service.NameServers`. `forwarder` is ADDRESS:PORT.
    """

    def __init__(self, servers: NameServers, *, forwarder: str) -> None:
        self._servers = servers
        self._forwarder = Endpoint(*address_and_port(forwarder))

    @property
    def forwarder_endpoint(self) -> Endpoint | None:
        """See `NameServers`."""
        return self._forwarder

    @property
    def listening_range(self) -> NameServerRange | None:
        """See `NameServers`."""
        return self._servers.listening_range

    async def serve_tenant(
        self, tenant: str, cluster: ClusterIdentity, addresses: Mapping[str, str]
    ) -> Collection[Endpoint]:
        """See `NameServers`."""
        return [Endpoint(*found) for found in await self._servers.ensure_server(tenant, cluster, addresses)]

    async def retire(self, clusters: Collection[str]) -> None:
        """Stop the name servers of all other compute clusters. Raises VkgatewayError."""
        await self._servers.remove_stale(clusters)


@contextlib.asynccontextmanager
async def retire_periodically(
    names: ForwardingNameServers,
    known: Callable[[], Collection[str] | None],
    *,
    seconds: float = _CHECK_SECONDS,
    leading: asyncio.Event | None = None,
) -> AsyncIterator[None]:
    """Stop the name servers of deleted compute clusters periodically within the block, once `leading` is set.

    `known` returns the names of all compute clusters, connected or not; None while unknown.
    """

    async def retire() -> None:
        if leading is not None:
            await leading.wait()
        while True:
            await asyncio.sleep(seconds)
            if (clusters := known()) is None:
                continue
            try:
                await names.retire(clusters)
            except VkgatewayError as error:
                log.warning("name servers not checked", error=str(error))

    async with background_task(retire(), name="retire-name-servers"):
        yield
