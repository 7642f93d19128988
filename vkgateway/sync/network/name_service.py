"""Where a tenant's pods ask for names, who answers, and where they find its API server at the usual port."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, Protocol

import structlog

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.model.errors import UnavailableError
from vkgateway.sync.compute.fan_out import apply_to_each
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.network.kube_dns import KubeDns
from vkgateway.sync.network.platform_service import (
    DNS_NUMBER,
    DNS_PORTS,
    Endpoint,
    PlatformService,
    Port,
    remove_platform_service,
)
from vkgateway.sync.network.service_cidr import TenantServiceCidr
from vkgateway.sync.network.services import ServiceReconciler
from vkgateway.translate.context import TenantContext
from vkgateway.translate.egress_rules import NameServerRange
from vkgateway.translate.services import API_SERVICE, DNS_SERVICE, is_platform_service, resolve_aliases

log = structlog.get_logger(__name__)

_API_PORTS: Final = (Port("https", "TCP", 443),)
_API_NUMBER: Final = 1
"""Its place in the tenant's own range: there its API server puts the Service `kubernetes`."""
_PATIENCE: Final = 10.0
"""Seconds for which a refusal is not believed: a server that has just started knows no access rules yet, and a pod that
starts without names has none for as long as it lives."""
_REFUSED_FOR: Final = 60.0
"""Seconds for which a compute cluster that refused is not asked again by each pod."""


class NameServers(Protocol):
    """Runs tenants' name servers; every call may be repeated."""

    @property
    def forwarder_endpoint(self) -> Endpoint | None:
        """Who answers for a tenant that has no Services; None: nobody answers for any tenant's names."""

    @property
    def listening_range(self) -> NameServerRange | None:
        """Where the name servers of all tenants listen."""

    async def serve_tenant(self, tenant: str, cluster: str, addresses: Mapping[str, str]) -> Endpoint:
        """Have a name server answer for a tenant's pods in one compute cluster, over UDP and TCP.

        `addresses` maps names of Services to their cluster addresses there. Raises UnavailableError while it does not
        answer.
        """


