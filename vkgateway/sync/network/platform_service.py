"""A Service of the platform's own for a tenant's pods in a compute cluster: an address that stays, whoever answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import structlog

from vkgateway.kube import errors, resources
from vkgateway.model.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.network.service_cidr import TenantServiceCidr, handle_refused_address
from vkgateway.sync.network.slices import write_slice
from vkgateway.translate.services import (
    MANAGED_BY_GATEWAY,
    MANAGED_BY_LABEL,
    SERVICE_NAME_LABEL,
    ServiceView,
    decode_service,
    owner_reference,
)

log = structlog.get_logger(__name__)


class Endpoint(NamedTuple):
    """Where a server listens: an IP address and a port."""

    address: str
    port: int


class Port(NamedTuple):
    """A port of such a Service: its name, protocol and number."""

    name: str
    protocol: str
    number: int


DNS_PORTS: Final = (Port("dns", "UDP", 53), Port("dns-tcp", "TCP", 53))
DNS_NUMBER: Final = 10
"""Place of the name server in the tenant's own range."""


class PlatformService:
    """One such Service of one tenant, in the gateway's namespace of each compute cluster; made on first need.

    Where the tenant has a range of its own there, its address is that of this `number` in it.
    """

    def __init__(self, name: str, ports: Sequence[Port], *, own_range: TenantServiceCidr, number: int) -> None:
        self._name = name
        self._ports = tuple(ports)
        self._range = own_range
        self._number = number
        self._create_lock = asyncio.Lock()
        self._created: dict[str, ServiceView] = {}
        """By compute cluster, what was just made and the watch has not shown yet."""
        self.known_addresses: dict[str, str] = {}
        """By compute cluster, the address that stands in pods."""

    def find_service(self, link: ComputeLink) -> ServiceView | None:
        """The Service as a compute cluster has it; None where there is none of ours."""
        found = link.services.store.get((SYSTEM_NAMESPACE, self._name))
        if found is None:
            return self._created.get(link.name)
        self._created.pop(link.name, None)
        return self._accept_service(link, found)

    async def ensure_service(self, link: ComputeLink, *, to: Endpoint) -> str:
        """Return its address, "" where its name is somebody else's; a new one leads `to` there. Raises ApiError."""
        async with self._create_lock:
            found = self.find_service(link) or await self._create_service(link, to)
        return found.cluster_ip if found is not None else ""

    def current_endpoints(self, link: ComputeLink) -> list[Endpoint]:
        """Where it leads, as the watch has it."""
        found = link.slices.store.get((SYSTEM_NAMESPACE, self._name))
        if found is None or not self._is_own(found.metadata):
            return []
        addresses = [address for endpoint in found.endpoints or () for address in endpoint.get("addresses") or ()]
        return sorted({Endpoint(address, port["port"]) for address in addresses for port in found.ports or ()})

    async def set_endpoint(self, link: ComputeLink, *, to: Endpoint) -> None:
        """Have the Service lead to a server, if it is there, or was: what somebody deleted gets its old address back.

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

    async def _create_service(self, link: ComputeLink, to: Endpoint) -> ServiceView | None:
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
                # Perhaps by the Service itself: addresses are looked at before names.
                handle_refused_address(link, error, self._range, address)
        made = await link.client.create(resources.SERVICES, document, namespace=SYSTEM_NAMESPACE)
        if address:
            log.warning("the address is taken", compute=link.name, name=self._name, address=address)
        return made

    async def _requested_address(self, link: ComputeLink) -> str:
        """The address to ask for: that which stands in pods, or that of the tenant's range; "" for any.

        The range is seen to in either case: a cluster that was put back from a backup, or that is another one under
        the same name, does not have it.
        """
        given = self.known_addresses.get(link.name, "")
        if given and not self._range.contains_address(given):
            return given
        return (given or self._range.address_at(self._number)) if await self._range.ensure_range(link) else ""

    async def _write_slice(self, link: ComputeLink, service: Meta, to: Endpoint, *, only_new: bool = False) -> None:
        """Write the slice, unless it says so; with `only_new` only where there is none."""
        metadata = self._object_metadata()
        metadata["labels"] |= {SERVICE_NAME_LABEL: self._name, MANAGED_BY_LABEL: MANAGED_BY_GATEWAY}
        metadata["ownerReferences"] = [owner_reference(service)]
        wanted: Object = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata,
            "addressType": "IPv6" if ":" in to.address else "IPv4",
            "endpoints": [{"addresses": [to.address], "conditions": {"ready": True}}],
            "ports": [{"name": port.name, "protocol": port.protocol, "port": to.port} for port in self._ports],
        }
        known = link.slices.store.get((SYSTEM_NAMESPACE, self._name))
        await write_slice(link, wanted, known, owned=self._is_own, only_new=only_new)

    def _object_metadata(self) -> Object:
        labels = {TENANT_LABEL: self._range.tenant.name}
        return {"name": self._name, "namespace": SYSTEM_NAMESPACE, "labels": labels}

    def _is_own(self, metadata: Meta) -> bool:
        return metadata.labels.get(TENANT_LABEL) == self._range.tenant.name


async def remove_platform_service(link: ComputeLink, tenant: str, name: str) -> None:
    """Remove a tenant's from a compute cluster. Repeatable; raises ApiError."""
    for resource in (resources.ENDPOINT_SLICES, resources.SERVICES):
        try:
            found = decode_service(await link.client.get(resource, name, namespace=SYSTEM_NAMESPACE)).metadata
            if found.labels.get(TENANT_LABEL) == tenant:
                await link.client.delete(resource, name, namespace=SYSTEM_NAMESPACE, uid=found.uid)
        except (errors.NotFound, errors.Conflict):
            continue
