"""Managed fields of applied objects, as far as tests need them: lists are atomic, and only appliers have an entry."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

_NEVER_OWNED = {"name", "namespace", "uid", "resourceVersion", "managedFields"}


def after_apply(stored: Document | None, applied: Document, *, manager: str) -> list[Document]:
    """Return the entries after `manager` applied a document."""
    entries = [entry for entry in _entries(stored) if entry["manager"] != manager]
    owned = {key: value for key, value in applied.items() if key not in ("apiVersion", "kind")}
    metadata = {key: value for key, value in applied.get("metadata", {}).items() if key not in _NEVER_OWNED}
    fields = _fields(owned | {"metadata": metadata})
    return [*entries, {"manager": manager, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields}]


def after_update(stored: Document, changed: Document) -> list[Document]:
    """Return the entries after another client changed an object: it takes over the fields with other values."""
    return [entry | {"fieldsV1": _unchanged(entry["fieldsV1"], stored, changed)} for entry in _entries(stored)]


def _entries(document: Document | None) -> list[Document]:
    return document["metadata"].get("managedFields", []) if document is not None else []


def _fields(document: Document) -> Document:
    return {f"f:{key}": _fields(value) if isinstance(value, dict) else {} for key, value in document.items()}


def _unchanged(fields: Document, stored: Any, changed: Any) -> Document:
    left: Document = {}
    for field, below in fields.items():
        key = field.removeprefix("f:")
        before = stored.get(key) if isinstance(stored, dict) else None
        after = changed.get(key) if isinstance(changed, dict) else None
        if below and (rest := _unchanged(below, before, after)):
            left[field] = rest
        elif not below and before == after:
            left[field] = {}
    return left
