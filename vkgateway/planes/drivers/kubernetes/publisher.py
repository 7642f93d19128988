"""Exposure of API servers outside the management cluster: objects written, their status read."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import NotPublishedError
from vkgateway.api.names import is_ip_address
from vkgateway.api.objects import Condition, Meta, find_condition, is_condition_true
from vkgateway.api.types import ApiServerExposure, ExposureType, GatewayReference
from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery
from vkgateway.kube.client import Client
from vkgateway.kube.resources import INGRESS_CLASSES, INGRESSES, PODS, SERVICES, Resource
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.kubernetes.applied_objects import AppliedObjects
from vkgateway.planes.drivers.kubernetes.cluster import read_warnings
from vkgateway.planes.drivers.kubernetes.exposures import (
    OBJECT_NAMES,
    PUBLISHED_SERVICE,
    TLS_PORT,
    decode_exposed,
    exposure_object,
    read_ingress,
    read_service,
)
from vkgateway.planes.drivers.kubernetes.failures import last_message
from vkgateway.planes.drivers.kubernetes.names import CONTROL_PLANE, pod_selector
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


_FAILURES: Final = {"Accepted": "False", "Conflicted": "True", "ResolvedRefs": "False", "Programmed": "False"}
"""Status of a listener's conditions that tells a failure, the most telling first."""


