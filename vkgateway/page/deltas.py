"""Differences between two documents, as the page applies them (pure).

A place in the queue that moves changes one field of each row behind it, so of a known row only the changed fields are
sent.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from vkgateway.page.documents import Document, Rows

_Delta = dict[str, dict[str, Any]]


def encode_delta(old: Document, new: Document) -> bytes | None:
    """Return new rows, changed fields and keys of removed rows as JSON; None: only the time changed."""
    added: _Delta = {}
    changed: _Delta = {}
    removed: dict[str, list[str]] = {}
    for name in dict.fromkeys((*new.sections, *old.sections)):
        before, after = old.sections.get(name, {}), new.sections.get(name, {})
        _compare_rows(before, after, added.setdefault(name, {}), changed.setdefault(name, {}))
        removed[name] = [key for key in before if key not in after]
    if old.leading == new.leading and not any((*added.values(), *changed.values(), *removed.values())):
        return None
    delta = {
        "time": new.time,
        "leading": new.leading,
        "set": {name: rows for name, rows in added.items() if rows},
        "change": {name: rows for name, rows in changed.items() if rows},
        "remove": {name: keys for name, keys in removed.items() if keys},
    }
    return msgspec.json.encode(delta)


def _compare_rows(before: Rows, after: Rows, added: dict[str, Any], changed: dict[str, Any]) -> None:
    for key, row in after.items():
        known = before.get(key)
        if known is row:
            continue
        if known is None or type(known) is not type(row):
            added[key] = row
        elif fields := _changed_fields(known, row):
            changed[key] = fields


def _changed_fields(old: msgspec.Struct, new: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a row that differ, by their encoded names."""
    return {
        encoded: value
        for name, encoded in _field_names(type(new))
        if (value := getattr(new, name)) != getattr(old, name)
    }


@cache
def _field_names(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Return the names of the fields of a row in Python and in JSON."""
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))
