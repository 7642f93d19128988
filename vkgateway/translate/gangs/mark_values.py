"""Values of marks: counts, names, durations, times and amounts, read strictly, with the way out in each complaint."""

from __future__ import annotations

import re
from typing import Final

from vkgateway.model import times
from vkgateway.model.names import OBJECT_NAME_MAX
from vkgateway.translate.gangs.marks import MarkError

MAX_PODS: Final = 100_000
"""More pods than this in one gang is taken for a slip."""
MAX_SECONDS: Final = 366 * 86400.0
"""A longer time than this (seconds) is taken for a slip."""

_COUNT: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?", re.ASCII)
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?", re.ASCII)
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(d|h|ms|m|s)", re.ASCII)
_SECONDS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse_count(mark: str, text: str) -> int:
    """A number of pods, from 1 to `MAX_PODS`.

    Raises:
        MarkError: it is none.
    """
    if not _COUNT.fullmatch(text.strip()) or not 1 <= int(text) <= MAX_PODS:
        raise MarkError(mark, text, "is no number of pods", way_out=f"write a whole number from 1 to {MAX_PODS}")
    return int(text)


def parse_object_name(mark: str, text: str) -> str:
    """The name of an object: a DNS subdomain (RFC 1123), which is safe in a request's path.

    Raises:
        MarkError: it is none.
    """
    if len(text) > OBJECT_NAME_MAX or not _OBJECT_NAME.fullmatch(text):
        way_out = "use lower-case letters, digits, and inner dashes and dots"
        raise MarkError(mark, text, "is no name of an object", way_out=way_out)
    return text


def parse_name(mark: str, text: str) -> str:
    """A gang's name, which obeys the rules of a label's value.

    Raises:
        MarkError: it does not.
    """
    if not _NAME.fullmatch(text):
        raise MarkError(
            mark,
            text,
            "is no name of a gang",
            way_out="use at most 63 letters, digits and inner dashes, dots and underscores",
        )
    return text


def parse_duration(mark: str, text: str) -> float:
    """Seconds, out of `90m`, `1h30m`, `2d` or a plain number of seconds.

    Raises:
        MarkError: it is none of these, zero, or longer than a year.
    """
    plain = text.strip()
    seconds = float(plain) if _NUMBER.fullmatch(plain) else _sum_parts(plain)
    if not seconds or seconds > MAX_SECONDS:
        problem = "is no length of time" if not seconds else "is longer than a year"
        raise MarkError(mark, text, problem, way_out="write one like 90m, 1h30m, 2d, or a number of seconds")
    return seconds


def parse_time(mark: str, text: str) -> float:
    """Seconds since the epoch, out of an RFC 3339 time or that very number.

    Raises:
        MarkError: it is neither.
    """
    plain = text.strip()
    if _NUMBER.fullmatch(plain):
        return float(plain)
    try:
        return max(0.0, times.parse_time(plain).timestamp())
    except (ValueError, OverflowError):
        way_out = "write one like 2026-03-01T12:00:00Z, or seconds since the epoch"
        raise MarkError(mark, text, "is no time with a zone", way_out=way_out) from None


def parse_amount(mark: str, text: str) -> float:
    """A number that is not negative.

    Raises:
        MarkError: it is none.
    """
    plain = text.strip()
    if not _NUMBER.fullmatch(plain):
        raise MarkError(mark, text, "is no number of GPU-seconds", way_out="write one like 0 or 7200")
    return float(plain)


def _sum_parts(text: str) -> float:
    parts = _PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return 0.0
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
