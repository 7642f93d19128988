"""Time of day, monotonic time and sleep behind one interface, so that tests control them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Final, Protocol


class Clock(Protocol):
    """Source of time."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for durations."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""


class SystemClock:
    """Clock of the machine and the running event loop."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        await asyncio.sleep(seconds)


SYSTEM_CLOCK: Final = SystemClock()
