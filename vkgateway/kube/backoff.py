"""Delays: exponential back-off with jitter and a cap, and jitter that spreads periodic work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from vkgateway.kube.errors import ApiError

T = TypeVar("T")

Random = Callable[[], float]
"""Returns a number in [0, 1)."""


def add_jitter(seconds: float) -> float:
    """Return a random duration between `seconds` and twice that, to spread work that starts at the same time."""
    return seconds * (1 + random.random())  # noqa: S311 - jitter is not a secret


def random_part(seconds: float) -> float:
    """Return a random duration of at most `seconds`, for the first run of periodic work that starts together."""
    return seconds * random.random()  # noqa: S311 - jitter is not a secret


def vary_slightly(seconds: float) -> float:
    """Return a random duration within a tenth of `seconds`, so that periodic work does not stay in step."""
    return seconds * (0.9 + 0.2 * random.random())  # noqa: S311 - jitter is not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential back-off: `base` seconds, doubled by each failure up to `cap`; the upper half is random."""

    base: float
    cap: float
    random: Random = random.random

    def delay_after(self, failures: int, *, at_least: float | None = None) -> float:
        """Return the delay after a number of consecutive failures (1 for the first), at least `at_least` seconds."""
        # The exponent is bounded to avoid a float overflow. The cap applies long before.
        full_delay = min(self.cap, self.base * 2.0 ** min(max(failures - 1, 0), 30))
        delay = full_delay * (0.5 + self.random() / 2)
        return max(delay, at_least) if at_least is not None else delay


_REQUESTS = Backoff(base=0.5, cap=30.0)


async def retry_requests(attempt: Callable[[], Awaitable[T]], *, report: Callable[[ApiError], None]) -> T:
    """Return the result of `attempt`, repeated with back-off after each ApiError, which `report` logs."""
    failures = 0
    while True:
        try:
            return await attempt()
        except ApiError as error:
            failures += 1
            report(error)
        await asyncio.sleep(_REQUESTS.delay_after(failures))
