"""Throttle for bursts of expensive work: one piece per iteration of the event loop, so that other work runs between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class LoopThrottle:
    """Queue that runs one piece of work per iteration of the event loop, in the order of submission."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def submit_work(self, work: Callable[[], None]) -> None:
        """Enqueue a piece of work."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._run_next)
