"""GET /apis/metrics.k8s.io/v1beta1/...: the resource metrics API, for the tenant's API server to aggregate.

What a user of the tenant may read, that server has decided by its own RBAC before it passes a request on
(https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from vkgateway.kubelet import labelselector, podmetrics
from vkgateway.kubelet.call import Call
from vkgateway.kubelet.http import Reply, Request
from vkgateway.kubelet.target import PlacedPod
from vkgateway.model.objects import Object

GROUP: Final = "metrics.k8s.io"
_VERSION: Final = "v1beta1"
_JSON: Final = "application/json"
_AS_TABLE: Final = "as=table"
_encode: Final = msgspec.json.Encoder().encode


class _StatusError(Exception):
    """The request ends with this Status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.reply = Reply(status, _encode(podmetrics.failure_status(status, reason, message)), _JSON)


@dataclass(frozen=True, slots=True)
class _MetricsQuery:
    """What is asked for: nodes or pods; of a namespace or, without one, of all; one of them or, without a name, all."""

    resource: str
    namespace: str = ""
    name: str = ""


async def serve_metrics_api(call: Call, *path: str) -> Reply:
    """Answer one request of the group."""
    try:
        if path == (_VERSION,):
            return Reply(200, _encode(podmetrics.discovery_document()), _JSON)
        asked = _parse_query(path)
        with call.stats_provider.request_limiter.hold_stream(call.tenant):
            items = await (_node_metrics(call, asked) if asked.resource == "nodes" else _pod_metrics(call, asked))
        return _build_reply(call.request, asked, items)
    except _StatusError as failed:
        return failed.reply


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


async def _node_metrics(call: Call, asked: _MetricsQuery) -> list[Object]:
    chosen, figures = _parse_selectors(call.request), call.stats_provider
    nodes = {
        name: labels
        for name, labels in figures.virtual_nodes(call.tenant).items()
        if asked.name in ("", name) and chosen({"metadata.name": name}, labels)
    }
    used: dict[str, list[Object]] = {name: [] for name in nodes}
    for pod, stats in await figures.read_usages(call.tenant, nodes, chosen=lambda _: True):
        used[pod.virtual_node].append(stats)
    now = figures.render_now()
    return [podmetrics.node_metrics(name, used[name], labels=labels, now=now) for name, labels in nodes.items()]


async def _pod_metrics(call: Call, asked: _MetricsQuery) -> list[Object]:
    chosen, figures = _parse_selectors(call.request), call.stats_provider

    def is_asked(pod: PlacedPod) -> bool:
        fields = {"metadata.name": pod.tenant_name, "metadata.namespace": pod.tenant_namespace}
        return (
            pod.is_running
            and asked.namespace in ("", pod.tenant_namespace)
            and asked.name in ("", pod.tenant_name)
            and chosen(fields, pod.labels)
        )

    found = await figures.read_usages(call.tenant, figures.virtual_nodes(call.tenant), chosen=is_asked)
    now = figures.render_now()
    made = (podmetrics.pod_metrics(stats, labels=pod.labels, now=now) for pod, stats in found)
    return [item for item in made if item is not None]


def _parse_selectors(request: Request) -> Callable[[Mapping[str, str], Mapping[str, str]], bool]:
    """Whether fields and labels meet the request's selectors. Raises _FailedError for a selector that is none."""
    query = dict(request.query)
    if query.get("watch") in ("1", "true"):
        raise _StatusError(405, "MethodNotAllowed", "figures can be read and listed, not watched")
    try:
        fields = labelselector.parse(query.get("fieldSelector", ""))
        labels = labelselector.parse(query.get("labelSelector", ""))
    except ValueError as error:
        raise _StatusError(400, "BadRequest", str(error)) from error
    return lambda of_fields, of_labels: fields(of_fields) and labels(of_labels)


def _build_reply(request: Request, asked: _MetricsQuery, items: list[Object]) -> Reply:
    if asked.name and not items:
        name = "/".join(filter(None, (asked.namespace, asked.name)))
        raise _StatusError(404, "NotFound", f'{asked.resource}.{GROUP} "{name[:300]}" not found')
    if _AS_TABLE in request.header("accept").lower():
        return Reply(200, _encode(podmetrics.metrics_table(items)), _JSON)
    return Reply(200, _encode(items[0] if asked.name else podmetrics.metrics_list(asked.resource, items)), _JSON)
