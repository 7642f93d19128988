"""Platform Services for a tenant's pods in compute clusters, and the name servers behind its DNS Service.

A platform Service has a constant address with changing endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import structlog

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.api.objects import Meta, Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.policies.egress_rules import NameServerRange
from vkgateway.kinds.services.service_cidr import TenantServiceCidr, handle_refused_address
from vkgateway.kinds.services.slices import write_slice
from vkgateway.kinds.services.translation import (
    MANAGED_BY_GATEWAY,
    MANAGED_BY_LABEL,
    SERVICE_NAME_LABEL,
    ServiceView,
    decode_service,
    owner_reference,
)
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources

log = structlog.get_logger(__name__)


class Endpoint(NamedTuple):
    """IP address and port of a server."""

    address: str
    port: int

    @property
    def is_ipv6(self) -> bool:
        """Whether the address is an IPv6 address."""
        return ":" in self.address


class Port(NamedTuple):
    """Service port: its name, protocol and number."""

    name: str
    protocol: str
    number: int


DNS_PORTS: Final = (Port("dns", "UDP", 53), Port("dns-tcp", "TCP", 53))
DNS_NUMBER: Final = 10
"""Index of the name server's address in the tenant's service range."""


class PlatformService:
    """Platform Service of one tenant, in the gateway's namespace of each compute cluster; created when first needed.

    If the tenant has a service range in the cluster, the Service has the address with index `number` of that range.
    """

    def __init__(self, name: str, ports: Sequence[Port], *, own_range: TenantServiceCidr, number: int) -> None:
        self._name = name
        self._ports = tuple(ports)
        self._range = own_range
        self._number = number
        self._create_lock = asyncio.Lock()
        self._created: dict[str, ServiceView] = {}
        """Created Services that the watch has not shown yet, by compute cluster."""
        self.known_addresses: dict[str, str] = {}
        """Address that pods use, by compute cluster."""

    def find_service(self, link: ComputeLink) -> ServiceView | None:
        """Return the Service in a compute cluster, or None if it does not exist or is not the tenant's."""
        found = link.services.store.get((SYSTEM_NAMESPACE, self._name))
        if found is None:
            return self._created.get(link.name)
        self._created.pop(link.name, None)
        return self._accept_service(link, found)

    async def ensure_service(self, link: ComputeLink, *, to: Collection[Endpoint]) -> str:
        """Return the Service's address, "" if its name has another owner; a new Service points to `to`. Raises
        ApiError.
        """
        async with self._create_lock:
            found = self.find_service(link) or await self._create_service(link, to)
        return found.cluster_ip if found is not None else ""

    def current_endpoints(self, link: ComputeLink) -> list[Endpoint]:
        """Return the Service's endpoints as of the last watch event."""
        found = link.slices.store.get((SYSTEM_NAMESPACE, self._name))
        if found is None or not self._is_own(found.metadata):
            return []
        addresses = [address for endpoint in found.endpoints or () for address in endpoint.get("addresses") or ()]
        return sorted({Endpoint(address, port["port"]) for address in addresses for port in found.ports or ()})

    async def set_endpoints(self, link: ComputeLink, *, to: Collection[Endpoint]) -> None:
        """Point an existing Service to endpoints; a deleted one is created again with its former address.

        Raises ApiError.
        """
        found = self.find_service(link)
        if found is None and link.name in self.known_addresses:
            async with self._create_lock:
                found = self.find_service(link) or await self._create_service(link, to)
        if found is not None:
            await self._write_slice(link, found.metadata, to)

    def _accept_service(self, link: ComputeLink, found: ServiceView) -> ServiceView | None:
        if not self._is_own(found.metadata) or not found.cluster_ip:
            return None
        self.known_addresses[link.name] = found.cluster_ip
        return found

    async def _create_service(self, link: ComputeLink, to: Collection[Endpoint]) -> ServiceView | None:
        ports = [{"name": port.name, "protocol": port.protocol, "port": port.number} for port in self._ports]
        spec: dict[str, Any] = {"type": "ClusterIP", "ports": ports}
        document = {"apiVersion": "v1", "kind": "Service", "metadata": self._object_metadata(), "spec": spec}
        try:
            answer = await self._request_service(link, document)
        except errors.AlreadyExists:
            answer = await link.client.get(resources.SERVICES, self._name, namespace=SYSTEM_NAMESPACE)
        service = self._accept_service(link, decode_service(answer))
        if service is None:
            log.warning("the Service's name is taken", compute=link.name, name=self._name)
            return None
        await self._write_slice(link, service.metadata, to, only_new=True)
        self._created[link.name] = service
        return service

    async def _request_service(self, link: ComputeLink, document: Object) -> bytes:
        address = await self._requested_address(link)
        if address:
            addressed = document | {"spec": {**document["spec"], "clusterIP": address}}
            try:
                return await link.client.create(resources.SERVICES, addressed, namespace=SYSTEM_NAMESPACE)
            except errors.Invalid as error:
                # A Service may itself have this address, as addresses are checked before names.
                handle_refused_address(link, error, self._range, address)
        created = await link.client.create(resources.SERVICES, document, namespace=SYSTEM_NAMESPACE)
        if address:
            log.warning("the address is taken", compute=link.name, name=self._name, address=address)
        return created

    async def _requested_address(self, link: ComputeLink) -> str:
        """Return the address to request: the one that pods use, or the one of the tenant's service range; "" for any.

        The range is ensured in either case: a cluster restored from a backup, or another cluster of the same name, does
        not have it.
        """
        known_address = self.known_addresses.get(link.name, "")
        if known_address and not self._range.contains_address(known_address):
            return known_address
        return (known_address or self._range.address_at(self._number)) if await self._range.ensure_range(link) else ""

    async def _write_slice(
        self, link: ComputeLink, service: Meta, to: Collection[Endpoint], *, only_new: bool = False
    ) -> None:
        """Write the EndpointSlice if it differs; with `only_new`, an existing one stays unchanged.

        The endpoints of a slice share address family and port: those of the lowest endpoint count.
        """
        served = _similar_endpoints(to)
        metadata = self._object_metadata()
        metadata["labels"] |= {SERVICE_NAME_LABEL: self._name, MANAGED_BY_LABEL: MANAGED_BY_GATEWAY}
        metadata["ownerReferences"] = [owner_reference(service)]
        wanted: Object = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata,
            "addressType": "IPv6" if served and served[0].is_ipv6 else "IPv4",
            "endpoints": [{"addresses": [one.address], "conditions": {"ready": True}} for one in served],
            "ports": [
                {"name": port.name, "protocol": port.protocol, "port": served[0].port if served else port.number}
                for port in self._ports
            ],
        }
        known = link.slices.store.get((SYSTEM_NAMESPACE, self._name))
        await write_slice(link, wanted, known, owned=self._is_own, only_new=only_new)

    def _object_metadata(self) -> Object:
        labels = {TENANT_LABEL: self._range.tenant.name}
        return {"name": self._name, "namespace": SYSTEM_NAMESPACE, "labels": labels}

    def _is_own(self, metadata: Meta) -> bool:
        return metadata.labels.get(TENANT_LABEL) == self._range.tenant.name


