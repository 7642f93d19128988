"""GET /apis/metrics.k8s.io/v1beta1/...: the resource metrics API, which the tenant's API server aggregates.

The tenant's API server authorizes users by RBAC before it forwards a request
(https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from vkgateway.api.objects import Object
from vkgateway.nodes import labelselector, podmetrics
from vkgateway.nodes.call import Call
from vkgateway.nodes.http import Reply, Request
from vkgateway.nodes.target import PlacedPod

GROUP: Final = "metrics.k8s.io"
_VERSION: Final = "v1beta1"
_JSON: Final = "application/json"
_AS_TABLE: Final = "as=table"
_AGGREGATOR: Final = "system:kube-aggregator"
_encode: Final = msgspec.json.Encoder().encode


class _StatusError(Exception):
    """The request is answered with this Status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.reply = Reply(status, _encode(podmetrics.failure_status(status, reason, message)), _JSON)


@dataclass(frozen=True, slots=True)
class _MetricsQuery:
    """A request for nodes or pods. An empty namespace means all namespaces, an empty name means all objects."""

    resource: str
    namespace: str = ""
    name: str = ""


async def serve_metrics_api(call: Call, *path: str) -> Reply:
    """Answer a request of the API group."""
    try:
        if path == (_VERSION,):
            return Reply(200, b"") if _is_probe(call.request) else _json_reply(podmetrics.discovery_document())
        query = _parse_query(path)
        with call.stats_provider.request_limiter.hold_stream(call.tenant):
            items = await (_node_metrics(call, query) if query.resource == "nodes" else _pod_metrics(call, query))
        return _build_reply(call.request, query, items)
    except _StatusError as error:
        return error.reply


def _is_probe(request: Request) -> bool:
    """Return whether the tenant's API server only asks whether the API is available: five times each half minute.

    It does not read the body, and would close the connection for each request that has one.
    """
    return request.header("x-remote-user") == _AGGREGATOR and not request.header("accept")


def _parse_query(path: Sequence[str]) -> _MetricsQuery:
    match path:
        case (version, "nodes" | "pods" as resource) if version == _VERSION:
            return _MetricsQuery(resource)
        case (version, "nodes", name) if version == _VERSION:
            return _MetricsQuery("nodes", name=name)
        case (version, "namespaces", namespace, "pods") if version == _VERSION:
            return _MetricsQuery("pods", namespace)
        case (version, "namespaces", namespace, "pods", name) if version == _VERSION:
            return _MetricsQuery("pods", namespace, name)
    raise _StatusError(404, "NotFound", "the server could not find the requested resource")


async def _node_metrics(call: Call, query: _MetricsQuery) -> list[Object]:
    matches, provider = _parse_selectors(call.request), call.stats_provider
    nodes = {
        name: labels
        for name, labels in provider.virtual_nodes(call.tenant).items()
        if query.name in ("", name) and matches({"metadata.name": name}, labels)
    }
    usages: dict[str, list[Object]] = {name: [] for name in nodes}
    for pod, stats in await provider.read_usages(call.tenant, nodes, selected=lambda _: True):
        usages[pod.virtual_node].append(stats)
    now = provider.render_now()
    return [podmetrics.node_metrics(name, usages[name], labels=labels, now=now) for name, labels in nodes.items()]


async def _pod_metrics(call: Call, query: _MetricsQuery) -> list[Object]:
    matches, provider = _parse_selectors(call.request), call.stats_provider

    def is_selected(pod: PlacedPod) -> bool:
        fields = {"metadata.name": pod.tenant_name, "metadata.namespace": pod.tenant_namespace}
        return (
            pod.is_running
            and query.namespace in ("", pod.tenant_namespace)
            and query.name in ("", pod.tenant_name)
            and matches(fields, pod.labels)
        )

    usages = await provider.read_usages(call.tenant, provider.virtual_nodes(call.tenant), selected=is_selected)
    now = provider.render_now()
    items = (podmetrics.pod_metrics(stats, labels=pod.labels, now=now) for pod, stats in usages)
    return [item for item in items if item is not None]


def _parse_selectors(request: Request) -> Callable[[Mapping[str, str], Mapping[str, str]], bool]:
    """Return a function that matches fields and labels against the selectors. Raises _StatusError."""
    query = dict(request.query)
    if query.get("watch") in ("1", "true"):
        raise _StatusError(405, "MethodNotAllowed", "metrics can be read and listed, not watched")
    try:
        fields = labelselector.parse(query.get("fieldSelector", ""))
        labels = labelselector.parse(query.get("labelSelector", ""))
    except ValueError as error:
        raise _StatusError(400, "BadRequest", str(error)) from error
    return lambda object_fields, object_labels: fields(object_fields) and labels(object_labels)


def _build_reply(request: Request, query: _MetricsQuery, items: list[Object]) -> Reply:
    if query.name and not items:
        name = "/".join(filter(None, (query.namespace, query.name)))
        raise _StatusError(404, "NotFound", f'{query.resource}.{GROUP} "{name[:300]}" not found')
    if _AS_TABLE in request.header("accept").lower():
        return _json_reply(podmetrics.metrics_table(items))
    return _json_reply(items[0] if query.name else podmetrics.metrics_list(query.resource, items))


def _json_reply(document: Object) -> Reply:
    return Reply(200, _encode(document), _JSON)
