"""Stories of tenants whose budgets are used up: they borrow nothing, and keep their guarantees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from tests.unit.arbiter.multi_pool_stories import gangs_in_two_pools, gangs_in_two_pools_in_time
from tests.unit.arbiter.preemption_stories import preemption_comes_to_an_end
from tests.unit.arbiter.simulated_cluster import GPU
from tests.unit.arbiter.stories import TENANTS
from tests.unit.arbiter.story_invariants import (
    StoryCheck,
    better_than_alone,
    called_in_at_once,
    deciding_again,
    in_time,
    whatever_comes,
)


def with_used_budgets(random: Random, *, telling: Callable[[Random], StoryCheck]) -> StoryCheck:
    """Return a story of another invariant in which one tenant or more may borrow nothing, in one pool or in all."""
    found, check = telling(random)
    tenants = random.sample(TENANTS, random.choice((1, 1, 2, 3)))
    pools = {each.pool for each in found.quotas if random.random() < 0.8} or {found.quotas[0].pool}
    quotas = tuple(
        replace(each, stopped=(GPU,)) if each.tenant in tenants and each.pool in pools else each
        for each in found.quotas
    )
    return replace(found, quotas=quotas), check


_STOPPING: dict[str, Callable[[Random], StoryCheck]] = {
    "whatever_comes": whatever_comes,
    "whatever_comes_in_two_pools": partial(whatever_comes, more=3),
    "called_in_at_once": called_in_at_once,
    "deciding_again": deciding_again,
    "deciding_again_in_two_pools": partial(deciding_again, more=3),
    "gangs_in_two_pools": gangs_in_two_pools,
    "gangs_in_two_pools_in_time": gangs_in_two_pools_in_time,
    "in_time": in_time,
    "in_time_in_two_pools": partial(in_time, more=3),
    "better_than_alone": better_than_alone,
    "preemption_comes_to_an_end": preemption_comes_to_an_end,
}

INVARIANTS: dict[str, Callable[[Random], StoryCheck]] = {
    f"{name}_with_used_budgets": partial(with_used_budgets, telling=telling) for name, telling in _STOPPING.items()
}
