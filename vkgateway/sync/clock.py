"""The time of day, of which nothing but time takes: nobody's notice gets shorter or longer because a clock is set."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Seconds since the epoch. It goes on evenly when the machine's clock is set, until it is told to follow."""

    def __init__(self, *, wall: Callable[[], float] = time.time, even: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = even
        self._offset = wall() - even()

    def __call__(self) -> float:
        """The time now."""
        return self._monotonic() + self._offset

    def follow_wall(self) -> None:
        """Go by the machine's clock again."""
        self._offset = self._wall() - self._monotonic()
