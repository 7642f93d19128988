"""Gangs that were found not to fit, until capacity is freed."""

from __future__ import annotations

from vkgateway.scheduler.core.journal import Journal

_MAX_KEYS = 4096


class UnfitCache:
    """Keys of what did not fit. A key is valid until capacity is freed, or until its trial ends."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.version = 0
        """Grows when capacity is freed. What did not fit still does not fit while the version is unchanged."""
        self._last_version = 0
        self._version_by_key: dict[object, int] = {}

    def __contains__(self, key: object) -> bool:
        return self._version_by_key.get(key) == self.version

    def add(self, key: object) -> None:
        """Remember that this does not fit."""
        if len(self._version_by_key) >= _MAX_KEYS:
            self._version_by_key.clear()
        self._version_by_key[key] = self.version
        self._journal.record(self._version_by_key.pop, key, None)

    def note_freed(self) -> None:
        """Invalidate all keys, because capacity was freed."""
        # A version is never reused, not even after an undo: entries of that version describe another state.
        self._journal.record(self._set_version, self.version)
        self._last_version += 1
        self.version = self._last_version

    def _set_version(self, version: int) -> None:
        self.version = version