class _ParentReference(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    section_name: str = ""


class _Parent(msgspec.Struct, rename="camel"):
    parent_ref: _ParentReference = msgspec.field(default_factory=_ParentReference)
    conditions: tuple[Condition, ...] = ()


class _RouteStatus(msgspec.Struct):
    parents: tuple[_Parent, ...] = ()


class _Route(msgspec.Struct):
    metadata: Meta
    status: _RouteStatus = msgspec.field(default_factory=_RouteStatus)


class _ListenerTls(msgspec.Struct):
    mode: str = "Terminate"


class _RouteNamespaces(msgspec.Struct):
    origin: str = msgspec.field(default="Same", name="from")


class _AllowedRoutes(msgspec.Struct):
    namespaces: _RouteNamespaces = msgspec.field(default_factory=_RouteNamespaces)


class _Listener(msgspec.Struct, rename="camel"):
    name: str
    protocol: str = ""
    hostname: str = ""
    tls: _ListenerTls = msgspec.field(default_factory=_ListenerTls)
    allowed_routes: _AllowedRoutes = msgspec.field(default_factory=_AllowedRoutes)

    def serves(self, hostname: str) -> bool:
        """Return whether connections to a host arrive at this listener. A wildcard covers all names below a domain."""
        wildcard = self.hostname.removeprefix("*")
        return hostname.endswith(wildcard) if wildcard != self.hostname else self.hostname in {"", hostname}


class _GatewaySpec(msgspec.Struct, rename="camel"):
    gateway_class_name: str = ""
    listeners: tuple[_Listener, ...] = ()


class _ListenerStatus(msgspec.Struct):
    name: str
    conditions: tuple[Condition, ...] = ()

    @property
    def problem(self) -> str:
        """What the controller says is wrong with the listener; empty if it says nothing."""
        failed = [one for one in self.conditions if one.status == _FAILURES.get(one.type)]
        return next((one.message or one.reason for one in failed), "")


class _GatewayStatus(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()
    listeners: tuple[_ListenerStatus, ...] = ()


class _Gateway(msgspec.Struct):
    spec: _GatewaySpec = msgspec.field(default_factory=_GatewaySpec)
    status: _GatewayStatus = msgspec.field(default_factory=_GatewayStatus)


class Obstacle(NamedTuple):
    """What keeps clients from reaching an API server through a Gateway, as the rest of a sentence about the Gateway.

    `blocks` holds even if the Gateway's controller accepts the route. `refuses` explains why it does not.
    """

    blocks: str = ""
    refuses: str = ""


NO_OBSTACLE: Final = Obstacle()
NO_GATEWAY: Final = Obstacle(blocks="does not exist")

_decode_route: Final = msgspec.json.Decoder(_Route).decode
_decode_gateway: Final = msgspec.json.Decoder(_Gateway).decode


def read_route(exposure: ApiServerExposure, body: bytes, *, obstacle: Obstacle = NO_OBSTACLE) -> Publication:
    """Return where a stored TLSRoute publishes the API server: at its hostname, once its Gateway accepts it.

    Controllers leave the status of a former Gateway or generation for some time, which says nothing of this one.
    """
    accepted, resolved = (_find_current(_decode_route(body), exposure, kind) for kind in ("Accepted", "ResolvedRefs"))
    if accepted is None:
        if why := obstacle.refuses or obstacle.blocks:
            return _pending(exposure, "NotAccepted", why)
        return _pending(exposure, "AddressPending", "has not accepted the route yet")
    if accepted.status != "True":
        why = accepted.message or obstacle.refuses or obstacle.blocks
        refusal = f": {why}" if why else ""
        return _pending(exposure, "NotAccepted", f"does not accept the route ({accepted.reason}){refusal}")
    if obstacle.blocks:
        return _pending(exposure, "NotAccepted", obstacle.blocks)
    if resolved is not None and resolved.status == "False":
        why = resolved.message or resolved.reason
        return _pending(exposure, "NotAccepted", f"accepts the route, but cannot reach the API server: {why}")
    return Publication.at(exposure.type, host=exposure.hostname, port=exposure.port or TLS_PORT)


def find_obstacle(exposure: ApiServerExposure, body: bytes, *, namespace: str) -> Obstacle:
    """Return what a stored Gateway lacks to pass on connections to an API server in `namespace`."""
    assert exposure.gateway is not None
    gateway = _decode_gateway(body)
    wanted, listeners = exposure.gateway.section_name, gateway.spec.listeners
    named = [one for one in listeners if wanted in {"", one.name}]
    if not named:
        return Obstacle(refuses=f"has no listener {wanted!r}; its listeners: {_names(listeners, ', ') or 'none'}")
    serving = [one for one in named if one.serves(exposure.hostname)]
    if not serving:
        served = ", ".join(f"{one.name} serves {one.hostname}" for one in named)
        return Obstacle(refuses=f"has no listener for {exposure.hostname}: {served}")
    passing = [one for one in serving if one.protocol == "TLS" and one.tls.mode == "Passthrough"]
    if not passing:
        return Obstacle(
            "does not pass TLS through, so client certificates do not reach the API server; set protocol TLS and "
            f"tls.mode Passthrough of listener {_names(serving)}"
        )
    is_foreign = exposure.gateway.namespace != namespace
    if is_foreign and all(one.allowed_routes.namespaces.origin in {"Same", "None"} for one in passing):
        fields = f"allowedRoutes.namespaces of listener {_names(passing)}"
        return Obstacle(refuses=f"admits no routes of namespace {namespace}; set {fields}")
    return _find_controller_obstacle(gateway, {one.name for one in passing})


def gateway_name(gateway: GatewayReference) -> str:
    """Return namespace and name of a Gateway, as messages show it."""
    return f"{gateway.namespace}/{gateway.name}"


def _find_controller_obstacle(gateway: _Gateway, listeners: Collection[str]) -> Obstacle:
    """Return what a Gateway's controller says of it, and of the listeners with these names."""
    problems = [one.problem for one in gateway.status.listeners if one.name in listeners]
    if problems and all(problems):
        return Obstacle(refuses=f"does not serve listener {' or '.join(sorted(listeners))}: {problems[0]}")
    conditions = gateway.status.conditions
    programmed, accepted = (find_condition(conditions, kind) for kind in ("Programmed", "Accepted"))
    if programmed is not None and programmed.status == "False":
        return Obstacle(f"is not ready: {programmed.message or programmed.reason}")
    if accepted is not None and accepted.status == "True":
        return NO_OBSTACLE
    why = f": {accepted.message or accepted.reason}" if accepted is not None else ""
    return Obstacle(refuses=f"is not accepted by a controller of GatewayClass {gateway.spec.gateway_class_name!r}{why}")


def _find_current(route: _Route, exposure: ApiServerExposure, kind: str) -> Condition | None:
    """Return the condition that the wanted Gateway's controller wrote about the stored spec.

    If several controllers did, the first one that is True.
    """
    assert exposure.gateway is not None
    reference = exposure.gateway
    wanted = _ParentReference(reference.name, reference.namespace, reference.section_name)
    found = [
        condition
        for parent in route.status.parents
        if parent.parent_ref == wanted
        and (condition := find_condition(parent.conditions, kind)) is not None
        and condition.observed_generation in {0, route.metadata.generation}
    ]
    return next((one for one in found if one.status == "True"), next(iter(found), None))


def _pending(exposure: ApiServerExposure, reason: str, what: str) -> Publication:
    assert exposure.gateway is not None
    message = f"Gateway {gateway_name(exposure.gateway)} {what}"
    return Publication.pending(exposure.type, reason, message, names=(exposure.hostname,))


def _names(listeners: Sequence[_Listener], separator: str = " or ") -> str:
    return separator.join(one.name for one in listeners)


class _PodStatus(msgspec.Struct, rename="camel"):
    host_ip: str = msgspec.field(default="", name="hostIP")
    conditions: tuple[Condition, ...] = ()


class _Pod(msgspec.Struct):
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


_decode_pod: Final = msgspec.json.Decoder(_Pod).decode


async def read_published_type(client: Client, *, namespace: str) -> str:
    """Return the type of the Service that exposes an API server, NodePort or LoadBalancer; empty if there is none."""
    try:
        return decode_exposed(await client.get(SERVICES, PUBLISHED_SERVICE, namespace=namespace)).spec.type
    except errors.NotFound:
        return ""


async def read_outside_endpoints(
    client: Client, service: str, *, tenant: str, component: str, namespace: str
) -> list[ServerEndpoint]:
    """Return where clients outside reach a Service: at its load balancer, or at nodes with a ready pod of it.

    DNS names of a load balancer are left out, because an EndpointSlice holds addresses of one kind.
    """
    found = decode_exposed(await client.get(SERVICES, service, namespace=namespace))
    port = found.spec.ports[0]
    if found.spec.type == "LoadBalancer":
        return [ServerEndpoint(address, port.port) for address in found.addresses if is_ip_address(address)]
    nodes = await read_node_addresses(client, tenant, component=component, namespace=namespace)
    return [ServerEndpoint(node, port.node_port) for node in nodes]


async def read_node_addresses(client: Client, tenant: str, *, component: str, namespace: str) -> list[str]:
    """Return the addresses of the nodes that have a ready pod of a component, sorted."""
    selector = ",".join(f"{key}={value}" for key, value in pod_selector(tenant, component).items())
    found: set[str] = set()
    async for page in client.list_pages(PODS, namespace=namespace, label_selector=selector):
        pods = [_decode_pod(item) for item in page.items]
        found |= {pod.status.host_ip for pod in pods if is_condition_true(pod.status.conditions, "Ready")}
    return sorted(found - {""})
