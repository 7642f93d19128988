"""Run limits of a pool."""

from __future__ import annotations

import re

import msgspec
import pytest

from tests.unit.model.test_crds import schema
from vkgateway.api.run_limits import default_limits, parse_duration, render_duration, run_limit_problems
from vkgateway.api.types import DefaultRunLimits, Pool


def limited_pool(low: str, *, enforce: bool = True) -> Pool:
    return Pool(name="a100", enforce_run_limits=enforce, default_run_limits=DefaultRunLimits(low=low))


@pytest.mark.parametrize(
    ("text", "seconds", "rendered"),
    [
        ("72h", 259_200.0, "72h"),
        ("1h30m", 5400.0, "1h30m"),
        ("2d", 172_800.0, "48h"),
        ("20s", 20.0, "20s"),
        ("90", 90.0, "1m30s"),
        ("2.5s", 2.5, "2.5s"),
    ],
)
def test_durations(text: str, seconds: float, rendered: str) -> None:
    assert parse_duration(text) == seconds
    assert render_duration(seconds) == rendered
    assert parse_duration(rendered) == seconds


def test_default_limits_are_read_from_the_definition() -> None:
    text = '{"name": "a100", "enforceRunLimits": true, "defaultRunLimits": {"guaranteed": "72h", "low": "12h"}}'
    pool = msgspec.json.decode(text, type=Pool)
    assert default_limits(pool) == {"guaranteed": 259_200.0, "low": 43_200.0}
    assert not list(run_limit_problems(pool))
    assert not list(run_limit_problems(Pool(name="a100")))


def test_default_limit_without_enforcement_is_refused() -> None:
    pool = limited_pool("12h", enforce=False)
    assert default_limits(pool) == {}
    assert list(run_limit_problems(pool)) == [
        "pool 'a100': defaultRunLimits has no effect while enforceRunLimits is false; set enforceRunLimits to true, or "
        "remove defaultRunLimits"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("soon", "is not a duration"), ("0h", "is not a duration"), ("400d", "is longer than a year")],
)
def test_invalid_limit_is_refused_with_valid_example(text: str, problem: str) -> None:
    pool = limited_pool(text)
    assert default_limits(pool) == {}
    assert list(run_limit_problems(pool)) == [
        f"pool 'a100': defaultRunLimits.low '{text}' {problem}; use a value like 12h, 1h30m, 2d, or a number of seconds"
    ]


@pytest.mark.parametrize(
    ("text", "accepted"), [("72h", True), ("1h30m", True), ("90", True), ("1.5d", True), ("soon", False), ("h", False)]
)
def test_api_server_and_gateway_accept_same_forms(text: str, accepted: bool) -> None:
    pool = schema("computeclusters")["properties"]["spec"]["properties"]["pools"]["items"]["properties"]
    for band in ("guaranteed", "low"):
        pattern = pool["defaultRunLimits"]["properties"][band]["pattern"]
        assert bool(re.search(pattern, text)) is accepted
    assert bool(list(run_limit_problems(limited_pool(text)))) is not accepted
