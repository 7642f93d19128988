"""Run limits of pools: durations, and errors in the settings. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vkgateway.api.types import Pool

MAX_SECONDS: Final = 366 * 86400.0
"""A longer duration than this, in seconds, is considered a mistake."""
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?", re.ASCII)
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(d|h|ms|m|s)", re.ASCII)
_SECONDS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse_duration(text: str) -> float:
    """Return seconds for `90m`, `1h30m`, `2d` or a plain number of seconds.

    Raises:
        ValueError: The text is not a duration, zero, or longer than a year; the message says which.
    """
    plain = text.strip()
    seconds = float(plain) if _NUMBER.fullmatch(plain) else _sum_parts(plain)
    if not seconds or seconds > MAX_SECONDS:
        raise ValueError("is longer than a year" if seconds else "is not a duration")
    return seconds


def _sum_parts(text: str) -> float:
    parts = _PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return 0.0
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def render_duration(seconds: float) -> str:
    """Return a duration exactly, in the form that `parse_duration` reads: `72h`, `1h30m`, `20s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number:.6g}{unit}" for number, unit in parts if number) or "0s"


def default_limits(pool: Pool) -> dict[str, float]:
    """Return a pool's enforced default limits in seconds by band, without invalid ones (see `run_limit_problems`)."""
    limits: dict[str, float] = {}
    for band, text in _declared(pool) if pool.enforce_run_limits else ():
        try:
            limits[band] = parse_duration(text)
        except ValueError:
            continue
    return limits


def run_limit_problems(pool: Pool) -> Iterator[str]:
    """Yield the errors in these settings of a pool. API servers reject such pools if the CRD is up to date."""
    for band, text in _declared(pool):
        try:
            parse_duration(text)
        except ValueError as error:
            yield (
                f"pool {pool.name!r}: defaultRunLimits.{band} {text!r} {error}; use a value like 12h, 1h30m, 2d, or a "
                "number of seconds"
            )
    if any(_declared(pool)) and not pool.enforce_run_limits:
        yield (
            f"pool {pool.name!r}: defaultRunLimits has no effect while enforceRunLimits is false; set enforceRunLimits "
            "to true, or remove defaultRunLimits"
        )


def _declared(pool: Pool) -> Iterator[tuple[str, str]]:
    limits = pool.default_run_limits
    return ((band, text) for band, text in (("guaranteed", limits.guaranteed), ("low", limits.low)) if text)
