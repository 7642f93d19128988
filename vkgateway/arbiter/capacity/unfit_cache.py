"""Gangs that were found not to fit, until capacity is freed."""

from __future__ import annotations

from typing import NamedTuple

_MAX_KEYS = 4096


class UnfitMark(NamedTuple):
    """State that `undo` returns to."""

    additions: int
    version: int


class UnfitCache:
    """Keys of what did not fit. A key is valid until capacity is freed; changes can be undone."""

    def __init__(self) -> None:
        self.version = 0
        """Grows when capacity is freed. What did not fit still does not fit while the version is unchanged."""
        self._last_version = 0
        self._version_by_key: dict[object, int] = {}
        self._additions: list[object] = []

    def __contains__(self, key: object) -> bool:
        return self._version_by_key.get(key) == self.version

    def add(self, key: object) -> None:
        """Remember that this does not fit; `undo` drops what was added since the mark."""
        if len(self._version_by_key) >= _MAX_KEYS:
            self._version_by_key.clear()
        self._version_by_key[key] = self.version
        self._additions.append(key)

    def note_freed(self) -> None:
        """Invalidate all keys, because capacity was freed."""
        # A version is never reused, not even after an undo: entries of that version describe another state.
        self._last_version += 1
        self.version = self._last_version

    def mark(self) -> UnfitMark:
        """Return a mark for `undo`."""
        return UnfitMark(len(self._additions), self.version)

    def undo(self, mark: UnfitMark) -> None:
        """Undo all changes since the mark, which stays valid."""
        while len(self._additions) > mark.additions:
            self._version_by_key.pop(self._additions.pop(), None)
        self.version = mark.version

    def forget_marks(self) -> None:
        """Keep all changes so far: all marks become invalid."""
        self._additions.clear()
