"""A Service of the platform's own for a tenant's pods in a compute cluster: an address that stays, whoever answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import structlog

from vkgateway.kube import errors, resources
from vkgateway.model.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.compute import ComputeLink, decode_service, decode_slice
from vkgateway.sync.services import slice_text, text_of
from vkgateway.translate.services import MANAGED_BY_LABEL, OUR_SLICES, SERVICE_NAME_LABEL, ServiceView, owner_reference

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


class OwnService:
    """One such Service of one tenant, in the gateway's namespace of each compute cluster; made on first need."""

    def __init__(self, tenant: str, name: str, ports: Sequence[Port]) -> None:
        self._tenant = tenant
        self._name = name
        self._ports = tuple(ports)
        self._made: dict[str, ServiceView] = {}
        """By compute cluster, what was just made and the watch has not shown yet."""
        self.given: dict[str, str] = {}
        """By compute cluster, the address that stands in pods."""

    def found(self, link: ComputeLink) -> ServiceView | None:
        """The Service as a compute cluster has it; None where there is none of ours."""
        found = link.services.items.get((SYSTEM_NAMESPACE, self._name))
        if found is None:
            return self._made.get(link.name)
        self._made.pop(link.name, None)
        return self._ours(link, found)

    async def ensure(self, link: ComputeLink, *, to: Endpoint) -> str:
        """Return its address, "" where its name is somebody else's; a new one leads `to` there. Raises ApiError."""
        found = self.found(link) or await self._make(link, to)
        return found.cluster_ip if found is not None else ""

    async def lead(self, link: ComputeLink, *, to: Endpoint) -> None:
        """Have the Service lead to a server, if it is there, or was: what somebody deleted gets its old address back.

        Raises ApiError.
        """
        found = self.found(link)
        if found is None and link.name in self.given:
            found = await self._make(link, to)
        if found is not None:
            await self._lead(link, found.metadata, to)

    def _ours(self, link: ComputeLink, found: ServiceView) -> ServiceView | None:
        if found.metadata.labels.get(TENANT_LABEL) != self._tenant or not found.cluster_ip:
            return None
        self.given[link.name] = found.cluster_ip
        return found

    async def _make(self, link: ComputeLink, to: Endpoint) -> ServiceView | None:
        ports = [{"name": port.name, "protocol": port.protocol, "port": port.number} for port in self._ports]
        spec: dict[str, Any] = {"type": "ClusterIP", "ports": ports}
        if link.name in self.given:
            spec["clusterIP"] = self.given[link.name]
        document = {"apiVersion": "v1", "kind": "Service", "metadata": self._metadata(), "spec": spec}
        try:
            answer = await link.client.create(resources.SERVICES, document, namespace=SYSTEM_NAMESPACE)
        except errors.AlreadyExists:
            answer = await link.client.get(resources.SERVICES, self._name, namespace=SYSTEM_NAMESPACE)
        service = self._ours(link, decode_service(answer))
        if service is None:
            log.warning("the Service's name is taken", tenant=self._tenant, compute=link.name, name=self._name)
            return None
        await self._lead(link, service.metadata, to, only_new=True)
        self._made[link.name] = service
        return service

    async def _lead(self, link: ComputeLink, service: Meta, to: Endpoint, *, only_new: bool = False) -> None:
        """Write the slice, unless it says so; with `only_new` only where there is none."""
        content: Object = {
            "addressType": "IPv6" if ":" in to.address else "IPv4",
            "endpoints": [{"addresses": [to.address], "conditions": {"ready": True}}],
            "ports": [{"name": port.name, "protocol": port.protocol, "port": to.port} for port in self._ports],
        }
        known = link.slices.items.get((SYSTEM_NAMESPACE, self._name))
        if known is not None and slice_text(known) == text_of(content):
            return
        metadata = self._metadata()
        metadata["labels"] |= {SERVICE_NAME_LABEL: self._name, MANAGED_BY_LABEL: OUR_SLICES}
        metadata["ownerReferences"] = [owner_reference(service)]
        wanted = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, **content}
        try:
            if known is None:
                await link.client.create(resources.ENDPOINT_SLICES, wanted, namespace=SYSTEM_NAMESPACE)
                return
        except errors.AlreadyExists:
            if only_new:
                return
            answer = await link.client.get(resources.ENDPOINT_SLICES, self._name, namespace=SYSTEM_NAMESPACE)
            known = decode_slice(answer)
        metadata["resourceVersion"] = known.metadata.resource_version
        await link.client.replace(resources.ENDPOINT_SLICES, self._name, wanted, namespace=SYSTEM_NAMESPACE)

    def _metadata(self) -> Object:
        return {"name": self._name, "namespace": SYSTEM_NAMESPACE, "labels": {TENANT_LABEL: self._tenant}}

    async def remove(self, link: ComputeLink) -> None:
        """Remove it from a compute cluster. Repeatable; raises ApiError."""
        for resource in (resources.ENDPOINT_SLICES, resources.SERVICES):
            try:
                answer = await link.client.get(resource, self._name, namespace=SYSTEM_NAMESPACE)
                found = decode_service(answer).metadata
                if found.labels.get(TENANT_LABEL) == self._tenant:
                    await link.client.delete(resource, self._name, namespace=SYSTEM_NAMESPACE, uid=found.uid)
            except (errors.NotFound, errors.Conflict):
                continue
