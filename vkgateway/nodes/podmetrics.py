"""Objects of metrics.k8s.io/v1beta1 from the statistics of kubelets: NodeMetrics, PodMetrics, lists, tables. Pure.

Shapes and units (nanocores, kibibytes) are those of k8s.io/metrics/pkg/apis/metrics/v1beta1 and of metrics-server.
`kubectl top` and the HorizontalPodAutoscaler read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from vkgateway.api.objects import Object

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
