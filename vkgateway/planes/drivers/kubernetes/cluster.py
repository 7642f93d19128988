"""Reads of the objects of control planes from the management cluster."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from vkgateway.api.errors import UnavailableError
from vkgateway.api.objects import Condition, Meta, decode_secret
from vkgateway.kinds.services.translation import decode_service
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import DEPLOYMENTS, EVENTS, NAMESPACES, PODS, SECRETS, SERVICES, Resource
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.kubernetes import failures
from vkgateway.planes.drivers.kubernetes.applied_objects import ManagedObject, decode_managed
from vkgateway.planes.drivers.kubernetes.names import COMPONENT_LABEL, CONTROL_PLANE


class _DeploymentStatus(msgspec.Struct, rename="camel"):
    conditions: tuple[Condition, ...] = ()


class _Deployment(msgspec.Struct):
    status: _DeploymentStatus = msgspec.field(default_factory=_DeploymentStatus)


class _PodSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    node_selector: dict[str, str] = {}
    tolerations: list[Any] = []
    priority_class_name: str = ""


class _PodTemplate(msgspec.Struct):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


class _ScheduledSpec(msgspec.Struct):
    replicas: int = 1
    template: _PodTemplate = msgspec.field(default_factory=_PodTemplate)


class _Scheduled(msgspec.Struct):
    spec: _ScheduledSpec = msgspec.field(default_factory=_ScheduledSpec)


class ScheduledPods(NamedTuple):
    """Number of pods of a control plane, and the fields of a pod spec that select their nodes."""

    replicas: int
    fields: dict[str, Any]


_decode_scheduled: Final = msgspec.json.Decoder(_Scheduled).decode
_decode_deployment: Final = msgspec.json.Decoder(_Deployment).decode
_decode_event: Final = msgspec.json.Decoder(failures.Event).decode
_decode_pod: Final = msgspec.json.Decoder(failures.Pod).decode


async def read_namespace(client: Client, name: str) -> ManagedObject | None:
    """Return a namespace; None if it does not exist."""
    try:
        return decode_managed(await client.get(NAMESPACES, name))
    except errors.NotFound:
        return None


async def read_secret(client: Client, name: str, *, namespace: str) -> Mapping[str, bytes]:
    """Return the contents of a Secret by key; none if it does not exist."""
    try:
        found = decode_secret(await client.get(SECRETS, name, namespace=namespace))
    except errors.NotFound:
        return {}
    return {key: base64.b64decode(value) for key, value in found.data.items()}


async def read_endpoint(client: Client, service: str, *, namespace: str) -> ServerEndpoint | None:
    """Return address and port of a Service; None if it does not exist or has no address yet."""
    try:
        return service_endpoint(await client.get(SERVICES, service, namespace=namespace))
    except errors.NotFound:
        return None


def service_endpoint(body: bytes) -> ServerEndpoint | None:
    """Return address and first port of a stored Service; None if it has no address yet."""
    service = decode_service(body)
    return ServerEndpoint(service.cluster_ip, service.spec["ports"][0]["port"]) if service.cluster_ip else None


async def read_scheduling(client: Client, *, namespace: str) -> ScheduledPods:
    """Return how the pods of a control plane are scheduled. Raises UnavailableError if it does not exist yet."""
    try:
        found = _decode_scheduled(await client.get(DEPLOYMENTS, CONTROL_PLANE, namespace=namespace)).spec
    except errors.NotFound as error:
        raise UnavailableError(f"namespace {namespace} has no control plane yet") from error
    return ScheduledPods(found.replicas, msgspec.to_builtins(found.template.spec))


async def read_failure(client: Client, *, namespace: str) -> str:
    """Return why the pods of a control plane do not run; empty if they run or are starting."""
    try:
        deployment = _decode_deployment(await client.get(DEPLOYMENTS, CONTROL_PLANE, namespace=namespace))
    except errors.NotFound:
        return ""
    pods: list[failures.Pod] = []
    selector = f"{COMPONENT_LABEL}={CONTROL_PLANE}"
    async for page in client.list_pages(PODS, namespace=namespace, label_selector=selector):
        pods += [_decode_pod(item) for item in page.items]
    found = failures.deployment_failure(deployment.status.conditions) or failures.pod_failure(pods)
    for pod in failures.starting_pods(pods) if not found else ():
        found = found or failures.repeated_warning(pod, await read_warnings(client, PODS, pod.metadata))
    return found


async def read_warnings(client: Client, resource: Resource, about: Meta) -> list[failures.Event]:
    """Return the warnings about an object, without those about a former one of its name.

    None if the gateway must not read events.
    """
    selector = f"involvedObject.kind={resource.kind},involvedObject.name={about.name},type=Warning"
    if about.uid:
        selector += f",involvedObject.uid={about.uid}"
    warnings: list[failures.Event] = []
    with contextlib.suppress(errors.Forbidden):
        async for page in client.list_pages(EVENTS, namespace=about.namespace, field_selector=selector):
            warnings += [_decode_event(item) for item in page.items]
    return warnings
