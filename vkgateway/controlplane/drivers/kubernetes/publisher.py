"""Exposure of API servers outside the management cluster: objects written, their status read."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Final

from vkgateway.controlplane.drivers.base import ServerEndpoint
from vkgateway.controlplane.drivers.kubernetes.applied_objects import AppliedObjects
from vkgateway.controlplane.drivers.kubernetes.cluster import read_warnings
from vkgateway.controlplane.drivers.kubernetes.exposures import (
    OBJECT_NAMES,
    PUBLISHED_SERVICE,
    exposure_object,
    read_ingress,
    read_route,
    read_service,
)
from vkgateway.controlplane.drivers.kubernetes.names import CONTROL_PLANE
from vkgateway.controlplane.drivers.kubernetes.outside_addresses import (
    read_node_addresses,
    read_outside_endpoints,
    read_published_type,
)
from vkgateway.controlplane.publication import Publication
from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery
from vkgateway.kube.client import Client
from vkgateway.kube.resources import INGRESSES, SERVICES, Resource
from vkgateway.model.api import ApiServerExposure, ExposureType
from vkgateway.model.clusters import ClusterIdentity
from vkgateway.model.errors import NotPublishedError
from vkgateway.model.objects import Meta

_ROUTE_VERSIONS: Final = tuple(f"gateway.networking.k8s.io/{version}" for version in ("v1", "v1alpha3", "v1alpha2"))
_FIXED: Final = "may not change once set"
"""Part of the API server's message on a load balancer class that changes."""
_REFUSALS: Final = (errors.Invalid, errors.Forbidden, errors.BadRequest)


class Publisher:
    """Writes the object of an exposure, and reads where it leads. Every call may be repeated."""

    def __init__(self, client: Client, applied: AppliedObjects) -> None:
        self._client = client
        self._objects = applied

    async def publish(
        self, tenant: str, exposure: ApiServerExposure, *, previous: ExposureType, namespace: str, port: int
    ) -> Publication:
        """Expose an API server, and delete the object of the previous type of exposure. `port` is that of `api`.

        What the management cluster refuses is the reason why the API server is not published, not an error: the control
        plane works without.
        """
        wanted = OBJECT_NAMES.get(exposure.type)
        if previous in OBJECT_NAMES and OBJECT_NAMES[previous] != wanted:
            await self._delete(previous, namespace=namespace)
        if wanted is None:
            return Publication()
        resource = await self._find_resource(exposure.type)
        if resource is None:
            return Publication.pending(
                exposure.type,
                "KindMissing",
                "the management cluster has no kind TLSRoute; install the Gateway API, or choose another exposure",
            )
        document = exposure_object(tenant, exposure, namespace=namespace, port=port, api_version=resource.api_version)
        try:
            await self._objects.apply([document])
        except _REFUSALS as error:
            message = f"the management cluster refuses {wanted[0]} {namespace}/{wanted[1]}: {error.server_message}"
            if _FIXED in error.server_message:
                message += "; set the type to ClusterIP first"
            return Publication.pending(exposure.type, "Refused", message)
        stored = await self._client.get(resource, wanted[1], namespace=namespace)
        return await self._read(exposure, stored, tenant=tenant, namespace=namespace)

    async def outside_endpoints(self, tenant: str, cluster: ClusterIdentity, *, namespace: str) -> list[ServerEndpoint]:
        """Return where pods of another cluster reach the API server.

        Raises:
            NotPublishedError: it has no address that an EndpointSlice of that cluster can contain.
        """
        found: list[ServerEndpoint] = []
        if await read_published_type(self._client, namespace=namespace):
            found = await read_outside_endpoints(
                self._client, PUBLISHED_SERVICE, tenant=tenant, component=CONTROL_PLANE, namespace=namespace
            )
        if not found:
            raise NotPublishedError(
                f"pods of compute cluster {cluster.name!r} cannot reach the tenant's API server, which has no IP "
                "address outside the management cluster; set spec.apiServer.exposure.type to LoadBalancer or NodePort"
            )
        return found

    async def _read(self, exposure: ApiServerExposure, stored: bytes, *, tenant: str, namespace: str) -> Publication:
        if exposure.type == "TLSRoute":
            return read_route(exposure, stored)
        if exposure.type == "Ingress":
            return read_ingress(exposure, stored)
        nodes: list[str] = []
        if exposure.type == "NodePort":
            nodes = await read_node_addresses(self._client, tenant, component=CONTROL_PLANE, namespace=namespace)
        found = read_service(exposure, stored, nodes=nodes)
        if exposure.type == "LoadBalancer" and not found.url and (warning := await self._last_warning(namespace)):
            return replace(found, message=f"{found.message}: {warning}")
        return found

    async def _last_warning(self, namespace: str) -> str:
        """Return the last warning about the Service; cloud controllers explain there why it has no address."""
        about = Meta(name=PUBLISHED_SERVICE, namespace=namespace)
        warnings = await read_warnings(self._client, SERVICES, about)
        return max(warnings, key=lambda event: event.last_timestamp or "").message if warnings else ""

    async def _delete(self, exposed: ExposureType, *, namespace: str) -> None:
        resource, (kind, name) = await self._find_resource(exposed), OBJECT_NAMES[exposed]
        if resource is not None:
            self._objects.forget_object(kind, name, namespace=namespace)
            with contextlib.suppress(errors.NotFound):
                await self._client.delete(resource, name, namespace=namespace)

    async def _find_resource(self, exposed: ExposureType) -> Resource | None:
        """Return the resource of an exposure's object; None if the management cluster has none.

        TLSRoutes are of the newest version that it serves.
        """
        if exposed in _RESOURCES:
            return _RESOURCES[exposed]
        discovery = Discovery(self._client)
        for version in _ROUTE_VERSIONS:
            with contextlib.suppress(errors.NotFound):
                if found := await discovery.find_resource(version, "TLSRoute"):
                    return found
        return None


_RESOURCES: Final[dict[ExposureType, Resource]] = {
    "NodePort": SERVICES,
    "LoadBalancer": SERVICES,
    "Ingress": INGRESSES,
}
