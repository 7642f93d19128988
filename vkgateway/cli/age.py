"""How long ago something was, in the short form that kubectl uses."""

from __future__ import annotations

import datetime

from vkgateway.model import times

_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def format_age(timestamp: str | None, *, now: datetime.datetime | None = None) -> str:
    """`2026-01-02T03:04:05Z` as `45s`, `12m`, `3h` or `9d` ago; empty for no timestamp."""
    if not timestamp:
        return ""
    now = now or datetime.datetime.now(datetime.UTC)
    seconds = max(0, int((now - times.parse_time(timestamp)).total_seconds()))
    # kubectl keeps the finer unit until two of the coarser one are full: 119m, then 2h.
    return next((f"{seconds // size}{unit}" for unit, size in _UNITS if seconds >= 2 * size), f"{seconds}s")
