"""Work that is dear and comes in crowds: a piece in each turn of the event loop, so that others come between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class LoopThrottle:
    """Does one piece of work in each turn of the running loop, in the order of asking."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def submit_work(self, work: Callable[[], None]) -> None:
        """Have it done when its turn comes."""
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