async def remove_platform_service(link: ComputeLink, tenant: str, name: str) -> None:
    """Delete a tenant's platform Service from a compute cluster. Idempotent; raises ApiError."""
    for resource in (resources.ENDPOINT_SLICES, resources.SERVICES):
        try:
            found = decode_service(await link.client.get(resource, name, namespace=SYSTEM_NAMESPACE)).metadata
            if found.labels.get(TENANT_LABEL) == tenant:
                await link.client.delete(resource, name, namespace=SYSTEM_NAMESPACE, uid=found.uid)
        except (errors.NotFound, errors.Conflict):
            continue


def _similar_endpoints(endpoints: Collection[Endpoint]) -> list[Endpoint]:
    """Return the endpoints that have port and address family of the lowest one, in order."""
    ordered = sorted(set(endpoints), key=lambda one: (one.is_ipv6, one.port, one.address))
    return [one for one in ordered if (one.is_ipv6, one.port) == (ordered[0].is_ipv6, ordered[0].port)]


class ApiServers(Protocol):
    """Addresses of tenants' API servers as pods of compute clusters need them."""

    async def api_server_endpoints(
        self, tenant: str, cluster: ClusterIdentity, *, listening: Endpoint
    ) -> Collection[Endpoint]:
        """Return where pods of a compute cluster reach a tenant's API server, which the gateway reaches at `listening`.

        None while no replica is ready. Raises UnavailableError if the addresses are not known yet, and
        NotPublishedError if that cluster cannot reach the API server.
        """


class NameServers(Protocol):
    """Runner of tenants' name servers; every call is idempotent."""

    @property
    def forwarder_endpoint(self) -> Endpoint | None:
        """Forwarder endpoint, which answers for tenants without Services; None if the platform serves no names."""

    @property
    def listening_range(self) -> NameServerRange | None:
        """Addresses and ports of the name servers of all tenants."""

    async def serve_tenant(
        self, tenant: str, cluster: ClusterIdentity, addresses: Mapping[str, str]
    ) -> Collection[Endpoint]:
        """Run a name server for a tenant's pods in one compute cluster, over UDP and TCP; return where it answers.

        `addresses` maps DNS names of Services to their cluster IPs there. Raises UnavailableError while it does not
        answer, and NotPublishedError if that cluster cannot reach it.
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
