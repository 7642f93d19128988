"""Ages in the short form of kubectl."""

from __future__ import annotations

import datetime

from vkgateway.api import times

_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def format_age(timestamp: str | None, *, now: datetime.datetime | None = None) -> str:
    """Return the age of an RFC 3339 timestamp as `45s`, `12m`, `3h` or `9d`; empty without a timestamp."""
    if not timestamp:
        return ""
    now = now or datetime.datetime.now(datetime.UTC)
    seconds = max(0, int((now - times.parse_time(timestamp)).total_seconds()))
    # Like kubectl: the finer unit up to two of the coarser unit, such as 119m, then 2h.
    return next((f"{seconds // size}{unit}" for unit, size in _UNITS if seconds >= 2 * size), f"{seconds}s")
