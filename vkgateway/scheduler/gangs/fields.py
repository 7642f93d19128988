"""Typed access to the fields of an object that a tenant wrote, with the field's path in each error.

Tenants define the CustomResourceDefinitions, so no schema guarantees the type of a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vkgateway.api.objects import Object
from vkgateway.scheduler.gangs.mark_values import MAX_PODS
from vkgateway.scheduler.gangs.marks import MarkError, Reference

_MAX_ENTRIES: Final = 1000
"""Limit of roles or groups, because they are read for each pod."""


class ObjectFields:
    """Object or part of an object, with its path.

    A field that is missing or null is empty.

    The methods raise `MarkError` if a field has another type.
    """

    def __init__(self, data: object, *, of: str, path: str) -> None:
        self._suffix = of
        self._path = path
        if data is not None and not isinstance(data, Mapping):
            raise MarkError(f"{path}{of}", data, "is not an object", remedy="set an object, or remove the field")
        self._data: Mapping[str, Any] = data or {}

    @classmethod
    def of_part(cls, found: Object, part: str, reference: Reference) -> ObjectFields:
        """Return a part of an object, for example its `spec`."""
        return cls(found.get(part), of=f" of {reference}", path=part)

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def field_path(self, name: str) -> str:
        """Return the path of a field for messages."""
        return f"{self._path}.{name}{self._suffix}"

    def get_object(self, name: str) -> ObjectFields:
        """Return the fields of a field."""
        return ObjectFields(self._data.get(name), of=self._suffix, path=f"{self._path}.{name}")

    def fields_by_name(self) -> dict[str, ObjectFields]:
        """Return the fields of each field, sorted by name."""
        self._check_size(self._path, len(self._data))
        return {name: self.get_object(name) for name in sorted(self._data)}

    def get_entries(self, name: str) -> list[ObjectFields]:
        """Return the fields of each entry of a list."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, list):
            raise MarkError(self.field_path(name), value, "is not a list", remedy="set a list, or remove the field")
        self._check_size(f"{self._path}.{name}", len(value or ()))
        return [
            ObjectFields(entry, of=self._suffix, path=f"{self._path}.{name}[{index}]")
            for index, entry in enumerate(value or ())
        ]

    def get_counts(self) -> dict[str, int]:
        """Return all fields as numbers of pods, sorted by name, without zeros."""
        self._check_size(self._path, len(self._data))
        numbers = {name: self.get_count(name, missing=0) for name in sorted(self._data)}
        return {name: number for name, number in numbers.items() if number}

    def get_count(self, name: str, *, missing: int) -> int:
        """Return a number of pods from 0 to `MAX_PODS`, or `missing` if the field is not set."""
        value = self._data.get(name)
        if value is None:
            return missing
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PODS:
            remedy = f"use a whole number from 0 to {MAX_PODS}"
            raise MarkError(self.field_path(name), value, "is not a number of pods", remedy=remedy)
        return value

    def get_limit(self, name: str) -> int:
        """Return an upper bound on a number of pods: at most `MAX_PODS`, which is also the default."""
        value = self._data.get(name)
        above = isinstance(value, int) and not isinstance(value, bool) and value > MAX_PODS
        return MAX_PODS if above else self.get_count(name, missing=MAX_PODS)

    def get_seconds(self, name: str) -> float | None:
        """Return a number of seconds, or None if the field is not set."""
        value = self._data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            remedy = "use a whole number"
            raise MarkError(self.field_path(name), value, "is not a number of seconds", remedy=remedy)
        return float(value)

    def get_text(self, name: str) -> str:
        """Return a string, empty if the field is not set."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, str):
            raise MarkError(self.field_path(name), value, "is not a string", remedy="set a string, or remove the field")
        return value or ""

    def is_true(self, name: str) -> bool:
        """Return whether a field is true."""
        return self._data.get(name) is True

    def is_object(self, name: str) -> bool:
        """Return whether a field is an object."""
        return isinstance(self._data.get(name), Mapping)

    def _check_size(self, path: str, size: int) -> None:
        if size > _MAX_ENTRIES:
            remedy = f"use at most {_MAX_ENTRIES}"
            raise MarkError(f"{path}{self._suffix}", f"{size} entries", "are too many", remedy=remedy)
