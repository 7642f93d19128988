"""Stories in pools that enforce run limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from tests.unit.arbiter.checked_cluster import CheckedCluster
from tests.unit.arbiter.multi_pool_stories import gangs_in_two_pools
from tests.unit.arbiter.stories import GRACE, NOTICE, StoryMix, random_story
from tests.unit.arbiter.story_invariants import StoryCheck, deciding_again, whatever_comes
from tests.unit.arbiter.test_cache import cached_and_uncached
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.snapshot import Snapshot


class LimitedCluster(CheckedCluster):
    """Cluster that checks that no pod stays longer than its limit, and not longer than notice and grace after it."""

    longest_step = 0.0

    def advance(self, seconds: float) -> None:
        self.longest_step = max(self.longest_step, seconds)
        super().advance(seconds)

    def check_cycle(self, before: Snapshot, decisions: Decisions) -> None:
        super().check_cycle(before, decisions)
        self.check_run_times(NOTICE + GRACE + 2 * self.longest_step)


def ends_at_limits(random: Random, *, more: int = 0) -> StoryCheck:
    """No gang runs longer than its enforced limit, the notice, the grace period and one cycle."""
    mix = StoryMix(more_nodes=more, runs=(None, None, 5.0, 12.0, 25.0), tail=12)
    return random_story(random, mix), lambda each: LimitedCluster.from_story(each).play_story(each)


def with_run_limits(random: Random, *, telling: Callable[[Random], StoryCheck]) -> StoryCheck:
    """Return a story of another invariant in pools that enforce run limits, with defaults for some bands."""
    found, check = telling(random)
    limits = {band: random.choice((3.0, 12.0, 20.0)) for band in ("guaranteed", "low") if random.random() < 0.6}
    return replace(found, limits=limits), check


_LIMITED: dict[str, Callable[[Random], StoryCheck]] = {
    "ends_at_limits": ends_at_limits,
    "ends_at_limits_in_two_pools": partial(ends_at_limits, more=3),
    "whatever_comes": whatever_comes,
    "whatever_comes_in_two_pools": partial(whatever_comes, more=3),
    "deciding_again": deciding_again,
    "deciding_again_in_two_pools": partial(deciding_again, more=3),
    "gangs_in_two_pools": gangs_in_two_pools,
    "cached_and_uncached": cached_and_uncached,
}

INVARIANTS: dict[str, Callable[[Random], StoryCheck]] = {
    f"{name}_with_run_limits": partial(with_run_limits, telling=each) for name, each in _LIMITED.items()
}
