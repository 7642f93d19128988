"""Values of marks: durations, times and names."""

import pytest

from vkgateway.scheduler.gangs import MarkError, mark_values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90.5", 90.5),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("2d", 172800.0),
        ("1.5h", 5400.0),
        ("500ms", 0.5),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert mark_values.parse_duration("m", text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1h 30m", "1w", "-1h", "1h30", "inf", "1e9", "0", "0h0m"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(MarkError):
        mark_values.parse_duration("m", text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1772366400", 1772366400.0),
        ("2026-03-01T12:00:00Z", 1772366400.0),
        ("2026-03-01T13:00:00.25+01:00", 1772366400.25),
        ("1960-01-01T00:00:00Z", 0.0),
        ("2026-03-01T12:00:00", 1772366400.0),
        ("2026-03-01 12:00:00.000", 1772366400.0),
        ("2026-03-01", 1772323200.0),
        ("Sun, 01 Mar 2026 13:00:00 +0100", 1772366400.0),
        ("Sun Mar  1 12:00:00 UTC 2026", 1772366400.0),
    ],
)
def test_time(text: str, seconds: float) -> None:
    assert mark_values.parse_time("m", text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "12:00", "yesterday", "-5", "9999-99-99T00:00:00Z", "0001-01-01T00:00:00+23:00"]
)
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(MarkError):
        mark_values.parse_time("m", text)


def test_pod_count_limit() -> None:
    assert (mark_values.parse_count("m", "1"), mark_values.parse_count("m", "100000")) == (1, mark_values.MAX_PODS)
    for text in ("100001", "999999999999", "٤"):
        with pytest.raises(MarkError):
            mark_values.parse_count("m", text)


@pytest.mark.parametrize("text", ["", "../secrets", "a/b", "A", "-a", "a..b", "a" * 254, "a\n"])
def test_invalid_object_name_is_refused(text: str) -> None:
    with pytest.raises(MarkError):
        mark_values.parse_object_name("m", text)


def test_object_name() -> None:
    assert mark_values.parse_object_name("m", "train-1.v2") == "train-1.v2"
