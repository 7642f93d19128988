"""Reader of a list of Kubernetes nodes, as `kubectl get nodes -o yaml` prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import msgspec

from vkgateway.api.objects import Taint
from vkgateway.api.quantity import Quantity
from vkgateway.api.requests import is_extended, to_milli
from vkgateway.scheduler.core.snapshot import Node, Pool
from vkgateway_platform.simulate.scenario import GPU, POOL
from vkgateway_platform.simulate.traces.errors import TraceError


class _Meta(msgspec.Struct):
    name: str
    labels: dict[str, str] = {}


class _Spec(msgspec.Struct):
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class _Status(msgspec.Struct):
    allocatable: dict[str, Quantity] = {}


class _Node(msgspec.Struct):
    metadata: _Meta
    status: _Status
    spec: _Spec = msgspec.field(default_factory=_Spec)


def is_list(document: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a document is a list of Kubernetes objects."""
    return isinstance(document, Mapping) and isinstance(document.get("items"), list)


def read_nodes(document: Mapping[str, Any]) -> tuple[Pool, ...]:
    """Return the pool of all nodes that have devices, or none without any. What runs there now is not counted.

    Raises:
        TraceError: they are not nodes.
    """
    try:
        found = [msgspec.convert(item, _Node) for item in document["items"]]
        nodes = tuple(_with_devices(found))
    except (msgspec.ValidationError, ValueError) as error:
        raise TraceError(f"this is not a list of nodes: {error}") from error
    counts = Counter(name for node in nodes for name in node.allocatable if is_extended(name))
    governed = sorted(counts, key=lambda name: (name != GPU, -counts[name], name))
    return (Pool(key=POOL, nodes=nodes, governed=tuple(governed)),) if nodes else ()


def _with_devices(found: list[_Node]) -> Iterator[Node]:
    for node in found:
        allocatable = to_milli(node.status.allocatable)
        if any(amount for name, amount in allocatable.items() if is_extended(name)):
            yield Node(
                name=node.metadata.name,
                allocatable=allocatable,
                labels=node.metadata.labels,
                taints=node.spec.taints,
                usable=not node.spec.unschedulable,
            )
