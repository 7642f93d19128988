"""Past share: what a tenant used of a pool beyond its guarantee, as a decayed average. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAST_HALF_LIFE: Final = 60.0
MOST_HALF_LIFE: Final = 90 * 86_400.0
"""Limits of a half-life in seconds. Below a minute, the order would change while a gang starts. Usage older than three
months is not stored, so a longer half-life could not hold.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastShare:
    """Decayed average of a tenant's dominant share of a pool beyond its guarantee, before the division by the weight.

    With the half-life H, the average at a time t is (ln 2 / H) times the integral over s < t of
    share(s) * 2^(-(t - s) / H). A constant share is its own average; an unused share halves within each half-life.
    The share is constant between changes. So this value holds for all times from `at` until the share changes.
    """

    tenant: str
    pool: tuple[str, str]
    """Key of the pool."""
    average: float
    """The average at the time `at`, 0 to 1."""
    share: float
    """The share since `at`, 0 to 1."""
    at: float
    """Time in seconds since the epoch."""

    def average_at(self, now: float, half_life: float) -> float:
        """Return the average at a time, in seconds since the epoch, if the share has not changed until then."""
        kept = decay(now - self.at, half_life)
        return self.average * kept + self.share * (1.0 - kept)


def decay(seconds: float, half_life: float) -> float:
    """Return the part of a past share that is left after some seconds; all of it for a negative number."""
    return float(2.0 ** (-max(0.0, seconds) / half_life)) if half_life > 0 else 0.0


def half_life_problem(seconds: float) -> str:
    """Return what is wrong with a half-life in seconds; empty: nothing. 0 means that the past does not count."""
    if seconds and not LEAST_HALF_LIFE <= seconds <= MOST_HALF_LIFE:
        return "is not a half-life from 1m to 90d"
    return ""
