"""Why a pod waits as its tenant reads it: one message out of sentence, place in line and expected start, and back."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

_SOON_SECONDS: Final = 600.0
"""Seconds ahead within which times are told as minutes from now."""
_ROUNDING_STEPS: Final = ((3600.0, 60), (6 * 3600.0, 300), (math.inf, 900))
"""Up to so many seconds ahead, times of day are told to so many seconds."""
_MINUTE_STEPS: Final = (2, 5, 10)
UNKNOWN: Final = "not known"

_MESSAGE_PATTERN: Final = re.compile(
    r"(?P<sentence>.*?)(?:; place (?P<place>[0-9]+) in (?P<pool>\S+?))?(?:; expected start (?P<expected>[^;]*))?",
    re.DOTALL,
)


class PendingStatus(Protocol):
    """What the arbiter says of a gang that waits; times are seconds since the epoch, None: not known."""

    @property
    def message(self) -> str:
        """Why it waits, in a sentence."""

    @property
    def place(self) -> int:
        """Its place in line; 0: it stands in none."""

    @property
    def earliest(self) -> float | None:
        """When it may start at the earliest."""

    @property
    def likely(self) -> float | None:
        """When it starts if all goes as expected."""


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """The parts of a message; place 0: it stands in no line."""

    reason: str
    queue_position: int = 0
    pool: str = ""
    expected_start: str = ""


def render_message(hold: PendingStatus, *, pool: str, now: float) -> str:
    """The message about a hold in the line of `pool`, a virtual node's name; it stays the same for a while."""
    if not hold.place or not pool:
        return hold.message
    return (
        f"{hold.message}; place {hold.place} in {pool}; expected start "
        f"{render_expected_start(hold.earliest, hold.likely, now=now)}"
    )


def parse_message(message: str) -> PendingMessage:
    """The parts of a message of `sentence`; of any other the whole is the sentence."""
    found = _MESSAGE_PATTERN.fullmatch(message)
    if found is None:
        return PendingMessage(message)
    return PendingMessage(found["sentence"], int(found["place"] or 0), found["pool"] or "", found["expected"] or "")


def render_expected_start(earliest: float | None, likely: float | None, *, now: float) -> str:
    """When it may start, like `within a minute` or `between 14:05 and 14:40 UTC`; of another day with the date."""
    if earliest is None:
        return UNKNOWN
    if likely is None:
        return f"not before {_utc_time(earliest, now, up=False)}" if earliest - now > _SOON_SECONDS else UNKNOWN
    likely = max(likely, earliest)
    if likely - now <= 60:
        return "within a minute"
    if likely - now <= _SOON_SECONDS:
        return f"in about {_round_minutes(likely - now)} min"
    last = _utc_time(likely, now, up=True)
    if earliest - now <= _SOON_SECONDS:
        return f"between now and {last}"
    first = _rounded_time(earliest, now, up=False)
    return f"at about {last}" if f"{first} UTC" == last else f"between {first} and {last}"


def _round_minutes(seconds: float) -> int:
    return next((step for step in _MINUTE_STEPS if seconds <= step * 60), _MINUTE_STEPS[-1])


def _utc_time(moment: float, now: float, *, up: bool) -> str:
    return f"{_rounded_time(moment, now, up=up)} UTC"


def _rounded_time(moment: float, now: float, *, up: bool) -> str:
    """Rounded to what is worth telling so far ahead."""
    step = next(step for limit, step in _ROUNDING_STEPS if moment - now <= limit)
    rounded = (math.ceil(moment / step) if up else math.floor(moment / step)) * step
    then, today = (datetime.fromtimestamp(seconds, UTC) for seconds in (rounded, now))
    return then.strftime("%H:%M" if then.date() == today.date() else "%Y-%m-%d %H:%M")
