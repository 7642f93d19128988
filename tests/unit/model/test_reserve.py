"""Reserve and brief notice of a pool."""

from __future__ import annotations

import msgspec
import pytest

from vkgateway.api.reserve import Reserve, parse_reserve, pool_problems, pool_reserve
from vkgateway.api.types import Pool


@pytest.mark.parametrize(
    ("text", "expected"), [("8", Reserve(units=8)), ("0", Reserve()), ('"5%"', Reserve(percent=5))]
)
def test_reserve_is_units_or_percentage(text: str, expected: Reserve) -> None:
    pool = msgspec.json.decode(f'{{"name": "a100", "reserve": {text}}}', type=Pool)
    assert parse_reserve(pool.reserve) == pool_reserve(pool) == expected
    assert not list(pool_problems(pool))


@pytest.mark.parametrize(
    ("reserve", "message"),
    [
        (-1, "reserve -1 is negative; 0 keeps nothing idle"),
        ("101%", "reserve '101%' is more than the pool has; the most is '100%'"),
        ("some", "reserve 'some' is neither a number of units, like 8, nor a share in whole percent, like '5%'"),
    ],
)
def test_invalid_reserve_is_refused_with_valid_example(reserve: int | str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^reserve") as error:
        parse_reserve(reserve)
    assert str(error.value) == message
    assert list(pool_problems(Pool(name="a100", reserve=reserve))) == [f"pool 'a100': {message}"]
    assert pool_reserve(Pool(name="a100", reserve=reserve)) == Reserve()


def test_brief_run_and_brief_notice_require_each_other() -> None:
    assert not list(pool_problems(Pool(name="a100", brief_run_seconds=60, brief_notice_seconds=0)))
    (problem,) = pool_problems(Pool(name="a100", brief_notice_seconds=5))
    assert problem == (
        "pool 'a100': briefRunSeconds is missing; give both of briefRunSeconds and briefNoticeSeconds, or neither"
    )
