"""What a virtual node's Node object should look like next, given what the tenant's API server holds. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from vkgateway.model.objects import Condition, Object, Taint, set_condition
from vkgateway.model.quantity import parse_quantity
from vkgateway.model.times import render_time
from vkgateway.translate.governed import CORDON_TAINT

_CONDITION_TAINT_PREFIX = "node.kubernetes.io/"
_CONDITION_TIMES = frozenset(("lastHeartbeatTime", "lastTransitionTime"))
_QUANTITY_FIELDS: Final = frozenset(("capacity", "allocatable"))
_UNDECLARED_FIELD: Final = re.compile(r"\.status\.(\w+)[^\n]*?: field not declared in schema")
"""How server-side apply refuses a field that the server's release does not have yet."""


@dataclass(frozen=True, slots=True)
class ApplyDocuments:
    """The two documents to apply on the server: the object itself, and its status."""

    main: Object
    status: Object


def without_times(node: Mapping[str, Any]) -> Object:
    """The Node without the times in its conditions, so that two of them differ only where they say different things."""
    status = node.get("status", {})
    entries = [
        {key: value for key, value in entry.items() if key not in _CONDITION_TIMES}
        for entry in status.get("conditions", ())
    ]
    return {**node, "status": {**status, "conditions": entries}}


def build_documents(wanted: Mapping[str, Any], current: Mapping[str, Any] | None, *, now: datetime) -> ApplyDocuments:
    """Documents for server-side apply. Conditions get their times here; those that `wanted` has are not looked at.

    A transition time is kept as long as `current` shows the same status; the heartbeat is `now`.
    """
    identity = {"apiVersion": "v1", "kind": "Node"}
    metadata = wanted["metadata"]
    status = dict(wanted.get("status", {}))
    status["conditions"] = stamp_conditions(status.get("conditions", ()), _current_conditions(current), now=now)
    main = {**identity, "metadata": metadata, "spec": wanted.get("spec", {})}
    return ApplyDocuments(main, {**identity, "metadata": {"name": metadata["name"]}, "status": status})


def undeclared_fields(refusal: str) -> frozenset[str]:
    """The fields of the status that an API server says it does not know; elsewhere it would leave them out itself."""
    return frozenset(_UNDECLARED_FIELD.findall(refusal))


def without_fields(node: Mapping[str, Any], fields: Collection[str]) -> Object:
    """The Node without these fields of its status."""
    status = node.get("status", {})
    return {**node, "status": {key: value for key, value in status.items() if key not in fields}}


def labels_and_taints(node: Mapping[str, Any]) -> tuple[dict[str, str], tuple[Taint, ...]]:
    """The labels of a Node, and the taints that people put on it; a cordon is one of them.

    Those that Kubernetes sets by conditions are left out: they say what our own conditions say.
    """
    spec = node.get("spec") or {}
    taints = msgspec.convert(spec.get("taints") or (), tuple[Taint, ...])
    kept = tuple(taint for taint in taints if not taint.key.startswith(_CONDITION_TAINT_PREFIX))
    return dict(node["metadata"].get("labels") or {}), (*kept, CORDON_TAINT) if spec.get("unschedulable") else kept


def stamp_conditions(wanted: Any, current: Any, *, now: datetime) -> list[Object]:
    """The wanted conditions, and only those, with heartbeat and transition times."""
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
    """The part of a Node that `wanted` speaks of, as the server tells it: to see whether somebody changed it.

    The server writes some values in its own way (quantities), so its answers are compared with each other; with what
    was sent `matches_wanted` compares them.
    """
    seen: Object = _project_value({key: node.get(key) for key in ("metadata", "spec", "status")}, wanted)
    return seen


def matches_wanted(node: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a Node holds all that is wanted, quantities in whatever way they are written."""
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
