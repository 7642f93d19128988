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


class _FailedError(Exception):
    """The request ends with this Status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.reply = Reply(status, _encode(podmetrics.failure(status, reason, message)), _JSON)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked for: nodes or pods; of a namespace or, without one, of all; one of them or, without a name, all."""

    resource: str
    namespace: str = ""
    name: str = ""


async def metrics(call: Call, *path: str) -> Reply:
    """Answer one request of the group."""
    try:
        if path == (_VERSION,):
            return Reply(200, _encode(podmetrics.resources()), _JSON)
        asked = _asked(path)
        with call.figures.asked.hold(call.tenant):
            items = await (_nodes(call, asked) if asked.resource == "nodes" else _pods(call, asked))
        return _told(call.request, asked, items)
    except _FailedError as failed:
        return failed.reply


def _asked(path: Sequence[str]) -> _Asked:
    match path:
        case (version, "nodes" | "pods" as resource) if version == _VERSION:
            return _Asked(resource)
        case (version, "nodes", name) if version == _VERSION:
            return _Asked("nodes", name=name)
        case (version, "namespaces", namespace, "pods") if version == _VERSION:
            return _Asked("pods", namespace)
        case (version, "namespaces", namespace, "pods", name) if version == _VERSION:
            return _Asked("pods", namespace, name)
    raise _FailedError(404, "NotFound", "the server could not find the requested resource")


async def _nodes(call: Call, asked: _Asked) -> list[Object]:
    chosen, figures = _selected(call.request), call.figures
    nodes = {
        name: labels
        for name, labels in figures.nodes(call.tenant).items()
        if asked.name in ("", name) and chosen({"metadata.name": name}, labels)
    }
    used: dict[str, list[Object]] = {name: [] for name in nodes}
    for pod, stats in await figures.usages(call.tenant, nodes, chosen=lambda _: True):
        used[pod.virtual_node].append(stats)
    now = figures.now()
    return [podmetrics.node_metrics(name, used[name], labels=labels, now=now) for name, labels in nodes.items()]


async def _pods(call: Call, asked: _Asked) -> list[Object]:
    chosen, figures = _selected(call.request), call.figures

    def is_asked(pod: PlacedPod) -> bool:
        fields = {"metadata.name": pod.tenant_name, "metadata.namespace": pod.tenant_namespace}
        return (
            pod.running
            and asked.namespace in ("", pod.tenant_namespace)
            and asked.name in ("", pod.tenant_name)
            and chosen(fields, pod.labels)
        )

    found = await figures.usages(call.tenant, figures.nodes(call.tenant), chosen=is_asked)
    now = figures.now()
    made = (podmetrics.pod_metrics(stats, labels=pod.labels, now=now) for pod, stats in found)
    return [item for item in made if item is not None]


def _selected(request: Request) -> Callable[[Mapping[str, str], Mapping[str, str]], bool]:
    """Whether fields and labels meet the request's selectors. Raises _FailedError for a selector that is none."""
    query = dict(request.query)
    if query.get("watch") in ("1", "true"):
        raise _FailedError(405, "MethodNotAllowed", "figures can be read and listed, not watched")
    try:
        fields = labelselector.parse(query.get("fieldSelector", ""))
        labels = labelselector.parse(query.get("labelSelector", ""))
    except ValueError as error:
        raise _FailedError(400, "BadRequest", str(error)) from error
    return lambda of_fields, of_labels: fields(of_fields) and labels(of_labels)


def _told(request: Request, asked: _Asked, items: list[Object]) -> Reply:
    if asked.name and not items:
        name = "/".join(filter(None, (asked.namespace, asked.name)))
        raise _FailedError(404, "NotFound", f'{asked.resource}.{GROUP} "{name[:300]}" not found')
    if _AS_TABLE in request.header("accept").lower():
        return Reply(200, _encode(podmetrics.table(items)), _JSON)
    return Reply(200, _encode(items[0] if asked.name else podmetrics.listed(asked.resource, items)), _JSON)
