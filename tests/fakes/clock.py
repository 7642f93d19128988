"""Clocks for tests of code that waits or depends on the time."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from vkgateway.kube.clock import SystemClock

ORIGIN: Final = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
EPOCH: Final = datetime.fromtimestamp(0, UTC)


class FakeClock:
    """`vkgateway.kube.clock.Clock` whose time passes only in sleep. `sleeps` records the durations.

    The time of day is `seconds` after `origin`.
    """

    def __init__(self, seconds: float = 0.0, *, origin: datetime = ORIGIN) -> None:
        self.seconds = seconds
        self.origin = origin
        self.sleeps: list[float] = []

    def time(self) -> float:
        return self.origin.timestamp() + self.seconds

    def now(self) -> datetime:
        return self.origin + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.sleeps.append(seconds)
        await asyncio.sleep(0)


class AdjustedClock(SystemClock):
    """The machine's clock, where `passed` seconds more have passed, and whose time of day is off by `skew` seconds."""

    def __init__(self, *, skew: float = 0.0) -> None:
        self.skew = skew
        self.passed = 0.0

    def time(self) -> float:
        return super().time() + self.passed + self.skew

    def monotonic(self) -> float:
        return super().monotonic() + self.passed
