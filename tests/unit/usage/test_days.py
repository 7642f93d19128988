"""Tests of UTC days and months."""

from __future__ import annotations

import pytest

from tests.unit.usage.records import at
from vkgateway.tenants.usage.days import (
    day_of,
    last_days,
    month_of,
    month_text,
    months_before,
    next_month_text,
    split_days,
)


def test_interval_is_split_at_midnight() -> None:
    start, end = at("2026-11-30 23:00"), at("2026-12-02 01:30")
    assert list(split_days(start, end)) == [
        ("2026-11-30", start, at("2026-12-01 00:00")),
        ("2026-12-01", at("2026-12-01 00:00"), at("2026-12-02 00:00")),
        ("2026-12-02", at("2026-12-02 00:00"), end),
    ]
    assert list(split_days(end, end)) == []


def test_days_and_months_are_utc() -> None:
    assert (day_of(at("2026-11-30 23:59")), month_of(at("2026-12-01 00:00"))) == ("2026-11-30", "2026-12")
    assert last_days(at("2026-12-01 12:00"), 2) == ["2026-11-30", "2026-12-01"]


@pytest.mark.parametrize(
    ("month", "count", "found"), [("2026-11", 2, "2026-09"), ("2026-01", 1, "2025-12"), ("2026-12", -1, "2027-01")]
)
def test_earlier_and_later_months(month: str, count: int, found: str) -> None:
    assert months_before(month, count) == found


def test_texts_name_month_and_its_end() -> None:
    assert (month_text("2026-12"), next_month_text("2026-12")) == ("December 2026", "1 January 2027")
