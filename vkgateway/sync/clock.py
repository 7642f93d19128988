"""Sources of time in seconds: since the epoch, or monotonic."""

from __future__ import annotations

import time
from typing import Protocol


class TimeSource(Protocol):
    """Function that returns the time in seconds."""

    def __call__(self) -> float:
        """Return the time now."""


class SteadyClock:
    """Seconds since the epoch that advance evenly when the machine's clock is set, until `follow_wall` is called."""

    def __init__(self, *, wall: TimeSource = time.time, even: TimeSource = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = even
        self._offset = wall() - even()

    def __call__(self) -> float:
        """Return the time now."""
        return self._monotonic() + self._offset

    def follow_wall(self) -> None:
        """Follow the machine's clock again."""
        self._offset = self._wall() - self._monotonic()
