"""Time of day, monotonic time and sleep behind one interface, so that tests control them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Final, Protocol


class Clock(Protocol):
    """Source of time."""

    def time(self) -> float:
        """Return the time of day in seconds since the epoch."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for durations."""

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""


class SystemClock:
    """Clock of the machine and the running event loop."""

    def time(self) -> float:
        """Return the time of day in seconds since the epoch."""
        return time.time()

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        await asyncio.sleep(seconds)


SYSTEM_CLOCK: Final = SystemClock()
"""Clock of the controllers, which tests replace."""


class SteadyClock:
    """Clock whose time of day advances evenly when the machine's clock is set, until `follow_wall` is called."""

    def __init__(self, wall: Clock = SYSTEM_CLOCK) -> None:
        self._wall = wall
        self.follow_wall()

    def time(self) -> float:
        """Return the time of day in seconds since the epoch."""
        return self._wall.monotonic() + self._offset

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return self._wall.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        await self._wall.sleep(seconds)

    def follow_wall(self) -> None:
        """Follow the machine's clock again."""
        self._offset = self._wall.time() - self._wall.monotonic()
