"""Differences between two documents, as the page applies them (pure)."""

from __future__ import annotations

from typing import Any

import msgspec

from vkgateway.page.documents import Document, Sections


def encode_delta(old: Document, new: Document) -> bytes | None:
    """Return the changed rows and the keys of removed ones as JSON; None: only the time changed."""
    changed, removed = _changed_rows(old.sections, new.sections), _removed_keys(old.sections, new.sections)
    if not changed and not removed and old.leading == new.leading:
        return None
    return msgspec.json.encode({"time": new.time, "leading": new.leading, "set": changed, "remove": removed})


def _changed_rows(old: Sections, new: Sections) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, rows in new.items():
        known = old.get(name, {})
        changed = {key: row for key, row in rows.items() if known.get(key) != row}
        if changed:
            found[name] = changed
    return found


def _removed_keys(old: Sections, new: Sections) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, rows in old.items():
        left = new.get(name, {})
        gone = [key for key in rows if key not in left]
        if gone:
            found[name] = gone
    return found
