"""The Service `kube-dns` of a tenant cluster, by which charts find the name server of nearly every cluster."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection

import structlog

from vkgateway.api.objects import Meta, Object
from vkgateway.kinds.services.platform_service import DNS_NUMBER, DNS_PORTS, Endpoint
from vkgateway.kinds.services.service_cidr import TenantServiceCidr
from vkgateway.kinds.services.slices import is_same_slice
from vkgateway.kinds.services.translation import (
    DNS_SERVICE,
    MANAGED_BY_GATEWAY,
    MANAGED_BY_LABEL,
    NAME_SERVER_ANNOTATION,
    SERVICE_NAME_LABEL,
    ServiceView,
    decode_service,
    decode_slice,
    is_platform_service,
    owner_reference,
)
from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client

log = structlog.get_logger(__name__)

_NAMESPACE, _NAME = DNS_SERVICE
_LABELS = {"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}
"""Labels that kubeadm sets on this Service."""


class KubeDns:
    """Service `kube-dns` of one tenant. A Service of this name that the tenant created is never changed.

    The Service has no selector: its endpoints are the platform's name server, which is no pod of the tenant. In compute
    clusters, a `PlatformService` takes its place. The gateway creates the Service once after each start, so that a
    tenant admin may replace it with a Service for the tenant's own name server.
    """

    def __init__(self, client: Client, *, own_range: TenantServiceCidr) -> None:
        self._client = client
        self._range = own_range
        self._service: Meta | None = None
        self._is_settled = False
        self._written_slices: list[Object] | None = None

    async def reconcile(self, answering: Collection[Endpoint], *, served: bool) -> None:
        """Create the Service in the tenant cluster, and point its EndpointSlices to the answering name servers.

        Without answering name servers, the slices stay unchanged. If the platform serves no names, the Service is
        deleted. Raises ApiError if the request must be retried. A refusal is only logged.
        """
        try:
            if not self._is_settled:
                if served:
                    self._service = await self._ensure_service()
                else:
                    await self._remove_service()
                self._is_settled = True
            if self._service is not None and answering:
                await self._write_slices(self._service, answering)
        except errors.ApiError as error:
            if error.is_transient:
                raise
            log.warning("no Service for the name server", tenant=self._range.tenant.name, error=str(error))

    async def _ensure_service(self) -> Meta | None:
        found = await self._find_service() or await self._create_service()
        return found.metadata if is_platform_service(found) else None

    async def _remove_service(self) -> None:
        found = await self._find_service()
        if found is not None and is_platform_service(found):
            await self._client.delete(resources.SERVICES, _NAME, namespace=_NAMESPACE, uid=found.metadata.uid)

    async def _find_service(self) -> ServiceView | None:
        try:
            return decode_service(await self._client.get(resources.SERVICES, _NAME, namespace=_NAMESPACE))
        except errors.NotFound:
            return None

    async def _create_service(self) -> ServiceView:
        """Create the Service at the tenth address of the tenant's service range, or at any address if that one is in
        use.
        """
        ports = [
            {"name": port.name, "protocol": port.protocol, "port": port.number, "targetPort": port.number}
            for port in DNS_PORTS
        ]
        metadata = {
            "name": _NAME,
            "namespace": _NAMESPACE,
            "labels": _LABELS,
            "annotations": {NAME_SERVER_ANNOTATION: "true"},
        }
        spec: Object = {"type": "ClusterIP", "ports": ports}
        document = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
        if address := self._range.address_at(DNS_NUMBER):
            addressed = document | {"spec": {**spec, "clusterIP": address}}
            try:
                return decode_service(await self._client.create(resources.SERVICES, addressed, namespace=_NAMESPACE))
            except errors.Invalid as error:
                log.info("kube-dns gets another address", tenant=self._range.tenant.name, error=error.message)
        return decode_service(await self._client.create(resources.SERVICES, document, namespace=_NAMESPACE))

    async def _write_slices(self, service: Meta, answering: Collection[Endpoint]) -> None:
        """Write a slice for each port of the name servers, and delete obsolete slices."""
        wanted = _build_slices(service, answering)
        if wanted == self._written_slices:
            return
        selector = f"{SERVICE_NAME_LABEL}={_NAME},{MANAGED_BY_LABEL}={MANAGED_BY_GATEWAY}"
        page = await self._client.list_all(resources.ENDPOINT_SLICES, namespace=_NAMESPACE, label_selector=selector)
        obsolete = {view.metadata.name: view for view in map(decode_slice, page.items)}
        for document in wanted:
            name = document["metadata"]["name"]
            known = obsolete.pop(name, None)
            if known is None:
                await self._client.create(resources.ENDPOINT_SLICES, document, namespace=_NAMESPACE)
            elif not is_same_slice(known, document):
                await self._client.replace(resources.ENDPOINT_SLICES, name, document, namespace=_NAMESPACE)
        for name in obsolete:
            await self._client.delete(resources.ENDPOINT_SLICES, name, namespace=_NAMESPACE)
        self._written_slices = wanted


def _build_slices(service: Meta, answering: Collection[Endpoint]) -> list[Object]:
    """Return the EndpointSlices of the Service; the endpoints of a slice share address type and ports."""
    grouped: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for endpoint in answering:
        address = ipaddress.ip_address(endpoint.address)
        grouped[address.version, endpoint.port].add(str(address))
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{_NAME}-ipv{version}-{port}",
                "namespace": _NAMESPACE,
                "labels": {**_LABELS, SERVICE_NAME_LABEL: _NAME, MANAGED_BY_LABEL: MANAGED_BY_GATEWAY},
                "ownerReferences": [owner_reference(service)],
            },
            "addressType": f"IPv{version}",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in sorted(addresses)],
            "ports": [{"name": dns_port.name, "protocol": dns_port.protocol, "port": port} for dns_port in DNS_PORTS],
        }
        for (version, port), addresses in sorted(grouped.items())
    ]
