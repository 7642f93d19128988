"""UTC days and months, and intervals split at midnight (pure). Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Final

DAY_SECONDS: Final = 86_400
"""Seconds of a UTC day: the epoch counts no leap seconds."""


def day_of(moment: float) -> str:
    """Return the UTC day of a time, such as `2026-11-26`."""
    return _day_name(int(moment // DAY_SECONDS))


def month_of(moment: float) -> str:
    """Return the UTC month of a time, such as `2026-11`."""
    return day_of(moment)[:7]


def split_days(start: float, end: float) -> Iterator[tuple[str, float, float]]:
    """Yield the UTC days of an interval, each with the start and the end of its part."""
    number = int(start // DAY_SECONDS)
    if start < end <= (number + 1) * DAY_SECONDS:  # almost always
        yield _day_name(number), start, end
        return
    while start < end:
        number = int(start // DAY_SECONDS)
        last = min(end, float((number + 1) * DAY_SECONDS))
        yield _day_name(number), start, last
        start = last


def last_days(now: float, count: int) -> list[str]:
    """Return the last UTC days, today included, the oldest first."""
    today = int(now // DAY_SECONDS)
    return [_day_name(number) for number in range(today - count + 1, today + 1)]


def months_before(month: str, count: int) -> str:
    """Return the month that is `count` months before a month."""
    number = int(month[:4]) * 12 + int(month[5:7]) - 1 - count
    return f"{number // 12:04}-{number % 12 + 1:02}"


def month_start(month: str) -> float:
    """Return when a UTC month begins."""
    return datetime.fromisoformat(f"{month}-01").replace(tzinfo=UTC).timestamp()


def day_start(day: str) -> float:
    """Return when a UTC day begins."""
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def month_text(month: str) -> str:
    """Return a month for people, such as `November 2026`."""
    return date.fromisoformat(f"{month}-01").strftime("%B %Y")


def next_month_text(month: str) -> str:
    """Return the first day after a month for people, such as `1 December 2026`."""
    return f"1 {month_text(months_before(month, -1))}"


@lru_cache(maxsize=256)
def _day_name(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_SECONDS, UTC).date().isoformat()
