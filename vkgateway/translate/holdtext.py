"""Why a pod waits as its tenant reads it: one message out of sentence, place in line and expected start, and back."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

_SOON: Final = 600.0
"""Seconds ahead within which times are told as minutes from now."""
_STEPS: Final = ((3600.0, 60), (6 * 3600.0, 300), (math.inf, 900))
"""Up to so many seconds ahead, times of day are told to so many seconds."""
_MINUTES: Final = (2, 5, 10)
UNKNOWN: Final = "not known"

_FORM: Final = re.compile(
    r"(?P<sentence>.*?)(?:; place (?P<place>[0-9]+) in (?P<pool>\S+?))?(?:; expected start (?P<expected>[^;]*))?",
    re.DOTALL,
)


class Held(Protocol):
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
class Told:
    """The parts of a message; place 0: it stands in no line."""

    sentence: str
    place: int = 0
    pool: str = ""
    expected: str = ""


def sentence(hold: Held, *, pool: str, now: float) -> str:
    """The message about a hold in the line of `pool`, a virtual node's name; it stays the same for a while."""
    if not hold.place or not pool:
        return hold.message
    return (
        f"{hold.message}; place {hold.place} in {pool}; expected start {expected(hold.earliest, hold.likely, now=now)}"
    )


def parse(message: str) -> Told:
    """The parts of a message of `sentence`; of any other the whole is the sentence."""
    found = _FORM.fullmatch(message)
    if found is None:
        return Told(message)
    return Told(found["sentence"], int(found["place"] or 0), found["pool"] or "", found["expected"] or "")


def expected(earliest: float | None, likely: float | None, *, now: float) -> str:
    """When it may start, like `within a minute` or `between 14:05 and 14:40 UTC`; of another day with the date."""
    if earliest is None:
        return UNKNOWN
    if likely is None:
        return f"not before {_zoned(earliest, now, up=False)}" if earliest - now > _SOON else UNKNOWN
    likely = max(likely, earliest)
    if likely - now <= 60:
        return "within a minute"
    if likely - now <= _SOON:
        return f"in about {_minutes(likely - now)} min"
    last = _zoned(likely, now, up=True)
    if earliest - now <= _SOON:
        return f"between now and {last}"
    first = _clock(earliest, now, up=False)
    return f"at about {last}" if f"{first} UTC" == last else f"between {first} and {last}"


def _minutes(seconds: float) -> int:
    return next((step for step in _MINUTES if seconds <= step * 60), _MINUTES[-1])


def _zoned(moment: float, now: float, *, up: bool) -> str:
    return f"{_clock(moment, now, up=up)} UTC"


def _clock(moment: float, now: float, *, up: bool) -> str:
    """Rounded to what is worth telling so far ahead."""
    step = next(step for limit, step in _STEPS if moment - now <= limit)
    rounded = (math.ceil(moment / step) if up else math.floor(moment / step)) * step
    then, today = (datetime.fromtimestamp(seconds, UTC) for seconds in (rounded, now))
    return then.strftime("%H:%M" if then.date() == today.date() else "%Y-%m-%d %H:%M")
