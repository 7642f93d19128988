"""Message about a waiting pod, rendered and parsed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.pending_message import (
    PendingMessage,
    parse_message,
    render_expected_start,
    render_message,
)

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp()
MINUTE, HOUR = 60.0, 3600.0


def hold(
    message: str = "needs 2 pods", *, place: int = 0, earliest: float | None = None, likely: float | None = None
) -> PendingReport:
    return PendingReport(
        gang="a/ns/gang/x", code=PendingReason.ROOM, message=message, place=place, earliest=earliest, likely=likely
    )


@pytest.mark.parametrize(
    ("earliest", "likely", "text"),
    [
        (None, None, "not known"),
        (None, HOUR, "not known"),
        (2 * HOUR, None, "not before 14:00 UTC"),
        (MINUTE, None, "not known"),
        (-5.0, -5.0, "within a minute"),
        (7.0, 7.0, "within a minute"),
        (10.0, 61.0, "in about 2 min"),
        (10.0, 5 * MINUTE, "in about 5 min"),
        (10.0, 600.0, "in about 10 min"),
        (10.0, 601.0, "between now and 12:11 UTC"),
        (1830.0, 2430.0, "between 12:30 and 12:41 UTC"),
        (1800.0, 1800.0, "at about 12:30 UTC"),
        (2 * HOUR + 130, 3 * HOUR + 10, "between 14:00 and 15:05 UTC"),
        (2 * HOUR, 13 * HOUR, "between 14:00 and 2026-11-22 01:00 UTC"),
        (HOUR, 0.0, "at about 13:00 UTC"),
    ],
)
def test_expected_starts_are_rounded(earliest: float | None, likely: float | None, text: str) -> None:
    def at(offset: float | None) -> float | None:
        return None if offset is None else NOON + offset

    assert render_expected_start(at(earliest), at(likely), now=NOON) == text


def test_message_has_position_and_start_only_in_a_queue() -> None:
    status = hold(place=3, earliest=NOON + HOUR, likely=NOON + 2 * HOUR)
    assert render_message(status, pool="a100.local", now=NOON) == (
        "needs 2 pods; place 3 in a100.local; expected start between 13:00 and 14:00 UTC"
    )
    assert render_message(hold(), pool="a100.local", now=NOON) == "needs 2 pods"
    assert render_message(hold(place=2), pool="", now=NOON) == "needs 2 pods"


def test_message_is_stable_over_time() -> None:
    far = hold(place=1, earliest=NOON + HOUR, likely=NOON + 2 * HOUR)
    near = hold(place=1, earliest=NOON + 300, likely=NOON + 590)
    assert len({render_message(far, pool="p", now=NOON + second) for second in range(1800)}) <= 2
    assert len({render_message(near, pool="p", now=NOON + second) for second in range(590)}) <= 4


@given(
    message=st.text().filter(lambda text: "; place " not in text and "; expected start " not in text),
    place=st.integers(1, 10_000),
    earliest=st.none() | st.floats(-1e5, 1e6),
    likely=st.none() | st.floats(-1e5, 1e6),
)
def test_rendered_message_is_parsed_back(
    message: str, place: int, earliest: float | None, likely: float | None
) -> None:
    def at(offset: float | None) -> float | None:
        return None if offset is None else NOON + offset

    written = render_message(
        hold(message, place=place, earliest=at(earliest), likely=at(likely)), pool="a100.local", now=NOON
    )
    assert parse_message(written) == PendingMessage(
        message, place, "a100.local", render_expected_start(at(earliest), at(likely), now=NOON)
    )


def test_any_other_text_is_the_reason() -> None:
    assert parse_message("waits; place unknown") == PendingMessage("waits; place unknown")
    assert parse_message("") == PendingMessage("")
