"""What a virtual node's Node object should look like next, given what the tenant's API server holds. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from vkgateway.api.objects import Condition, Object, Taint, set_condition
from vkgateway.api.quantity import parse_quantity
from vkgateway.api.times import render_time
from vkgateway.scheduler.governed import CORDON_TAINT

_CONDITION_TAINT_PREFIX = "node.kubernetes.io/"
_CONDITION_TIMES = frozenset(("lastHeartbeatTime", "lastTransitionTime"))
_QUANTITY_FIELDS: Final = frozenset(("capacity", "allocatable"))
_UNDECLARED_FIELD: Final = re.compile(r"\.status\.(\w+)[^\n]*?: field not declared in schema")
"""Error of server-side apply for a field that the server's release does not know."""


@dataclass(frozen=True, slots=True)
class ApplyDocuments:
    """The two documents of a server-side apply: the object and its status."""

    main: Object
    status: Object


def without_times(node: Mapping[str, Any]) -> Object:
    """Return the Node without the times of its conditions, for comparisons."""
    status = node.get("status", {})
    entries = [
        {key: value for key, value in entry.items() if key not in _CONDITION_TIMES}
        for entry in status.get("conditions", ())
    ]
    return {**node, "status": {**status, "conditions": entries}}


def build_documents(wanted: Mapping[str, Any], current: Mapping[str, Any] | None, *, now: datetime) -> ApplyDocuments:
    """Return the documents for server-side apply. The times of conditions in `wanted` are ignored.

    A transition time stays while `current` has the same status. The heartbeat time is `now`.
    """
    identity = {"apiVersion": "v1", "kind": "Node"}
    metadata = wanted["metadata"]
    status = dict(wanted.get("status", {}))
    status["conditions"] = stamp_conditions(status.get("conditions", ()), _current_conditions(current), now=now)
    main = {**identity, "metadata": metadata, "spec": wanted.get("spec", {})}
    return ApplyDocuments(main, {**identity, "metadata": {"name": metadata["name"]}, "status": status})


def undeclared_fields(refusal: str) -> frozenset[str]:
    """Return the status fields that an API server does not know. Other than apply, writes would drop them silently."""
    return frozenset(_UNDECLARED_FIELD.findall(refusal))


def without_fields(node: Mapping[str, Any], fields: Collection[str]) -> Object:
    """Return the Node without some fields of its status."""
    status = node.get("status", {})
    return {**node, "status": {key: value for key, value in status.items() if key not in fields}}


def labels_and_taints(node: Mapping[str, Any]) -> tuple[dict[str, str], tuple[Taint, ...]]:
    """Return the labels of a Node and the taints that users set, including a cordon.

    Taints that Kubernetes derives from conditions are skipped.
    """
    spec = node.get("spec") or {}
    taints = msgspec.convert(spec.get("taints") or (), tuple[Taint, ...])
    taints = tuple(taint for taint in taints if not taint.key.startswith(_CONDITION_TAINT_PREFIX))
    return dict(node["metadata"].get("labels") or {}), (*taints, CORDON_TAINT) if spec.get("unschedulable") else taints


def stamp_conditions(wanted: Any, current: Any, *, now: datetime) -> list[Object]:
    """Return the wanted conditions with heartbeat and transition times."""
    before = msgspec.convert(list(current), list[Condition])
    placed = []
    for entry in msgspec.convert(list(wanted), list[Condition]):
        new = msgspec.structs.replace(entry, last_heartbeat_time=render_time(now))
        merged = set_condition(before, new, now=now)
        placed.append(next(found for found in merged if found.type == new.type))
    return [msgspec.to_builtins(entry) for entry in placed]


def _current_conditions(node: Mapping[str, Any] | None) -> Any:
    return (node or {}).get("status", {}).get("conditions") or ()


def project_node(node: Mapping[str, Any], wanted: Mapping[str, Any]) -> Object:
    """Return the fields of a Node that `wanted` contains, to detect changes of other clients.

    The server normalizes some values (quantities), so only its responses are comparable with each other. To compare a
    Node with `wanted`, use `matches_wanted`.
    """
    projection: Object = _project_value({key: node.get(key) for key in ("metadata", "spec", "status")}, wanted)
    return projection


def matches_wanted(node: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a Node has all wanted fields. Quantities are compared by value."""
    return _parse_quantities(project_node(node, wanted)) == _parse_quantities(project_node(wanted, wanted))


def _parse_quantities(node: Object) -> Object:
    status = dict(node.get("status") or {})
    for name in _QUANTITY_FIELDS & status.keys():
        status[name] = {resource: parse_quantity(amount) for resource, amount in (status[name] or {}).items() if amount}
    return {**node, "status": status}


def _project_value(value: Any, shape: Any) -> Any:
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        return {key: _project_value(value.get(key), part) for key, part in shape.items()}
    if _is_conditions(shape) and isinstance(value, list):
        by_type = {entry.get("type"): entry for entry in value}
        return [_project_value(by_type.get(part["type"]), part) for part in shape]
    return value


def _is_conditions(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and all(
        isinstance(part, Mapping) and "type" in part and "status" in part for part in shape
    )
