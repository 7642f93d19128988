"""The time of day, of which nothing but time takes: nobody's notice gets shorter or longer because a clock is set."""

from __future__ import annotations

import time
from collections.abc import Callable


class EvenClock:
    """Seconds since the epoch. It goes on evenly when the machine's clock is set, until it is told to follow."""

    def __init__(self, *, wall: Callable[[], float] = time.time, even: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._even = even
        self._apart = wall() - even()

    def __call__(self) -> float:
        """The time now."""
        return self._even() + self._apart

    def follow(self) -> None:
        """Go by the machine's clock again."""
        self._apart = self._wall() - self._even()
