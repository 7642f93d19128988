"""Clocks: seconds since the epoch, or seconds that no setting of the machine's clock changes."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Returns the time in seconds when called."""

    def __call__(self) -> float:
        """Return the time now."""


class SteadyClock:
    """Seconds since the epoch that advance evenly when the machine's clock is set, until `follow_wall` is called."""

    def __init__(self, *, wall: Clock = time.time, even: Clock = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = even
        self._offset = wall() - even()

    def __call__(self) -> float:
        """Return the time now."""
        return self._monotonic() + self._offset

    def follow_wall(self) -> None:
        """Follow the machine's clock again."""
        self._offset = self._wall() - self._monotonic()
