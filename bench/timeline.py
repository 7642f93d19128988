"""When things happened to each pod, as watches showed it, and waiting until they have happened to all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from bench.stats import percentile
from vkgateway.model.errors import UnavailableError

Key = tuple[str, str]
"""Place (a tenant, or a namespace of the compute cluster) and name of a pod."""

Mark = Literal["sent", "seen", "admitted", "bound", "ready", "ended", "failed", "deleting", "gone"]

_STALL: Final = 60.0
"""Seconds without any progress after which a run is given up."""

now = time.perf_counter


class Timeline:
    """The first time of each mark of each pod, in seconds of `now`; `on_mark` is called with each, once."""

    def __init__(self, on_mark: Callable[[Mark, Key], None] | None = None) -> None:
        self._marks: dict[Mark, dict[Key, float]] = {}
        self._last = now()
        self._on_mark = on_mark

    def mark(self, what: Mark, key: Key, when: float | None = None) -> None:
        """Note that something happened to a pod; only the first time counts."""
        times = self._marks.setdefault(what, {})
        self._last = now()
        if key in times:
            return
        times[key] = self._last if when is None else when
        if self._on_mark is not None:
            self._on_mark(what, key)

    def of(self, what: Mark) -> Mapping[Key, float]:
        """All times of a mark."""
        return self._marks.get(what, {})

    def count(self, what: Mark) -> int:
        """How many pods have the mark."""
        return len(self.of(what))

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget pods, such as those of a warm-up."""
        for key in list(keys):
            for marks in self._marks.values():
                marks.pop(key, None)

    def delays(self, start: Mark, end: Mark) -> list[float]:
        """Seconds from one mark to another, of the pods that have both."""
        begun = self.of(start)
        return [when - begun[key] for key, when in self.of(end).items() if key in begun]

    def span(self, start: Mark, end: Mark) -> float:
        """Seconds from the first of one mark to the last of another."""
        return max(self.of(end).values()) - min(self.of(start).values())

    async def until(self, what: Mark, keys: Iterable[Key]) -> None:
        """Wait until the pods have the mark.

        Raises UnavailableError when for a minute nothing has happened to any pod.
        """
        left = set(keys) - self.of(what).keys()
        self._last = now()
        while left:
            if now() - self._last > _STALL:
                example = "/".join(next(iter(left)))
                raise UnavailableError(f"{len(left)} pods were not {what} for {_STALL:.0f} s, {example} among them")
            await asyncio.sleep(0.05)
            left -= self.of(what).keys()


def summary(delays: Iterable[float]) -> tuple[float, float]:
    """The 50th and the 99th percentile."""
    values = list(delays)
    return percentile(values, 0.5), percentile(values, 0.99)
