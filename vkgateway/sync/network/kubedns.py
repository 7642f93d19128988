"""The Service `kube-dns` of a tenant cluster: the name by which charts know the name server of nearly every cluster."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection

import structlog

from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.network.ownrange import OwnRange
from vkgateway.sync.network.ownservices import DNS_NUMBER, DNS_PORTS, Endpoint
from vkgateway.sync.network.slices import says
from vkgateway.translate.services import (
    KUBE_DNS,
    MANAGED_BY_LABEL,
    NAME_SERVER_ANNOTATION,
    OUR_SLICES,
    SERVICE_NAME_LABEL,
    ServiceView,
    decode_service,
    decode_slice,
    is_platforms,
    owner_reference,
)

log = structlog.get_logger(__name__)

_NAMESPACE, _NAME = KUBE_DNS
_LABELS = {"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}
"""Those that kubeadm gives it."""


class KubeDns:
    """One tenant's. A Service of that name which the tenant made itself is never touched.

    The Service has no selector: it leads to the platform's name server, which is no pod of the tenant's. In compute
    clusters the platform's own Service for names (`OwnService`) stands for it. The gateway makes it once after each
    start, so that a tenant's admin may replace it by a Service for a name server that the tenant runs.
    """

    def __init__(self, client: Client, *, own_range: OwnRange) -> None:
        self._client = client
        self._range = own_range
        self._service: Meta | None = None
        self._settled = False
        self._shown: list[Object] | None = None

    async def settle(self, answering: Collection[Endpoint], *, served: bool) -> None:
        """Have the Service in the tenant cluster, and its slices lead to the name servers that answer.

        Without any of these the slices stay as they are. Where the platform serves no names, the Service is removed.
        Raises ApiError where the tenant's API server cannot be asked now. What it refuses is logged, and holds up
        nothing.
        """
        try:
            if not self._settled:
                if served:
                    self._service = await self._ensure()
                else:
                    await self._remove()
                self._settled = True
            if self._service is not None and answering:
                await self._show(self._service, answering)
        except errors.ApiError as error:
            if error.transient:
                raise
            log.warning("no Service for the name server", tenant=self._range.tenant.name, error=str(error))

    async def _ensure(self) -> Meta | None:
        found = await self._find() or await self._make()
        return found.metadata if is_platforms(found) else None

    async def _remove(self) -> None:
        found = await self._find()
        if found is not None and is_platforms(found):
            await self._client.delete(resources.SERVICES, _NAME, namespace=_NAMESPACE, uid=found.metadata.uid)

    async def _find(self) -> ServiceView | None:
        try:
            return decode_service(await self._client.get(resources.SERVICES, _NAME, namespace=_NAMESPACE))
        except errors.NotFound:
            return None

    async def _make(self) -> ServiceView:
        """Create the Service at the tenth address of the tenant's range; at any address if that one is taken."""
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
        if address := self._range.address(DNS_NUMBER):
            addressed = document | {"spec": {**spec, "clusterIP": address}}
            try:
                return decode_service(await self._client.create(resources.SERVICES, addressed, namespace=_NAMESPACE))
            except errors.Invalid as error:
                log.info("kube-dns gets another address", tenant=self._range.tenant.name, error=error.message)
        return decode_service(await self._client.create(resources.SERVICES, document, namespace=_NAMESPACE))

    async def _show(self, service: Meta, answering: Collection[Endpoint]) -> None:
        """Write a slice for each port at which name servers listen, and delete what is left of earlier ones."""
        wanted = _slices(service, answering)
        if wanted == self._shown:
            return
        selector = f"{SERVICE_NAME_LABEL}={_NAME},{MANAGED_BY_LABEL}={OUR_SLICES}"
        page = await self._client.list_all(resources.ENDPOINT_SLICES, namespace=_NAMESPACE, label_selector=selector)
        left = {view.metadata.name: view for view in map(decode_slice, page.items)}
        for document in wanted:
            name = document["metadata"]["name"]
            known = left.pop(name, None)
            if known is None:
                await self._client.create(resources.ENDPOINT_SLICES, document, namespace=_NAMESPACE)
            elif not says(known, document):
                await self._client.replace(resources.ENDPOINT_SLICES, name, document, namespace=_NAMESPACE)
        for name in left:
            await self._client.delete(resources.ENDPOINT_SLICES, name, namespace=_NAMESPACE)
        self._shown = wanted


def _slices(service: Meta, answering: Collection[Endpoint]) -> list[Object]:
    """The slices of the Service: all endpoints of a slice have the same kind of address and the same ports."""
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
                "labels": {**_LABELS, SERVICE_NAME_LABEL: _NAME, MANAGED_BY_LABEL: OUR_SLICES},
                "ownerReferences": [owner_reference(service)],
            },
            "addressType": f"IPv{version}",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in sorted(addresses)],
            "ports": [{"name": one.name, "protocol": one.protocol, "port": port} for one in DNS_PORTS],
        }
        for (version, port), addresses in sorted(grouped.items())
    ]
