"""How long to wait: before trying again (exponential, jittered, bounded), and so that not all do a thing at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

Random = Callable[[], float]
"""Gives a number in [0, 1)."""


def add_jitter(seconds: float) -> float:
    """So many seconds at least and less than twice that, drawn by lot: work of many that begin together comes apart."""
    return seconds * (1 + random.random())  # noqa: S311 - nobody gains by guessing it


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits in seconds: `base` doubled with each failure up to `cap`, of which the upper half is drawn by
    lot.
    """

    base: float
    cap: float
    random: Random = random.random

    def delay_after(self, failures: int, *, at_least: float | None = None) -> float:
        """The wait after that many failures in a row (the first is 1); never less than a server asked for."""
        # Past 2**30 the cap holds anyway, and floats need not overflow.
        whole = min(self.cap, self.base * 2.0 ** min(max(failures - 1, 0), 30))
        delay = whole * (0.5 + self.random() / 2)
        return max(delay, at_least) if at_least is not None else delay
