"""Endpoints of API servers that are pods: a Service of each tenant, its ready pods, and its exposure."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import UnavailableError
from vkgateway.api.types import ApiServerExposure, ExposureType
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.planes.drivers.base import AssignedPorts, ServerEndpoint
from vkgateway.planes.drivers.kubernetes import objects
from vkgateway.planes.drivers.kubernetes.addresses import ServerAddresses
from vkgateway.planes.drivers.kubernetes.applied_objects import AppliedObjects
from vkgateway.planes.drivers.kubernetes.changes import Changes
from vkgateway.planes.drivers.kubernetes.cluster import read_endpoint
from vkgateway.planes.drivers.kubernetes.names import API_SERVER, PORT
from vkgateway.planes.drivers.kubernetes.namespaces import ControlPlaneNamespaces
from vkgateway.planes.drivers.kubernetes.publisher import Publisher
from vkgateway.planes.publication import Publication

_log = structlog.get_logger(__name__)


class PodEndpoints:
    """Each API server has the address of a Service, which stays the same; implements `ServerEndpoints`."""

    def __init__(
        self,
        client: Client,
        *,
        addresses: ServerAddresses,
        applied: AppliedObjects,
        namespaces: ControlPlaneNamespaces,
        changes: Changes,
    ) -> None:
        self._client = client
        self._addresses = addresses
        self._objects = applied
        self._namespaces = namespaces
        self._changes = changes
        self._publisher = Publisher(client, applied)
        self._published: dict[str, Publication] = {}

    async def ensure(
        self,
        tenant: str,
        *,
        requested_port: int,
        recorded: ServerEndpoint | None,
        assigned_ports: AssignedPorts,  # noqa: ARG002 - each tenant has an address, so ports cannot conflict
    ) -> ServerEndpoint:
        """See `ServerEndpoints`: the address of the tenant's Service, and the requested port or 6443."""
        port = requested_port or (recorded.port if recorded is not None else PORT)
        namespace = await self._namespaces.ensure(tenant)
        service = objects.api_server_service(tenant, namespace=namespace, port=port)
        endpoint = await self.find(tenant, recorded_port=port)
        if endpoint is None and recorded is not None and recorded.address:
            await self._restore_address(service, recorded.address)
        await self._objects.apply([service])
        if endpoint is None or endpoint.port != port:
            endpoint = await self.find(tenant, recorded_port=port)
        if endpoint is None:
            raise UnavailableError(f"Service {namespace}/{API_SERVER} has no address yet")
        return endpoint

    async def publish(
        self, tenant: str, exposure: ApiServerExposure, *, previous: ExposureType, endpoint: ServerEndpoint
    ) -> Publication:
        """See `ServerEndpoints` and `Publisher`."""
        found = await self._publisher.publish(
            tenant, exposure, previous=previous, namespace=self._namespaces.name_for(tenant), port=endpoint.port
        )
        if self._published.get(tenant) != found:  # other clusters reach the servers elsewhere
            self._published[tenant] = found
            self._changes.addresses_changed(tenant)
        return found

    async def find(self, tenant: str, *, recorded_port: int) -> ServerEndpoint | None:  # noqa: ARG002 - the Service has the port
        """See `ServerEndpoints`."""
        return await read_endpoint(self._client, API_SERVER, namespace=self._namespaces.name_for(tenant))

    async def reachable_from(
        self,
        tenant: str,
        cluster: ClusterIdentity,
        *,
        endpoint: ServerEndpoint,  # noqa: ARG002 - the address of the Service, which an EndpointSlice must not contain
    ) -> Collection[ServerEndpoint]:
        """See `ServerEndpoints`: the addresses of the ready pods, or for other clusters those of the exposure."""
        namespace = self._namespaces.name_for(tenant)
        if await self._addresses.is_management(cluster):
            return await self._addresses.endpoints_for(cluster, namespace=namespace, service=API_SERVER)
        return await self._publisher.outside_endpoints(tenant, cluster, namespace=namespace)

    async def running(self, tenant: str, *, endpoint: ServerEndpoint) -> Collection[ServerEndpoint]:
        """See `ServerEndpoints`: the ready pods, or the Service while none is known."""
        ready = self._addresses.ready_endpoints(namespace=self._namespaces.name_for(tenant), service=API_SERVER)
        return ready or (endpoint,)

    async def _restore_address(self, service: objects.Document, address: str) -> None:
        """Create a Service that was deleted at its former address, which certificates and kubeconfigs contain."""
        addressed = service | {"spec": {**service["spec"], "clusterIP": address}}
        try:
            await self._objects.apply([addressed])
        except errors.Invalid as error:
            namespace = service["metadata"]["namespace"]
            _log.warning("the API server gets another address", namespace=namespace, former=address, why=error.message)
