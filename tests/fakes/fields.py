"""Removal of fields by path, as API servers drop unknown fields."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any


def without_fields(document: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return a copy of the document without these paths. `[]` means every entry of a list: `spec.volumes[].image`."""
    result = copy.deepcopy(document)
    for path in paths:
        _remove_path(result, path.split("."))
    return result


def _remove_path(part: Any, path: list[str]) -> None:
    if not isinstance(part, dict):
        return
    name, *rest = path
    if not rest:
        part.pop(name, None)
    elif name.endswith("[]"):
        for entry in part.get(name[:-2]) or ():
            _remove_path(entry, rest)
    else:
        _remove_path(part.get(name), rest)
