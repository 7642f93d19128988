"""GET /apis/metrics.k8s.io/v1beta1/...: the resource metrics API, which the tenant's API server aggregates.

The tenant's API server authorizes users by RBAC before it forwards a request
(https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/).

Shapes and units (nanocores, kibibytes) are those of k8s.io/metrics/pkg/apis/metrics/v1beta1 and of metrics-server.
`kubectl top` and the HorizontalPodAutoscaler read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from vkgateway.api.objects import Object
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
        self.reply = Reply(status, _encode(failure_status(status, reason, message)), _JSON)


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
            return Reply(200, b"") if _is_probe(call.request) else _json_reply(discovery_document())
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
    return [node_metrics(name, usages[name], labels=labels, now=now) for name, labels in nodes.items()]


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
    items = (pod_metrics(stats, labels=pod.labels, now=now) for pod, stats in usages)
    return [item for item in items if item is not None]


def _parse_selectors(request: Request) -> Callable[[Mapping[str, str], Mapping[str, str]], bool]:
    """Return a function that matches fields and labels against the selectors. Raises _StatusError."""
    query = dict(request.query)
    if query.get("watch") in ("1", "true"):
        raise _StatusError(405, "MethodNotAllowed", "metrics can be read and listed, not watched")
    try:
        fields = parse(query.get("fieldSelector", ""))
        labels = parse(query.get("labelSelector", ""))
    except ValueError as error:
        raise _StatusError(400, "BadRequest", str(error)) from error
    return lambda object_fields, object_labels: fields(object_fields) and labels(object_labels)


def _build_reply(request: Request, query: _MetricsQuery, items: list[Object]) -> Reply:
    if query.name and not items:
        name = "/".join(filter(None, (query.namespace, query.name)))
        raise _StatusError(404, "NotFound", f'{query.resource}.{GROUP} "{name[:300]}" not found')
    if _AS_TABLE in request.header("accept").lower():
        return _json_reply(metrics_table(items))
    return _json_reply(items[0] if query.name else metrics_list(query.resource, items))


def _json_reply(document: Object) -> Reply:
    return Reply(200, _encode(document), _JSON)


# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
_SET: Final = re.compile(r"(\S+)\s+(in|notin)\s+\(([^()]*)\)")
_COMPARISON: Final = re.compile(r"([^\s=!,()]+)\s*(==|=|!=)\s*([^\s=!,()]*)")
_EXISTS: Final = re.compile(r"(!?)\s*([^\s=!,()]+)")
_TERMS: Final = re.compile(r",(?![^()]*\))")

Selector = Callable[[Mapping[str, str]], bool]


def parse(text: str) -> Selector:
    """Return a function that matches labels or fields against a selector. The empty selector matches all.

    Raises:
        ValueError: The text is not a selector; the message quotes the invalid part.
    """
    terms = [_parse_term(term.strip()) for term in _TERMS.split(text)] if text.strip() else []
    return lambda labels: all(term(labels) for term in terms)


def _parse_term(text: str) -> Selector:
    if found := _SET.fullmatch(text):
        key, values = found[1], frozenset(value.strip() for value in found[3].split(","))
        included = found[2] == "in"
        return lambda labels: (labels.get(key) in values) is included
    if found := _COMPARISON.fullmatch(text):
        key, value, equal = found[1], found[3], found[2] != "!="
        return lambda labels: (labels.get(key) == value) is equal
    if found := _EXISTS.fullmatch(text):
        key, exists = found[2], not found[1]
        return lambda labels: (key in labels) is exists
    raise ValueError(f"{text[:100]!r} is not part of a selector like app=web,tier in (a, b),!old")


VERSION: Final = "metrics.k8s.io/v1beta1"
WINDOW: Final = "10s"
"""Window of the CPU usage: the interval between two measurements of a kubelet."""
_KINDS: Final = {"nodes": "NodeMetrics", "pods": "PodMetrics"}


def discovery_document() -> Object:
    """Return the discovery document of the group."""
    entries = [
        {"name": name, "singularName": "", "namespaced": name == "pods", "kind": kind, "verbs": ["get", "list"]}
        for name, kind in _KINDS.items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION, "resources": entries}


def pod_metrics(stats: Object, *, labels: Mapping[str, str], now: str) -> Object | None:
    """Return a pod's `PodMetrics` from its `PodStats`, or None until all containers were measured twice."""
    containers = []
    for container in stats.get("containers") or ():
        cpu, memory = (container.get("cpu") or {}), (container.get("memory") or {})
        if cpu.get("usageNanoCores") is None or memory.get("workingSetBytes") is None:
            return None
        usage = _render_usage(cpu["usageNanoCores"], memory["workingSetBytes"])
        containers.append({"name": container["name"], "usage": usage})
    if not containers:
        return None
    reference = stats["podRef"]
    metadata = {"name": reference["name"], "namespace": reference["namespace"], "creationTimestamp": now}
    return {
        **_object_head("pods", metadata, labels),
        "timestamp": (stats.get("cpu") or {}).get("time") or now,
        "window": WINDOW,
        "containers": containers,
    }


def node_metrics(name: str, pods: Iterable[Object], *, labels: Mapping[str, str], now: str) -> Object:
    """Return a virtual node's `NodeMetrics`: sums over the `PodStats` of its pods."""
    nanocores, memory = 0, 0
    for stats in pods:
        nanocores += int((stats.get("cpu") or {}).get("usageNanoCores") or 0)
        memory += int((stats.get("memory") or {}).get("workingSetBytes") or 0)
    metadata = {"name": name, "creationTimestamp": now}
    return {
        **_object_head("nodes", metadata, labels),
        "timestamp": now,
        "window": WINDOW,
        "usage": _render_usage(nanocores, memory),
    }


def _object_head(resource: str, metadata: Object, labels: Mapping[str, str]) -> Object:
    metadata = {**metadata, "labels": dict(labels)} if labels else metadata
    return {"kind": _KINDS[resource], "apiVersion": VERSION, "metadata": metadata}


def _render_usage(nanocores: int, memory: int) -> dict[str, str]:
    return {"cpu": f"{int(nanocores)}n" if nanocores else "0", "memory": f"{int(memory) // 1024}Ki"}


def metrics_list(resource: str, items: Sequence[Object]) -> Object:
    """Return a list object."""
    return {"kind": f"{_KINDS[resource]}List", "apiVersion": VERSION, "metadata": {}, "items": list(items)}


def metrics_table(items: Sequence[Object]) -> Object:
    """Return the table that `kubectl get` requests (meta.k8s.io/v1)."""
    columns = [
        {"name": name, "type": "string", "format": "name" if name == "Name" else "", "description": "", "priority": 0}
        for name in ("Name", "cpu", "memory", "Window")
    ]
    rows = [{"cells": _table_cells(item), "object": _partial_metadata(item)} for item in items]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": columns,
        "rows": rows,
    }


def _table_cells(item: Object) -> list[str]:
    usages = [container["usage"] for container in item["containers"]] if "containers" in item else [item["usage"]]
    nanocores = sum(int(usage["cpu"].removesuffix("n")) for usage in usages)
    kibibytes = sum(int(usage["memory"].removesuffix("Ki")) for usage in usages)
    return [item["metadata"]["name"], f"{nanocores}n", f"{kibibytes}Ki", item["window"]]


def _partial_metadata(item: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]}


def failure_status(status: int, reason: str, message: str) -> Object:
    """Return a Status object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status,
    }
