"""Ends what is awaited for too long, by one timer for all: one for each costs a request a fifth of its CPU."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


class Deadlines:
    """The futures that are awaited, and when each is given up. Not for several event loops."""

    def __init__(self) -> None:
        self._due: dict[asyncio.Future[object], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0
        """When the timer goes off, in the loop's time."""

    async def wait(self, future: asyncio.Future[T], *, until: float) -> T:
        """What a future gets; raises TimeoutError once the loop's time is `until`."""
        waited: asyncio.Future[object] = future  # type: ignore[assignment] # nothing but its end is looked at
        self._due[waited] = until
        if self._timer is None or until < self._fires_at:
            self._arm_timer(until)
        try:
            return await future
        finally:
            del self._due[waited]

    def close(self) -> None:
        """Let go of the timer; what is awaited still is not given up any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm_timer(self, when: float) -> None:
        self.close()
        self._fires_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._expire_due)

    def _expire_due(self) -> None:
        self._timer = None
        # A loop's timers are as coarse as milliseconds, and may go off as much too early.
        now = asyncio.get_running_loop().time() + 0.001
        for future, due in self._due.items():
            if due <= now and not future.done():
                future.set_exception(TimeoutError())
        left = [due for due in self._due.values() if due > now]
        if left:
            self._arm_timer(min(left))
