"""Patch formats of the Kubernetes API, as far as tests need them."""

from __future__ import annotations

import copy
from typing import Any

Document = dict[str, Any]

_MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "ownerReferences": "uid",
    "hostAliases": "ip",
    "hostIPs": "ip",
    "podIPs": "ip",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
}
_SETS = {"finalizers"}


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result


def apply_strategic_patch(target: Any, patch: Any) -> Any:
    """Apply a strategic merge patch with the merge keys of pods, nodes and metadata. Other lists are replaced."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            left = [entry for entry in result.pop(field, []) if entry not in value]
            result |= {field: left} if left else {}
        elif key.startswith("$setElementOrder/") or key == "$patch":
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list) and key in _MERGE_KEYS:
            result[key] = _merge_list(result.get(key) or [], value, _MERGE_KEYS[key])
        elif isinstance(value, list) and key in _SETS:
            old = result.get(key) or []
            result[key] = old + [entry for entry in value if entry not in old]
        else:
            result[key] = apply_strategic_patch(result.get(key), value)
    return result


def _merge_list(target: list[Document], patch: list[Document], merge_key: str) -> list[Document]:
    result = {entry.get(merge_key): entry for entry in target}
    if {"$patch": "replace"} in patch:
        result = {}
        patch = [entry for entry in patch if "$patch" not in entry]
    for entry in patch:
        name = entry.get(merge_key)
        if entry.get("$patch") == "delete":
            result.pop(name, None)
        else:
            result[name] = apply_strategic_patch(result.get(name), entry)
    return list(result.values())


def apply_json_patch(target: Document, operations: list[Document]) -> Document:
    """Apply a JSON patch (RFC 6902) with add, remove, replace and test.

    Raises:
        ValueError: an operation cannot be applied.
    """
    result = copy.deepcopy(target)
    for operation in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        parent: Any = result
        try:
            for part in parts[:-1]:
                parent = parent[int(part)] if isinstance(parent, list) else parent[part]
            _apply(parent, parts[-1], operation)
        except (KeyError, IndexError) as error:
            raise ValueError(f"{operation['op']} {operation['path']}: no such place") from error
    return result


def _apply(parent: Any, last: str, operation: Document) -> None:
    kind = operation["op"]
    place: Any = last
    if isinstance(parent, list):
        place = len(parent) if last == "-" else int(last)
    if kind == "remove":
        del parent[place]
    elif kind == "test":
        if parent[place] != operation["value"]:
            raise ValueError(f"test {operation['path']}: the value differs")
    elif kind == "add" and isinstance(parent, list):
        parent.insert(place, operation["value"])
    elif kind == "replace" and isinstance(parent, dict) and place not in parent:
        raise KeyError(place)
    else:
        parent[place] = operation["value"]
