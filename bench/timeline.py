"""Times of each pod's marks, as watches show them, and waiting for marks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from bench.stats import percentile
from vkgateway.api.errors import UnavailableError

Key = tuple[str, str]
"""Place (a tenant, or a namespace of the compute cluster) and name of a pod."""

Mark = Literal["sent", "seen", "admitted", "bound", "ready", "ended", "failed", "deleting", "gone"]

_STALL: Final = 60.0
"""Seconds without progress after which a run is aborted."""

now = time.perf_counter


class Timeline:
    """First time of each mark of each pod, in seconds of `now`. `on_mark` is called once for each."""

    def __init__(self, on_mark: Callable[[Mark, Key], None] | None = None) -> None:
        self._marks: dict[Mark, dict[Key, float]] = {}
        self._last = now()
        self._on_mark = on_mark

    def mark(self, what: Mark, key: Key, when: float | None = None) -> None:
        """Record a mark of a pod. Only the first time counts."""
        times = self._marks.setdefault(what, {})
        self._last = now()
        if key in times:
            return
        times[key] = self._last if when is None else when
        if self._on_mark is not None:
            self._on_mark(what, key)

    def times_of(self, what: Mark) -> Mapping[Key, float]:
        """Return all times of a mark."""
        return self._marks.get(what, {})

    def count_marks(self, what: Mark) -> int:
        """Return the number of pods with the mark."""
        return len(self.times_of(what))

    def drop_pods(self, keys: Iterable[Key]) -> None:
        """Drop pods, such as those of a warm-up."""
        for key in list(keys):
            for marks in self._marks.values():
                marks.pop(key, None)

    def delays(self, start: Mark, end: Mark) -> list[float]:
        """Return the seconds from one mark to another, of pods that have both."""
        begun = self.times_of(start)
        return [when - begun[key] for key, when in self.times_of(end).items() if key in begun]

    def time_span(self, start: Mark, end: Mark) -> float:
        """Return the seconds from the first of one mark to the last of another."""
        return max(self.times_of(end).values()) - min(self.times_of(start).values())

    async def wait_for(self, what: Mark, keys: Iterable[Key]) -> None:
        """Wait until the pods have the mark.

        Raises:
            UnavailableError: no pod got any mark for a minute.
        """
        left = set(keys) - self.times_of(what).keys()
        self._last = now()
        while left:
            if now() - self._last > _STALL:
                example = "/".join(next(iter(left)))
                raise UnavailableError(
                    f"{len(left)} pods have no mark {what!r} after {_STALL:.0f} s without progress, such as {example}"
                )
            await asyncio.sleep(0.05)
            left -= self.times_of(what).keys()


def summarize_delays(delays: Iterable[float]) -> tuple[float, float]:
    """Return the 50th and the 99th percentile."""
    values = list(delays)
    return percentile(values, 0.5), percentile(values, 0.99)
