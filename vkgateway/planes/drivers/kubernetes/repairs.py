"""Delays of repairs, so that a client that reverts every repair causes no loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vkgateway.kube.backoff import Backoff

_QUIET_SECONDS = 120.0
"""Time without a change after which the next repair is not delayed."""


class RepairThrottle:
    """Calls `repair` for each subject that needs it: at once, and after repeated changes with increasing delays."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff(base=2.0, cap=60.0)
        self._repairs: dict[str, tuple[int, float]] = {}
        """Number of repairs in a row, and the time of the last one in seconds of the event loop's clock."""
        self._waiting: dict[str, asyncio.TimerHandle] = {}

    def request(self, subject: str, repair: Callable[[], None]) -> None:
        """Call `repair` now or later; requests for a subject that waits for its repair are covered by that."""
        if subject in self._waiting:
            return
        loop = asyncio.get_running_loop()
        count, last = self._repairs.get(subject, (0, 0.0))
        if not count or loop.time() - last >= _QUIET_SECONDS:
            self._run(subject, repair, count=1)
            return
        due = max(loop.time(), last + self._backoff.delay_after(count))
        self._waiting[subject] = loop.call_at(due, lambda: self._run(subject, repair, count=count + 1))

    def close(self) -> None:
        """Drop the repairs that wait."""
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    def _run(self, subject: str, repair: Callable[[], None], *, count: int) -> None:
        self._waiting.pop(subject, None)
        now = asyncio.get_running_loop().time()
        self._repairs = {key: one for key, one in self._repairs.items() if now - one[1] < _QUIET_SECONDS}
        self._repairs[subject] = count, now
        repair()
