"""What a virtual node's Node object should look like next, given what the tenant's API server holds. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from vkgateway.model.objects import Condition, Object, Taint, set_condition
from vkgateway.model.quantity import parse
from vkgateway.model.times import render
from vkgateway.translate.governed import CORDONED

_BY_CONDITION = "node.kubernetes.io/"
_TIMES = frozenset(("lastHeartbeatTime", "lastTransitionTime"))
_AMOUNTS: Final = frozenset(("capacity", "allocatable"))
_UNDECLARED: Final = re.compile(r"\.status\.(\w+)[^\n]*?: field not declared in schema")
"""How server-side apply refuses a field that the server's release does not have yet."""


@dataclass(frozen=True, slots=True)
class Writes:
    """The two documents to apply on the server: the object itself, and its status."""

    main: Object
    status: Object


def timeless(node: Mapping[str, Any]) -> Object:
    """The Node without the times in its conditions, so that two of them differ only where they say different things."""
    status = node.get("status", {})
    entries = [
        {key: value for key, value in entry.items() if key not in _TIMES} for entry in status.get("conditions", ())
    ]
    return {**node, "status": {**status, "conditions": entries}}


def writes(wanted: Mapping[str, Any], current: Mapping[str, Any] | None, *, now: datetime) -> Writes:
    """Documents for server-side apply. Conditions get their times here; those that `wanted` has are not looked at.

    A transition time is kept as long as `current` shows the same status; the heartbeat is `now`.
    """
    identity = {"apiVersion": "v1", "kind": "Node"}
    metadata = wanted["metadata"]
    status = dict(wanted.get("status", {}))
    status["conditions"] = conditions(status.get("conditions", ()), _conditions(current), now=now)
    main = {**identity, "metadata": metadata, "spec": wanted.get("spec", {})}
    return Writes(main, {**identity, "metadata": {"name": metadata["name"]}, "status": status})


def undeclared(refusal: str) -> frozenset[str]:
    """The fields of the status that an API server says it does not know; elsewhere it would leave them out itself."""
    return frozenset(_UNDECLARED.findall(refusal))


def without(node: Mapping[str, Any], fields: Collection[str]) -> Object:
    """The Node without these fields of its status."""
    status = node.get("status", {})
    return {**node, "status": {key: value for key, value in status.items() if key not in fields}}


def reach(node: Mapping[str, Any]) -> tuple[dict[str, str], tuple[Taint, ...]]:
    """The labels of a Node, and the taints that people put on it; a cordon is one of them.

    Those that Kubernetes sets by conditions are left out: they say what our own conditions say.
    """
    spec = node.get("spec") or {}
    taints = msgspec.convert(spec.get("taints") or (), tuple[Taint, ...])
    kept = tuple(taint for taint in taints if not taint.key.startswith(_BY_CONDITION))
    return dict(node["metadata"].get("labels") or {}), (*kept, CORDONED) if spec.get("unschedulable") else kept


def conditions(wanted: Any, current: Any, *, now: datetime) -> list[Object]:
    """The wanted conditions, and only those, with heartbeat and transition times."""
    before = msgspec.convert(list(current), list[Condition])
    placed = []
    for entry in msgspec.convert(list(wanted), list[Condition]):
        new = msgspec.structs.replace(entry, last_heartbeat_time=render(now))
        merged = set_condition(before, new, now=now)
        placed.append(next(found for found in merged if found.type == new.type))
    return [msgspec.to_builtins(entry) for entry in placed]


def _conditions(node: Mapping[str, Any] | None) -> Any:
    return (node or {}).get("status", {}).get("conditions") or ()


def projection(node: Mapping[str, Any], wanted: Mapping[str, Any]) -> Object:
    """The part of a Node that `wanted` speaks of, as the server tells it: to see whether somebody changed it.

    The server writes some values in its own way (quantities), so its answers are compared with each other; with what
    was sent `says` compares them.
    """
    seen: Object = _part({key: node.get(key) for key in ("metadata", "spec", "status")}, wanted)
    return seen


def says(node: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a Node holds all that is wanted, quantities in whatever way they are written."""
    return _in_one_way(projection(node, wanted)) == _in_one_way(projection(wanted, wanted))


def _in_one_way(node: Object) -> Object:
    status = dict(node.get("status") or {})
    for name in _AMOUNTS & status.keys():
        status[name] = {resource: parse(amount) for resource, amount in (status[name] or {}).items() if amount}
    return {**node, "status": status}


def _part(value: Any, shape: Any) -> Any:
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        return {key: _part(value.get(key), part) for key, part in shape.items()}
    if _is_conditions(shape) and isinstance(value, list):
        by_type = {entry.get("type"): entry for entry in value}
        return [_part(by_type.get(part["type"]), part) for part in shape]
    return value


def _is_conditions(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and all(
        isinstance(part, Mapping) and "type" in part and "status" in part for part in shape
    )
