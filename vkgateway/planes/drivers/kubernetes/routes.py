"""Whether a Gateway passes an API server's TLS connections on, from the status of its TLSRoute and its spec (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from vkgateway.api.objects import Condition, Meta, find_condition
from vkgateway.api.types import ApiServerExposure, GatewayReference
from vkgateway.planes.drivers.kubernetes.exposures import TLS_PORT
from vkgateway.planes.publication import Publication

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
        if told := obstacle.refuses or obstacle.blocks:
            return _pending(exposure, "NotAccepted", told)
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
