"""A tenant's capacity and usage by virtual node, from its nodes and pods (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, POOL_LABEL
from vkgateway.api.objects import TERMINAL_PHASES, Object
from vkgateway.api.quantity import parse_quantity
from vkgateway.api.requests import is_extended
from vkgateway.cli.pending_gangs import gang_of, parse_pending, pending_condition
from vkgateway.scheduler.governed import governed_requests, has_gate, is_governed

NO_NODE: Final = ""
"""Row of waiting pods that are in no queue."""


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Virtual node, for one resource. Amounts are in whole units (GPUs); None: not readable."""

    node: str
    """Empty: waiting pods in no queue."""
    pool: str
    compute_cluster: str
    ready: bool | None
    resource: str
    capacity: float | None
    """The tenant's limit, or what the pool has if that is less."""
    used: float
    """Requests of pods that are bound to the node and have not ended."""
    waiting: float
    gangs_running: int
    gangs_waiting: int


class _Sums:
    def __init__(self) -> None:
        self.used = self.waiting = 0
        self.running: set[str] = set()
        self.pending: set[str] = set()


def node_usages(nodes: Iterable[Object] | None, pods: Iterable[Object]) -> list[NodeUsage]:
    """Return usage by virtual node and resource, for governed pods and extended resources of the nodes.

    `nodes` is None if the user may not list them; then only nodes with pods are known.
    """
    sums: dict[tuple[str, str], _Sums] = {}
    for pod in pods:
        _count_pod(pod, sums)
    known = {node["metadata"]["name"]: node for node in nodes or () if _labels(node).get(POOL_LABEL)}
    offered = {
        (name, resource) for name, node in known.items() for resource in _allocatable(node) if is_extended(resource)
    }
    rows = [_row(name, resource, known.get(name), sums) for name, resource in offered | sums.keys()]
    return sorted(rows, key=lambda row: (row.node == NO_NODE, row.node, row.resource))


def _count_pod(pod: Object, sums: dict[tuple[str, str], _Sums]) -> None:
    if (pod.get("status") or {}).get("phase") in TERMINAL_PHASES or not is_governed(pod):
        return
    group = gang_of(pod)
    waits = pending_condition(pod) is not None or has_gate(pod)
    node = parse_pending(pod).pool if waits else (pod.get("spec") or {}).get("nodeName") or NO_NODE
    for resource, amount in governed_requests(pod).items():
        total = sums.setdefault((node, resource), _Sums())
        if waits:
            total.waiting += amount
            total.pending.add(group)
        else:
            total.used += amount
            total.running.add(group)


def _row(name: str, resource: str, node: Object | None, sums: Mapping[tuple[str, str], _Sums]) -> NodeUsage:
    total = sums.get((name, resource)) or _Sums()
    allocatable = _allocatable(node or {}).get(resource)
    labels = _labels(node or {})
    return NodeUsage(
        node=name,
        pool=labels.get(POOL_LABEL, ""),
        compute_cluster=labels.get(COMPUTE_CLUSTER_LABEL, ""),
        ready=is_ready(node) if node is not None else None,
        resource=resource,
        capacity=float(parse_quantity(allocatable)) if allocatable is not None else None,
        used=total.used / 1000,
        waiting=total.waiting / 1000,
        gangs_running=len(total.running),
        gangs_waiting=len(total.pending - total.running),
    )


def is_ready(node: Object) -> bool:
    """Return whether the condition Ready of a node is True."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def _labels(node: Mapping[str, object]) -> Mapping[str, str]:
    metadata = node.get("metadata")
    return (metadata.get("labels") or {}) if isinstance(metadata, dict) else {}


def _allocatable(node: Mapping[str, object]) -> Mapping[str, str]:
    status = node.get("status")
    return (status.get("allocatable") or {}) if isinstance(status, dict) else {}
