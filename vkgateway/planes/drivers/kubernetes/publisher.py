"""Exposure of API servers outside the management cluster: objects written, their status read."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Final

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import NotPublishedError
from vkgateway.api.types import ApiServerExposure, ExposureType
from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery
from vkgateway.kube.client import Client
from vkgateway.kube.resources import INGRESS_CLASSES, INGRESSES, SERVICES, Resource
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.kubernetes.applied_objects import AppliedObjects
from vkgateway.planes.drivers.kubernetes.cluster import read_warnings
from vkgateway.planes.drivers.kubernetes.exposures import (
    OBJECT_NAMES,
    PUBLISHED_SERVICE,
    decode_exposed,
    exposure_object,
    read_ingress,
    read_service,
)
from vkgateway.planes.drivers.kubernetes.failures import last_message
from vkgateway.planes.drivers.kubernetes.names import CONTROL_PLANE
from vkgateway.planes.drivers.kubernetes.outside_addresses import (
    read_node_addresses,
    read_outside_endpoints,
    read_published_type,
)
from vkgateway.planes.drivers.kubernetes.routes import (
    NO_GATEWAY,
    NO_OBSTACLE,
    Obstacle,
    find_obstacle,
    read_route,
)
from vkgateway.planes.publication import Publication

_GATEWAY_API: Final = "gateway.networking.k8s.io"
_VERSIONS: Final = {"TLSRoute": ("v1", "v1alpha3", "v1alpha2"), "Gateway": ("v1", "v1beta1")}
"""Versions of the kinds of the Gateway API, the newest first."""
_CLASS_ANNOTATION: Final = "kubernetes.io/ingress.class"
"""Annotation by which some ingress controllers know their Ingresses, from before there were classes."""
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
            return read_route(exposure, stored, obstacle=await self._find_obstacle(exposure, namespace=namespace))
        if exposure.type == "Ingress":
            found = read_ingress(exposure, stored)
            return found if found.url else await self._explain(found, INGRESSES, stored)
        nodes: list[str] = []
        if exposure.type == "NodePort":
            nodes = await read_node_addresses(self._client, tenant, component=CONTROL_PLANE, namespace=namespace)
        found = read_service(exposure, stored, nodes=nodes)
        if exposure.type == "LoadBalancer" and not found.url:
            return await self._explain(found, SERVICES, stored)
        return found

    async def _explain(self, found: Publication, resource: Resource, stored: bytes) -> Publication:
        """Add why a Service or Ingress has no address. Controllers explain it in warnings about the object."""
        view = decode_exposed(stored)
        reason = last_message(await read_warnings(self._client, resource, view.metadata))
        if not reason and resource == INGRESSES and _CLASS_ANNOTATION not in view.metadata.annotations:
            reason = await self._class_problem(view.spec.ingress_class_name)
        return replace(found, message=f"{found.message}: {reason}") if reason else found

    async def _class_problem(self, name: str) -> str:
        """Return what is wrong with the class of an Ingress; empty if nothing is known."""
        if not name:
            return "it has no class, and the cluster has no default one; set ingressClass"
        with contextlib.suppress(errors.Forbidden):
            try:
                await self._client.get(INGRESS_CLASSES, name)
            except errors.NotFound:
                return f"IngressClass {name!r} does not exist"
        return ""

    async def _find_obstacle(self, exposure: ApiServerExposure, *, namespace: str) -> Obstacle:
        """Return what the Gateway of an exposure lacks; nothing if it must not be read."""
        gateway, resource = exposure.gateway, await self._find_kind("Gateway")
        if gateway is None or resource is None:
            return NO_OBSTACLE
        try:
            body = await self._client.get(resource, gateway.name, namespace=gateway.namespace)
        except errors.NotFound:
            return NO_GATEWAY
        except errors.Forbidden:
            return NO_OBSTACLE
        return find_obstacle(exposure, body, namespace=namespace)

    async def _delete(self, exposed: ExposureType, *, namespace: str) -> None:
        resource, (kind, name) = await self._find_resource(exposed), OBJECT_NAMES[exposed]
        if resource is not None:
            self._objects.forget_object(kind, name, namespace=namespace)
            with contextlib.suppress(errors.NotFound):
                await self._client.delete(resource, name, namespace=namespace)

    async def _find_resource(self, exposed: ExposureType) -> Resource | None:
        """Return the resource of an exposure's object; None if the management cluster has none."""
        return _RESOURCES[exposed] if exposed in _RESOURCES else await self._find_kind("TLSRoute")

    async def _find_kind(self, kind: str) -> Resource | None:
        """Return a kind of the Gateway API, in the newest version that the management cluster serves; None if none."""
        discovery = Discovery(self._client)
        for version in _VERSIONS[kind]:
            with contextlib.suppress(errors.NotFound):
                if found := await discovery.find_resource(f"{_GATEWAY_API}/{version}", kind):
                    return found
        return None


_RESOURCES: Final[dict[ExposureType, Resource]] = {
    "NodePort": SERVICES,
    "LoadBalancer": SERVICES,
    "Ingress": INGRESSES,
}
