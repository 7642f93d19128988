"""Message for a waiting pod: reason, queue position and expected start, rendered and parsed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from vkgateway.scheduler.core.decisions import PendingReport

_SOON_SECONDS: Final = 600.0
"""Times less than this many seconds ahead are shown as minutes from now."""
_ROUNDING_STEPS: Final = ((3600.0, 60), (6 * 3600.0, 300), (math.inf, 900))
"""Seconds ahead, and the seconds to which times of day up to there are rounded."""
_MINUTE_STEPS: Final = (2, 5, 10)
UNKNOWN: Final = "not known"

_MESSAGE_PATTERN: Final = re.compile(
    r"(?P<sentence>.*?)(?:; place (?P<place>[0-9]+) in (?P<pool>\S+?))?(?:; expected start (?P<expected>[^;]*))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """Parts of a message. Queue position 0: the gang is not queued."""

    reason: str
    queue_position: int = 0
    pool: str = ""
    expected_start: str = ""


def render_message(status: PendingReport, *, pool: str, now: float) -> str:
    """Return the message for a gang in the queue of `pool`, a virtual node's name.

    Rounded times keep it stable for a while.
    """
    if not status.place or not pool:
        return status.message
    return (
        f"{status.message}; place {status.place} in {pool}; expected start "
        f"{render_expected_start(status.earliest, status.likely, now=now)}"
    )


def parse_message(message: str) -> PendingMessage:
    """Return the parts of a message of `render_message`. Of any other message, the whole text is the reason."""
    found = _MESSAGE_PATTERN.fullmatch(message)
    if found is None:
        return PendingMessage(message)
    return PendingMessage(found["sentence"], int(found["place"] or 0), found["pool"] or "", found["expected"] or "")


def render_expected_start(earliest: float | None, likely: float | None, *, now: float) -> str:
    """Return the expected start, like `within a minute` or `between 14:05 and 14:40 UTC`, with another day's date."""
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
    """Return a time, rounded more coarsely the further ahead it is."""
    step = next(step for limit, step in _ROUNDING_STEPS if moment - now <= limit)
    rounded = (math.ceil(moment / step) if up else math.floor(moment / step)) * step
    then, today = (datetime.fromtimestamp(seconds, UTC) for seconds in (rounded, now))
    return then.strftime("%H:%M" if then.date() == today.date() else "%Y-%m-%d %H:%M")
