"""DNS names and the API server address for a tenant's pods in compute clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import structlog

from vkgateway.api.errors import NotPublishedError, UnavailableError
from vkgateway.api.names import is_ip_address
from vkgateway.clusters.link import ComputeLink, apply_to_each
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.services.kube_dns import KubeDns
from vkgateway.kinds.services.platform_service import (
    ApiServers,
    Endpoint,
    PlatformService,
    Port,
    Resolvers,
    dns_service_name,
    remove_platform_service,
)
from vkgateway.kinds.services.reconciler import ServiceReconciler
from vkgateway.kinds.services.service_cidr import TenantServiceCidr
from vkgateway.kinds.services.service_writer import find_compute_service
from vkgateway.kinds.services.tenant_services import TenantServices
from vkgateway.kinds.services.translation import API_SERVICE, DNS_SERVICE, is_platform_service, resolve_aliases
from vkgateway.kinds.sources import (
    COMPUTE_NETWORK_LISTED,
    COMPUTE_PLATFORM_SERVICES,
    COMPUTE_SERVICES,
    RESYNC,
    SERVER_ADDRESSES,
    TENANT_SERVICES,
    TENANT_SERVICES_LISTED,
)
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors
from vkgateway.runtime.requests import BATCH_SECONDS, RequestKind

log = structlog.get_logger(__name__)

_API_PORTS: Final = (Port("https", "TCP", 443),)
_API_NUMBER: Final = 1
"""Index in the tenant's service range at which its API server has the Service `kubernetes`."""
_REFUSAL_GRACE: Final = 10.0
"""Seconds for which a refusal counts as transient. A starting API server has not loaded its RBAC rules yet, and a pod
that starts without names has none until its end.
"""
_REFUSAL_RETRY: Final = 60.0
"""Seconds for which pods do not ask a compute cluster again after its refusal."""


NAMES: Final = RequestKind[None]("names", BATCH_SECONDS)


