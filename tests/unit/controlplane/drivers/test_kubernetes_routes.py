"""TLSRoutes and Gateways: where an API server is published, and what keeps clients from it.

The reasons of Traefik 3.7.13 with the Gateway API 1.6.1; its messages about refused routes are empty.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vkgateway.api.types import ApiServerExposure, GatewayReference
from vkgateway.planes.drivers.kubernetes.exposures import exposure_object
from vkgateway.planes.drivers.kubernetes.publisher import (
    NO_GATEWAY,
    NO_OBSTACLE,
    Obstacle,
    find_obstacle,
    read_route,
)

HOST = "alpha.example.org"
EXPOSURE = ApiServerExposure(
    type="TLSRoute", hostname=HOST, gateway=GatewayReference(namespace="edge", name="shared", section_name="tls")
)
NAMESPACE = "vkgateway-tenant-alpha"
PARENT = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "shared", "namespace": "edge"}


def condition(kind: str, status: str, reason: str, message: str = "", *, generation: int = 1) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": "2026-11-26T14:00:00Z",
    }


ACCEPTED = condition("Accepted", "True", "Accepted")
RESOLVED = condition("ResolvedRefs", "True", "ResolvedRefs")
BACKEND_NOT_FOUND = (
    'Cannot load TLSRoute BackendRef vkgateway-tenant-alpha/api: getting service: service "api" not found'
)
NO_PORT = 'Cannot find entryPoint for Gateway: no matching entryPoint for port 9999 and protocol "TLS"'


def route(*conditions: dict[str, Any], generation: int = 1, **parent: str) -> bytes:
    """Return a TLSRoute with the status of one parent, as a controller writes it."""
    document = exposure_object("alpha", EXPOSURE, namespace=NAMESPACE, api_version="gateway.networking.k8s.io/v1")
    document["metadata"] |= {"generation": generation}
    entry = {
        "controllerName": "traefik.io/gateway-controller",
        "parentRef": PARENT | {"sectionName": "tls"} | parent,
        "conditions": list(conditions),
    }
    return msgspec.json.encode(document | {"status": {"parents": [entry] if conditions else []}})


def gateway(*conditions: dict[str, Any], problem: dict[str, Any] | None = None, **listener: Any) -> bytes:
    """Return a Gateway with a listener that passes TLS through, but for the given fields and its problem."""
    tls: dict[str, Any] = {
        "name": "tls",
        "port": 443,
        "protocol": "TLS",
        "tls": {"mode": "Passthrough"},
        "allowedRoutes": {"namespaces": {"from": "All"}},
    }
    spec = {"gatewayClassName": "edge", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}, tls | listener]}
    status: dict[str, Any] = {
        "conditions": list(conditions) or [ACCEPTED, condition("Programmed", "True", "Programmed")],
        "listeners": [{"name": "tls", "attachedRoutes": 0, "conditions": [problem or ACCEPTED]}],
    }
    return msgspec.json.encode({"metadata": {"name": "shared", "namespace": "edge"}, "spec": spec, "status": status})


def test_route_names_the_listener() -> None:
    document = exposure_object("alpha", EXPOSURE, namespace=NAMESPACE, api_version="gateway.networking.k8s.io/v1")
    assert document["spec"]["parentRefs"] == [{"namespace": "edge", "name": "shared", "sectionName": "tls"}]


def test_route_is_published_when_its_gateway_accepts_it() -> None:
    assert read_route(EXPOSURE, route(ACCEPTED, RESOLVED)).url == f"https://{HOST}:443"


@pytest.mark.parametrize(
    ("body", "obstacle", "reason", "words"),
    [
        (route(), NO_OBSTACLE, "AddressPending", "has not accepted the route yet"),
        (route(), NO_GATEWAY, "NotAccepted", "Gateway edge/shared does not exist"),
        (route(ACCEPTED, RESOLVED), NO_GATEWAY, "NotAccepted", "Gateway edge/shared does not exist"),
        (
            route(condition("Accepted", "False", "NoMatchingParent")),
            NO_OBSTACLE,
            "NotAccepted",
            "does not accept the route (NoMatchingParent)",
        ),
        (
            route(condition("Accepted", "False", "NotAllowedByListeners")),
            Obstacle(refuses="admits no routes"),
            "NotAccepted",
            "(NotAllowedByListeners): admits no routes",
        ),
        (
            route(condition("Accepted", "False", "NoMatchingParent", "no such listener")),
            Obstacle(refuses="has no listener"),
            "NotAccepted",
            "(NoMatchingParent): no such listener",
        ),
        (route(ACCEPTED), Obstacle(blocks="ends TLS"), "NotAccepted", "Gateway edge/shared ends TLS"),
        (
            route(ACCEPTED, condition("ResolvedRefs", "False", "BackendNotFound", BACKEND_NOT_FOUND)),
            NO_OBSTACLE,
            "NotAccepted",
            f"cannot reach the API server: {BACKEND_NOT_FOUND}",
        ),
        (route(ACCEPTED, generation=2), NO_OBSTACLE, "AddressPending", "not accepted the route yet"),
        (route(ACCEPTED, name="former"), NO_OBSTACLE, "AddressPending", "not accepted the route yet"),
        (route(ACCEPTED, sectionName="other"), NO_OBSTACLE, "AddressPending", "not accepted the route yet"),
    ],
)
def test_route_that_leads_nowhere_says_why(body: bytes, obstacle: Obstacle, reason: str, words: str) -> None:
    found = read_route(EXPOSURE, body, obstacle=obstacle)
    assert (found.reason, found.url) == (reason, "")
    assert words in found.message
    assert found.names == (HOST,)


def test_gateway_that_passes_tls_through_has_no_obstacle() -> None:
    assert find_obstacle(EXPOSURE, gateway(), namespace=NAMESPACE) == NO_OBSTACLE
    assert find_obstacle(EXPOSURE, gateway(hostname="*.example.org"), namespace=NAMESPACE) == NO_OBSTACLE


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (gateway(name="other"), "has no listener 'tls'; its listeners: web, other"),
        (gateway(hostname="*.example.com"), "has no listener for alpha.example.org: tls serves *.example.com"),
        (gateway(hostname="example.org"), "has no listener for alpha.example.org: tls serves example.org"),
        (
            gateway(
                condition("Accepted", "False", "ListenersNotValid", "At least one Listener must be valid"),
                condition("Programmed", "False", "Invalid", "No Listener is valid"),
                problem=condition("Accepted", "False", "PortUnavailable", NO_PORT),
            ),
            f"does not serve listener tls: {NO_PORT}",
        ),
        (gateway(allowedRoutes={}), f"admits no routes of namespace {NAMESPACE}; set allowedRoutes.namespaces"),
        (
            gateway(condition("Accepted", "Unknown", "Pending", "Waiting for controller")),
            "is not accepted by a controller of GatewayClass 'edge': Waiting for controller",
        ),
    ],
)
def test_refusal_of_a_gateway_is_explained(body: bytes, words: str) -> None:
    found = find_obstacle(EXPOSURE, body, namespace=NAMESPACE)
    assert words in found.refuses
    assert not found.blocks


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (gateway(tls={"mode": "Terminate"}), "does not pass TLS through, so client certificates do not reach"),
        (gateway(protocol="HTTPS", tls={}), "does not pass TLS through"),
        (
            gateway(ACCEPTED, condition("Programmed", "False", "AddressNotAssigned", "no address")),
            "is not ready: no address",
        ),
    ],
)
def test_gateway_that_accepts_but_does_not_pass_is_not_published(body: bytes, words: str) -> None:
    found = find_obstacle(EXPOSURE, body, namespace=NAMESPACE)
    assert words in found.blocks
    assert read_route(EXPOSURE, route(ACCEPTED), obstacle=found).url == ""
