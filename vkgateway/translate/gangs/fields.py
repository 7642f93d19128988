"""Fields of an object that a tenant wrote, read by type, with the field's path in each complaint.

Tenants define their own kinds, so nothing vouches for what stands in an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vkgateway.model.objects import Object
from vkgateway.translate.gangs.mark_values import MAX_PODS
from vkgateway.translate.gangs.marks import MarkError, Reference

_MAX_ENTRIES: Final = 1000
"""More roles or groups than these are not read for each pod again and again."""


class ObjectFields:
    """An object, or a part of one, with its path. A field that is not there, or null, is empty.

    Its methods raise `MarkError` where a field is of another type than asked for.
    """

    def __init__(self, data: object, *, of: str, path: str) -> None:
        self._suffix = of
        self._path = path
        if data is not None and not isinstance(data, Mapping):
            raise MarkError(f"{path}{of}", data, "is no object", way_out="write fields there, or leave it out")
        self._data: Mapping[str, Any] = data or {}

    @classmethod
    def of_metadata(cls, found: Object, reference: Reference) -> ObjectFields:
        """An object's metadata."""
        return cls(found.get("metadata"), of=f" of {reference}", path="metadata")

    @classmethod
    def of_spec(cls, found: Object, reference: Reference) -> ObjectFields:
        """An object's spec."""
        return cls(found.get("spec"), of=f" of {reference}", path="spec")

    @classmethod
    def of_status(cls, found: Object, reference: Reference) -> ObjectFields:
        """An object's status."""
        return cls(found.get("status"), of=f" of {reference}", path="status")

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def field_path(self, name: str) -> str:
        """What a field is called in messages."""
        return f"{self._path}.{name}{self._suffix}"

    def get_object(self, name: str) -> ObjectFields:
        """The fields of a field."""
        return ObjectFields(self._data.get(name), of=self._suffix, path=f"{self._path}.{name}")

    def fields_by_name(self) -> dict[str, ObjectFields]:
        """The fields of each field, sorted by name."""
        self._check_size(self._path, len(self._data))
        return {name: self.get_object(name) for name in sorted(self._data)}

    def get_entries(self, name: str) -> list[ObjectFields]:
        """The fields of each entry of a list."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, list):
            raise MarkError(self.field_path(name), value, "is no list", way_out="write a list there, or leave it out")
        self._check_size(f"{self._path}.{name}", len(value or ()))
        return [
            ObjectFields(entry, of=self._suffix, path=f"{self._path}.{name}[{index}]")
            for index, entry in enumerate(value or ())
        ]

    def get_counts(self) -> dict[str, int]:
        """All fields as numbers of pods, sorted by name, without those that are 0."""
        self._check_size(self._path, len(self._data))
        numbers = {name: self.get_count(name, missing=0) for name in sorted(self._data)}
        return {name: number for name, number in numbers.items() if number}

    def get_count(self, name: str, *, missing: int) -> int:
        """A number of pods, from 0 to `MOST`."""
        value = self._data.get(name)
        if value is None:
            return missing
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PODS:
            way_out = f"write a whole number from 0 to {MAX_PODS}"
            raise MarkError(self.field_path(name), value, "is no number of pods", way_out=way_out)
        return value

    def get_limit(self, name: str) -> int:
        """An upper bound on a number of pods; not given, or above `MOST`: `MOST`."""
        value = self._data.get(name)
        above = isinstance(value, int) and not isinstance(value, bool) and value > MAX_PODS
        return MAX_PODS if above else self.get_count(name, missing=MAX_PODS)

    def get_seconds(self, name: str) -> float | None:
        """A number of seconds; None where it is not given."""
        value = self._data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            way_out = "write a whole number"
            raise MarkError(self.field_path(name), value, "is no number of seconds", way_out=way_out)
        return float(value)

    def get_text(self, name: str) -> str:
        """A text; empty where it is not given."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, str):
            raise MarkError(self.field_path(name), value, "is no text", way_out="write a text there, or leave it out")
        return value or ""

    def is_true(self, name: str) -> bool:
        """Whether a field is true."""
        return self._data.get(name) is True

    def is_object(self, name: str) -> bool:
        """Whether a field has fields of its own."""
        return isinstance(self._data.get(name), Mapping)

    def _check_size(self, path: str, size: int) -> None:
        if size > _MAX_ENTRIES:
            way_out = f"write at most {_MAX_ENTRIES}"
            raise MarkError(f"{path}{self._suffix}", f"{size} entries", "are too many", way_out=way_out)
