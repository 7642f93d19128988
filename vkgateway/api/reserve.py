"""Pool settings that let guaranteed gangs start sooner: the reserve and the notice of brief runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from vkgateway.api.types import Pool

_PERCENT_FORM = re.compile(r"([0-9]+)%")
_MAX_PERCENT = 100


class Reserve(NamedTuple):
    """Capacity that borrowing leaves idle: a number of units, or a percentage of the usable nodes. One of both is 0."""

    units: int = 0
    percent: int = 0


def parse_reserve(reserve: int | str) -> Reserve:
    """Return the reserve of a pool's field: `8`, or `"5%"`.

    Raises:
        ValueError: The value is negative, more than 100%, or other text.
    """
    if isinstance(reserve, int):
        if reserve < 0:
            raise ValueError(f"reserve {reserve} is negative; 0 keeps nothing idle")
        return Reserve(units=reserve)
    found = _PERCENT_FORM.fullmatch(reserve)
    if found is None:
        raise ValueError(
            f"reserve {reserve!r} is neither a number of units, like 8, nor a share in whole percent, like '5%'"
        )
    percent = int(found[1])
    if percent > _MAX_PERCENT:
        raise ValueError(f"reserve {reserve!r} is more than the pool has; the most is '100%'")
    return Reserve(percent=percent)


def pool_reserve(pool: Pool) -> Reserve:
    """Return a pool's reserve, or no reserve if the field is invalid (see `pool_problems`)."""
    try:
        return parse_reserve(pool.reserve)
    except ValueError:
        return Reserve()


def pool_problems(pool: Pool) -> Iterator[str]:
    """Yield the errors in these settings of a pool. API servers reject such pools if the CRD is up to date."""
    try:
        parse_reserve(pool.reserve)
    except ValueError as error:
        yield f"pool {pool.name!r}: {error}"
    brief = {"briefRunSeconds": pool.brief_run_seconds, "briefNoticeSeconds": pool.brief_notice_seconds}
    missing = [name for name, value in brief.items() if value is None]
    if len(missing) == 1:
        yield f"pool {pool.name!r}: {missing[0]} is missing; give both of {' and '.join(brief)}, or neither"
