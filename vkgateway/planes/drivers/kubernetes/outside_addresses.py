"""Addresses of Services of type NodePort and LoadBalancer, for clients outside the management cluster."""

from __future__ import annotations

from typing import Final

import msgspec

from vkgateway.api.names import is_ip_address
from vkgateway.api.objects import Condition, is_condition_true
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS, SERVICES
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.kubernetes.exposures import PUBLISHED_SERVICE, decode_exposed
from vkgateway.planes.drivers.kubernetes.names import pod_selector


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
