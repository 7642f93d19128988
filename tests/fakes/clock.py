"""Clocks for tests of waiting code. No test really waits."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

ORIGIN: Final = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeClock:
    """`vkgateway.kube.clock.Clock` whose time passes only in sleep. `sleeps` records the durations."""

    def __init__(self, seconds: float = 0.0, *, origin: datetime = ORIGIN) -> None:
        self.seconds = seconds
        self.sleeps: list[float] = []
        self._origin = origin

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return self._origin + timedelta(seconds=self.seconds)

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.sleeps.append(seconds)
        await asyncio.sleep(0)
