"""Objects that expose an API server outside the management cluster, and what their status says (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from vkgateway.api.objects import Meta
from vkgateway.api.types import ApiServerExposure, ExposureType
from vkgateway.planes.drivers.kubernetes.names import (
    API_SERVER,
    CONTROL_PLANE,
    PORT,
    component_labels,
    pod_selector,
)
from vkgateway.planes.publication import Publication

Document = dict[str, Any]

PUBLISHED_SERVICE: Final = "api-published"
"""Name of the Service of type NodePort or LoadBalancer. The Service `api` keeps the address that clusters use."""
OBJECT_NAMES: Final[Mapping[ExposureType, tuple[str, str]]] = {
    "NodePort": ("Service", PUBLISHED_SERVICE),
    "LoadBalancer": ("Service", PUBLISHED_SERVICE),
    "TLSRoute": ("TLSRoute", API_SERVER),
    "Ingress": ("Ingress", API_SERVER),
}
"""Kind and name of the object of each type of exposure."""
_PASSTHROUGH: Final = {
    "haproxy-ingress.github.io/ssl-passthrough": "true",
    "nginx.ingress.kubernetes.io/ssl-passthrough": "true",
}
"""Annotations of common ingress controllers. The API server itself ends TLS, because it reads client certificates."""
TLS_PORT: Final = 443
"""Port of routes and Ingresses for clients, without another in the exposure."""


class _Address(msgspec.Struct):
    ip: str = ""
    hostname: str = ""


class _LoadBalancer(msgspec.Struct):
    ingress: tuple[_Address, ...] = ()


class _Status(msgspec.Struct, rename="camel"):
    load_balancer: _LoadBalancer = msgspec.field(default_factory=_LoadBalancer)


class _ServicePort(msgspec.Struct, rename="camel"):
    port: int
    node_port: int = 0


class _Spec(msgspec.Struct, rename="camel"):
    type: str = ""
    ports: tuple[_ServicePort, ...] = ()
    ingress_class_name: str = ""


class ExposedObject(msgspec.Struct):
    """The part of a Service or Ingress that tells where clients connect."""

    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def addresses(self) -> tuple[str, ...]:
        """IP addresses and DNS names of a load balancer or ingress controller."""
        return tuple(one.ip or one.hostname for one in self.status.load_balancer.ingress if one.ip or one.hostname)


decode_exposed: Final = msgspec.json.Decoder(ExposedObject).decode


def exposure_object(
    tenant: str, exposure: ApiServerExposure, *, namespace: str, port: int = PORT, api_version: str
) -> Document:
    """Return the object of an exposure other than ClusterIP.

    `port` is that of the Service `api`.
    """
    kind, name = OBJECT_NAMES[exposure.type]
    metadata: Document = {
        "name": name,
        "namespace": namespace,
        "labels": component_labels(tenant, CONTROL_PLANE),
    }
    annotations = exposure.annotations
    if kind == "Ingress":
        annotations = annotations or _PASSTHROUGH
    if annotations:
        metadata["annotations"] = dict(annotations)
    if kind == "Service":
        spec = _service_spec(tenant, exposure)
    else:
        spec = _route_spec(exposure, port) if kind == "TLSRoute" else _ingress_spec(exposure)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def read_service(exposure: ApiServerExposure, body: bytes, *, nodes: Sequence[str] = ()) -> Publication:
    """Return where a stored Service publishes the API server. `nodes` are the addresses of nodes with a ready pod."""
    found = decode_exposed(body)
    port = found.spec.ports[0]
    if exposure.type == "NodePort":
        addresses: Sequence[str] = nodes
        missing = "no pod of the control plane is ready, so no node has an address for clients"
    else:
        addresses = found.addresses
        kind = f" (class {exposure.load_balancer_class})" if exposure.load_balancer_class else ""
        missing = f"the load balancer{kind} of Service {PUBLISHED_SERVICE} has no address yet"
    if not addresses and not (exposure.hostname and exposure.type == "NodePort"):
        return Publication.pending(exposure.type, "AddressPending", missing, names=_named(exposure))
    return Publication.at(
        exposure.type,
        host=exposure.hostname or addresses[0],
        port=port.node_port if exposure.type == "NodePort" else port.port,
        names=tuple(addresses),
    )


def read_ingress(exposure: ApiServerExposure, body: bytes) -> Publication:
    """Return where a stored Ingress publishes the API server: at its hostname, once a controller took it."""
    if decode_exposed(body).addresses:
        return Publication.at(exposure.type, host=exposure.hostname, port=exposure.port or TLS_PORT)
    message = "no ingress controller has given the Ingress an address yet"
    return Publication.pending(exposure.type, "AddressPending", message, names=_named(exposure))


def _named(exposure: ApiServerExposure) -> tuple[str, ...]:
    """Return the hostname: certificates contain it before clients use it."""
    return (exposure.hostname,) if exposure.hostname else ()


def _service_spec(tenant: str, exposure: ApiServerExposure) -> Document:
    is_node_port = exposure.type == "NodePort"
    port: Document = {"name": "https", "port": PORT, "targetPort": PORT, "protocol": "TCP"}
    if exposure.port:
        port["nodePort" if is_node_port else "port"] = exposure.port
    spec: Document = {
        "type": exposure.type,
        "selector": pod_selector(tenant, CONTROL_PLANE),
        "ports": [port],
        # Only a node with the pod knows the address of the client, which the ranges are compared with.
        "externalTrafficPolicy": "Local" if exposure.source_ranges else "Cluster",
    }
    if exposure.source_ranges and not is_node_port:
        spec["loadBalancerSourceRanges"] = list(exposure.source_ranges)
    if exposure.load_balancer_class:
        spec["loadBalancerClass"] = exposure.load_balancer_class
    return spec


def _route_spec(exposure: ApiServerExposure, port: int) -> Document:
    assert exposure.gateway is not None
    parent = msgspec.to_builtins(exposure.gateway)
    backend = {"name": API_SERVER, "port": port}
    return {"parentRefs": [parent], "hostnames": [exposure.hostname], "rules": [{"backendRefs": [backend]}]}


def _ingress_spec(exposure: ApiServerExposure) -> Document:
    backend = {"service": {"name": API_SERVER, "port": {"name": "https"}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    spec: Document = {
        "rules": [{"host": exposure.hostname, "http": {"paths": [path]}}],
        "tls": [{"hosts": [exposure.hostname]}],
    }
    if exposure.ingress_class:
        spec["ingressClassName"] = exposure.ingress_class
    return spec
