"""Name servers that answer for a tenant's names in each compute cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.network.platform_service import DNS_NUMBER, DNS_PORTS, Endpoint, PlatformService
from vkgateway.sync.network.service_cidr import TenantServiceCidr
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.translate.egress_rules import NameServerRange


class NameServers(Protocol):
    """Runner of tenants' name servers; every call is idempotent."""

    @property
    def forwarder_endpoint(self) -> Endpoint | None:
        """Forwarder endpoint, which answers for tenants without Services; None if the platform serves no names."""

    @property
    def listening_range(self) -> NameServerRange | None:
        """Addresses and ports of the name servers of all tenants."""

    async def serve_tenant(self, tenant: str, cluster: str, addresses: Mapping[str, str]) -> Endpoint:
        """Run a name server for a tenant's pods in one compute cluster, over UDP and TCP.

        `addresses` maps DNS names of Services to their cluster IPs there. Raises UnavailableError while it does not
        answer.
        """


class Resolvers:
    """Name servers of the platform, and the Services through which one tenant's pods reach them."""

    def __init__(self, scope: TenantScope, servers: NameServers | None, *, own_range: TenantServiceCidr) -> None:
        self.servers = servers
        self.dns_service = PlatformService(
            dns_service_name(scope.name), DNS_PORTS, own_range=own_range, number=DNS_NUMBER
        )

    @property
    def forwarder_endpoint(self) -> Endpoint | None:
        """Endpoint that answers for a tenant without Services; None if the platform serves no names."""
        return self.servers.forwarder_endpoint if self.servers is not None else None

    @property
    def listening_range(self) -> NameServerRange | None:
        """Addresses and ports of the name servers of all tenants; None if the platform serves no names."""
        return self.servers.listening_range if self.servers is not None else None

    def resolver_endpoints(self, link: ComputeLink) -> list[tuple[str, int]]:
        """Return the endpoints that answer DNS in a compute cluster: the forwarder and the current name server."""
        endpoints = [self.forwarder_endpoint] if self.forwarder_endpoint is not None else []
        return sorted({*endpoints, *self.dns_service.current_endpoints(link)})


def dns_service_name(tenant: str) -> str:
    """Return the name of a tenant's DNS Service in the gateway's namespace."""
    return f"dns-{tenant}"