class NameService:
    """One tenant's names in all its compute clusters.

    The addresses that stand in pods never change; who answers there does. While the tenant has no Service, names are
    answered by the platform's forwarder, which knows no cluster's, and so an idle tenant costs no name server.
    `wake()` asks for a `reconcile`.
    """

    def __init__(
        self,
        tenant: TenantContext,
        client: Client,
        servers: NameServers | None,
        services: ServiceReconciler,
        *,
        own_range: TenantServiceCidr,
        wake: Callable[[], None],
    ) -> None:
        self.tenant = tenant
        self._servers = servers
        self._services = services
        self._wake = wake
        self._dns_service = PlatformService(_dns_name(tenant.name), DNS_PORTS, own_range=own_range, number=DNS_NUMBER)
        self._api_service = PlatformService(_api_name(tenant.name), _API_PORTS, own_range=own_range, number=_API_NUMBER)
        self._kube_dns = KubeDns(client, own_range=own_range)
        self._refusing: dict[str, float] = {}
        """By compute cluster that refuses them, since when, in seconds of the event loop's clock."""
        self._refused: dict[str, float] = {}
        """By compute cluster that refused them, when to try again, in seconds of the event loop's clock."""

    @property
    def is_served(self) -> bool:
        """Whether anybody answers for tenants' names at all."""
        return self._forwarder_endpoint is not None

    @property
    def is_active(self) -> bool:
        """Whether there is anything to be made in compute clusters: who answers, or the address of the API server."""
        return self.is_served or bool(self.tenant.service_range)

    async def tenant_context_in(self, link: ComputeLink) -> TenantContext:
        """Return the tenant as its pods in a compute cluster must know it: who answers for names, where its server is.

        Raises ApiError where the cluster cannot be asked now, UnavailableError while it only just began to refuse; what
        it refuses for good leaves pods with their node's resolver.
        """
        if not self.is_active:
            return self.tenant
        dns, api = self._dns_service.find_service(link), self._api_service.find_service(link)
        if api is not None and (dns is not None or not self.is_served):
            return self._with_addresses(dns.cluster_ip if dns is not None else "", api.cluster_ip)
        now = asyncio.get_running_loop().time()
        if self._refused.get(link.name, now) > now:
            return self.tenant
        try:
            nameserver = (
                await self._dns_service.ensure_service(link, to=self._forwarder_endpoint)
                if self._forwarder_endpoint is not None
                else ""
            )
            api_service = (
                await self._api_service.ensure_service(link, to=self._api_endpoint)
                if _is_address(self._api_endpoint.address)
                else ""
            )
        except errors.ApiError as error:
            if error.is_transient:
                raise
            if now - self._refusing.setdefault(link.name, now) < _PATIENCE:
                why = "the compute cluster does not let the tenant's names be served now"
                raise UnavailableError(why, hint="it is tried again") from error
            log.warning("no name service", tenant=self.tenant.name, compute=link.name, error=error.message)
            self._refused[link.name] = now + _REFUSED_FOR
            return self.tenant
        self._refusing.pop(link.name, None)
        if dns is None:
            self._wake()
        return self._with_addresses(nameserver, api_service)

    def _with_addresses(self, nameserver: str, api_service: str) -> TenantContext:
        return replace(self.tenant, dns_servers=(nameserver,) if nameserver else (), api_service=api_service)

    def resolver_endpoints(self, link: ComputeLink) -> list[tuple[str, int]]:
        """Where questions for names end in a compute cluster: at the forwarder, and at who answers there now."""
        first = [self._forwarder_endpoint] if self._forwarder_endpoint is not None else []
        return sorted({*first, *self._dns_service.current_endpoints(link)})

    @property
    def listening_range(self) -> NameServerRange | None:
        """Where the name servers of all tenants listen; None where no names are served."""
        return self._servers.listening_range if self._servers is not None else None

    async def reconcile(self, links: Mapping[str, ComputeLink]) -> None:
        """Have the right server answer, with the right addresses, wherever pods of the tenant may ask.

        The tenant's Service `kube-dns` then leads to the servers that answer.
        """
        await apply_to_each(links.values(), self._reconcile_in)
        await self._kube_dns.reconcile(self._all_endpoints(links.values()), served=self.is_served)

    def _all_endpoints(self, links: Collection[ComputeLink]) -> list[Endpoint]:
        """The servers that answer for the tenant's names in any compute cluster; none while some cluster is unknown."""
        if self._forwarder_endpoint is None or not all(link.services_trusted for link in links):
            return []
        answering = {endpoint for link in links for endpoint in self._dns_service.current_endpoints(link)} or {
            self._forwarder_endpoint
        }
        return [endpoint for endpoint in answering if _is_address(endpoint.address)]

    async def _reconcile_in(self, link: ComputeLink) -> None:
        if self.is_active and link.services_trusted:
            await self._api_service.set_endpoint(link, to=self._api_endpoint)
            # As long as it is not known what Services there are, whoever answers goes on.
            if (
                self.is_served
                and self._services.is_complete
                and (self._dns_service.find_service(link) is not None or link.name in self._dns_service.known_addresses)
            ):
                await self._dns_service.set_endpoint(link, to=await self._select_endpoint(link))

    @property
    def _api_endpoint(self) -> Endpoint:
        return Endpoint(self.tenant.api_host, self.tenant.api_port)

    @property
    def _forwarder_endpoint(self) -> Endpoint | None:
        return self._servers.forwarder_endpoint if self._servers is not None else None

    async def _select_endpoint(self, link: ComputeLink) -> Endpoint:
        assert self._servers is not None
        assert self._forwarder_endpoint is not None
        if not self._services.own_services():
            # One that runs already is left running: it may be needed again, and costs little.
            return self._forwarder_endpoint
        return await self._servers.serve_tenant(self.tenant.name, link.name, self._differing_addresses(link))

    def _differing_addresses(self, link: ComputeLink) -> dict[str, str]:
        """The Services whose address below is another than above: those are the ones to be told."""
        domain = self.tenant.cluster_domain
        found: dict[str, str] = {}
        kubernetes = self._services.tenant_services.store.get(API_SERVICE)
        shown = kubernetes.cluster_ip if kubernetes is not None else ""
        if (api := self._api_service.find_service(link)) is not None and api.cluster_ip != shown:
            found[f"kubernetes.default.svc.{domain}"] = api.cluster_ip
        names = self._services.tenant_services.store.get(DNS_SERVICE)
        dns = self._dns_service.find_service(link)
        if names is not None and is_platform_service(names) and dns is not None and dns.cluster_ip != names.cluster_ip:
            namespace, name = DNS_SERVICE
            found[f"{name}.{namespace}.svc.{domain}"] = dns.cluster_ip
        for (namespace, name), above in self._services.own_services().items():
            below = self._services.find_compute_service(link, (namespace, name))
            if below is not None and below.cluster_ip and below.cluster_ip != above.cluster_ip:
                found[f"{name}.{namespace}.svc.{domain}"] = below.cluster_ip
        return found | self._external_names(found)

    def _external_names(self, told: Mapping[str, str]) -> dict[str, str]:
        """Services that are another name of one that is told of, or of such another name.

        A name server that follows an ExternalName asks itself only for what it read from the API server.
        """
        domain = self.tenant.cluster_domain
        targets = {
            f"{name}.{namespace}.svc.{domain}": str(view.spec.get("externalName") or "").rstrip(".").lower()
            for (namespace, name), view in self._services.own_services().items()
            if view.spec.get("type") == "ExternalName"
        }
        return resolve_aliases(targets, told)


async def remove_names(link: ComputeLink, tenant: str) -> None:
    """Remove what `NameService` made in a compute cluster for a tenant that goes. Repeatable; raises ApiError."""
    for name in (_dns_name(tenant), _api_name(tenant)):
        await remove_platform_service(link, tenant, name)


def _dns_name(tenant: str) -> str:
    return f"dns-{tenant}"


def _api_name(tenant: str) -> str:
    return f"api-{tenant}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