class NameService:
    """DNS names of one tenant in all its compute clusters.

    The name server address in pods never changes; only the endpoints behind it do. While the tenant has no Service, the
    platform's forwarder answers, which knows no cluster names, so that an idle tenant needs no name server.
    """

    def __init__(
        self,
        scope: TenantScope,
        resolvers: Resolvers,
        tenant_services: TenantServices,
        *,
        services: ServiceReconciler,
        own_range: TenantServiceCidr,
        api_servers: ApiServers | None = None,
    ) -> None:
        self._scope = scope
        self._resolvers = resolvers
        self._tenant_services = tenant_services
        self._services = services
        self._api_servers = api_servers
        self._dns_service = resolvers.dns_service
        self._api_service = PlatformService(_api_name(scope.name), _API_PORTS, own_range=own_range, number=_API_NUMBER)
        self._kube_dns = KubeDns(scope.client, own_range=own_range)
        self._refusing: dict[str, float] = {}
        """Time of the first refusal by compute cluster, in seconds of the event loop's clock."""
        self.unreachable: dict[tuple[str, str], str] = {}
        """Why pods of a compute cluster cannot reach a server, by the cluster's name and `api` or `names`."""
        self._refused: dict[str, float] = {}
        """Time of the next attempt by compute cluster, in seconds of the event loop's clock."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(NAMES, self.reconcile)
            .watches(TENANT_SERVICES, lambda _key: self._enqueue())
            .watches(COMPUTE_SERVICES, lambda _key: self._enqueue())
            .watches_each(
                (
                    TENANT_SERVICES_LISTED,
                    COMPUTE_NETWORK_LISTED,
                    COMPUTE_PLATFORM_SERVICES,
                    SERVER_ADDRESSES,
                    RESYNC,
                ),
                self._enqueue,
            )
        )

    def _enqueue(self) -> None:
        if self.is_active:
            self._scope.work_queue.enqueue(NAMES, None)

    @property
    def is_served(self) -> bool:
        """Whether the platform serves DNS names for tenants."""
        return self._resolvers.forwarder_endpoint is not None

    @property
    def is_active(self) -> bool:
        """Whether platform Services are needed in compute clusters, for DNS or for the API server."""
        return self.is_served or bool(self._scope.tenant.service_range)

    async def tenant_context_in(self, link: ComputeLink, namespace: str, *, with_services: bool) -> TenantContext:
        """Return the tenant context for pods in a compute cluster, with the addresses for DNS and the API server.

        Raises ApiError if the cluster cannot be asked now, and UnavailableError during the first seconds of refusals.
        After a persistent refusal, pods use the resolver of their node.
        """
        if with_services:
            await self._services.settle_namespace(namespace)
        if not self.is_active:
            return self._scope.tenant
        dns, api = self._dns_service.find_service(link), self._api_service.find_service(link)
        if api is not None and (dns is not None or not self.is_served):
            return self._with_addresses(dns.cluster_ip if dns is not None else "", api.cluster_ip)
        now = asyncio.get_running_loop().time()
        if self._refused.get(link.name, now) > now:
            return self._scope.tenant
        try:
            nameserver = (
                await self._dns_service.ensure_service(link, to=[self._resolvers.forwarder_endpoint])
                if self._resolvers.forwarder_endpoint is not None
                else ""
            )
            api_service = (
                await self._api_service.ensure_service(link, to=await self._api_endpoints(link))
                if is_ip_address(self._scope.tenant.api_host)
                else ""
            )
        except errors.ApiError as error:
            if error.is_transient:
                raise
            if now - self._refusing.setdefault(link.name, now) < _REFUSAL_GRACE:
                message = "the compute cluster does not allow the gateway to serve the tenant's DNS names at the moment"
                raise UnavailableError(message, hint="the gateway retries automatically") from error
            log.warning("no name service", tenant=self._scope.name, compute=link.name, error=error.message)
            self._refused[link.name] = now + _REFUSAL_RETRY
            return self._scope.tenant
        self._refusing.pop(link.name, None)
        if dns is None:
            self._enqueue()
        return self._with_addresses(nameserver, api_service)

    def _with_addresses(self, nameserver: str, api_service: str) -> TenantContext:
        return replace(self._scope.tenant, dns_servers=(nameserver,) if nameserver else (), api_service=api_service)

    async def reconcile(self, _key: None = None) -> None:
        """Point the platform Services in all compute clusters to the right endpoints.

        The tenant's Service `kube-dns` then points to the answering name servers.
        """
        links = self._scope.links
        await apply_to_each(list(links.values()), self._reconcile_in)
        await self._kube_dns.reconcile(self._all_endpoints(links.values()), served=self.is_served)

    def _all_endpoints(self, links: Collection[ComputeLink]) -> list[Endpoint]:
        """Return the name servers that answer for the tenant in any compute cluster; none while a cluster is not
        trusted.
        """
        if self._resolvers.forwarder_endpoint is None or not all(link.services_trusted for link in links):
            return []
        answering = {endpoint for link in links for endpoint in self._dns_service.current_endpoints(link)} or {
            self._resolvers.forwarder_endpoint
        }
        return [endpoint for endpoint in answering if is_ip_address(endpoint.address)]

    async def _reconcile_in(self, link: ComputeLink) -> None:
        if self.is_active and link.services_trusted:
            await self._api_service.set_endpoints(link, to=await self._api_endpoints(link))
            # While the tenant's Services are not known, the current endpoints stay.
            if (
                self.is_served
                and self._tenant_services.is_complete
                and (self._dns_service.find_service(link) is not None or link.name in self._dns_service.known_addresses)
            ):
                await self._dns_service.set_endpoints(link, to=await self._select_endpoints(link))

    async def _api_endpoints(self, link: ComputeLink) -> Collection[Endpoint]:
        """Return where pods of a compute cluster reach the API server: where the gateway does, or at its pods.

        None if they cannot reach it. Pods start nevertheless, because most need no API server.
        """
        listening = Endpoint(self._scope.tenant.api_host, self._scope.tenant.api_port)
        if self._api_servers is None:
            return [listening]
        try:
            found = await self._api_servers.api_server_endpoints(self._scope.name, link.identity, listening=listening)
        except NotPublishedError as error:
            self._note_unreachable(link, "api", str(error))
            return []
        self._note_unreachable(link, "api", "")
        return found

    def _note_unreachable(self, link: ComputeLink, server: str, reason: str) -> None:
        """Note why pods cannot reach a server; an empty reason if they can."""
        if not reason:
            self.unreachable.pop((link.name, server), None)
        elif self.unreachable.get((link.name, server)) != reason:
            self.unreachable[link.name, server] = reason
            log.warning("server not reachable for pods", tenant=self._scope.name, compute=link.name, why=reason)

    async def _select_endpoints(self, link: ComputeLink) -> Collection[Endpoint]:
        assert self._resolvers.servers is not None
        assert self._resolvers.forwarder_endpoint is not None
        if not self._tenant_services.own_services():
            # A running name server is retained: it may be needed again and costs little.
            return [self._resolvers.forwarder_endpoint]
        addresses = self._differing_addresses(link)
        try:
            found = await self._resolvers.servers.serve_tenant(self._scope.name, link.identity, addresses)
        except NotPublishedError as error:
            self._note_unreachable(link, "names", str(error))
            return [self._resolvers.forwarder_endpoint]
        self._note_unreachable(link, "names", "")
        return found

    def _differing_addresses(self, link: ComputeLink) -> dict[str, str]:
        """Return the DNS names whose cluster IP in the compute cluster differs from the one in the tenant cluster."""
        domain = self._scope.tenant.cluster_domain
        found: dict[str, str] = {}
        kubernetes = self._tenant_services.services.store.get(API_SERVICE)
        shown = kubernetes.cluster_ip if kubernetes is not None else ""
        if (api := self._api_service.find_service(link)) is not None and api.cluster_ip != shown:
            found[f"kubernetes.default.svc.{domain}"] = api.cluster_ip
        dns_service = self._tenant_services.services.store.get(DNS_SERVICE)
        dns_platform = self._dns_service.find_service(link)
        if (
            dns_service is not None
            and is_platform_service(dns_service)
            and dns_platform is not None
            and dns_platform.cluster_ip != dns_service.cluster_ip
        ):
            namespace, name = DNS_SERVICE
            found[f"{name}.{namespace}.svc.{domain}"] = dns_platform.cluster_ip
        for (namespace, name), service in self._tenant_services.own_services().items():
            compute_service = find_compute_service(link, self._scope.name, (namespace, name))
            if (
                compute_service is not None
                and compute_service.cluster_ip
                and compute_service.cluster_ip != service.cluster_ip
            ):
                found[f"{name}.{namespace}.svc.{domain}"] = compute_service.cluster_ip
        return found | self._external_names(found)

    def _external_names(self, differing: Mapping[str, str]) -> dict[str, str]:
        """Return the ExternalName Services that point to a differing name, directly or indirectly.

        A name server that follows an ExternalName resolves it only with data from its own API server.
        """
        domain = self._scope.tenant.cluster_domain
        targets = {
            f"{name}.{namespace}.svc.{domain}": str(view.spec.get("externalName") or "").rstrip(".").lower()
            for (namespace, name), view in self._tenant_services.own_services().items()
            if view.spec.get("type") == "ExternalName"
        }
        return resolve_aliases(targets, differing)


async def remove_names(link: ComputeLink, tenant: str) -> None:
    """Delete the platform Services of a deleted tenant in a compute cluster. Idempotent; raises ApiError."""
    for name in (dns_service_name(tenant), _api_name(tenant)):
        await remove_platform_service(link, tenant, name)


def _api_name(tenant: str) -> str:
    return f"api-{tenant}"
