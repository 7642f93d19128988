"""Strict parsers for the values of marks: counts, names, durations, times and amounts."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from vkgateway.api import run_limits
from vkgateway.api.names import OBJECT_NAME_MAX
from vkgateway.scheduler.gangs.marks import MarkError

MAX_PODS: Final = 100_000
"""A gang with more pods than this is considered a mistake."""

_COUNT: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?", re.ASCII)
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?", re.ASCII)


def parse_count(mark: str, text: str) -> int:
    """Return a number of pods, from 1 to `MAX_PODS`.

    Raises:
        MarkError: the text is not such a number.
    """
    if not _COUNT.fullmatch(text.strip()) or not 1 <= int(text) <= MAX_PODS:
        raise MarkError(mark, text, "is not a number of pods", remedy=f"use a whole number from 1 to {MAX_PODS}")
    return int(text)


def parse_object_name(mark: str, text: str) -> str:
    """Return the name of an object: a DNS subdomain (RFC 1123), which is safe in a request's path.

    Raises:
        MarkError: the text is not such a name.
    """
    if len(text) > OBJECT_NAME_MAX or not _OBJECT_NAME.fullmatch(text):
        remedy = "use lower-case letters, digits, and dashes or dots between them"
        raise MarkError(mark, text, "is not a valid object name", remedy=remedy)
    return text


def parse_name(mark: str, text: str) -> str:
    """Return a gang's name, which follows the rules for label values.

    Raises:
        MarkError: the text is not such a name.
    """
    if not _NAME.fullmatch(text):
        raise MarkError(
            mark,
            text,
            "is not a valid gang name",
            remedy="use at most 63 letters and digits, with dashes, dots or underscores between them",
        )
    return text


def parse_duration(mark: str, text: str) -> float:
    """Return seconds for `90m`, `1h30m`, `2d` or a plain number of seconds.

    Raises:
        MarkError: the text is not a duration, zero, or longer than a year.
    """
    try:
        return run_limits.parse_duration(text)
    except ValueError as error:
        remedy = "use a value like 90m, 1h30m, 2d, or a number of seconds"
        raise MarkError(mark, text, str(error), remedy=remedy) from None


def parse_time(mark: str, text: str) -> float:
    """Return seconds since the epoch for a number of them, an ISO 8601 time, or what `date` and `date -R` print.

    A time without a zone is in UTC, as clocks of containers are.

    Raises:
        MarkError: the text is none of these.
    """
    plain = text.strip()
    if _NUMBER.fullmatch(plain):
        return float(plain)
    for parse in (datetime.fromisoformat, parsedate_to_datetime, _parse_printed):
        with contextlib.suppress(ValueError, OverflowError):
            moment = parse(plain)
            aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return max(0.0, aware.astimezone(UTC).timestamp())
    remedy = "use a value like 2026-03-01T12:00:00Z, or seconds since the epoch"
    raise MarkError(mark, text, "is not a time", remedy=remedy)


def parse_amount(mark: str, text: str) -> float:
    """Return a non-negative number.

    Raises:
        MarkError: the text is not such a number.
    """
    plain = text.strip()
    if not _NUMBER.fullmatch(plain):
        raise MarkError(mark, text, "is not a number of GPU-seconds", remedy="use a value like 0 or 7200")
    return float(plain)


def _parse_printed(text: str) -> datetime:
    """Return the time that `date` prints in the C locale; other zones than UTC have no unique abbreviation."""
    return datetime.strptime(text, "%a %b %d %H:%M:%S UTC %Y").replace(tzinfo=UTC)
