"""Stories in which pools have a reserve, or young victims have a brief notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from tests.unit.arbiter.multi_pool_stories import gangs_in_two_pools, gangs_in_two_pools_in_time
from tests.unit.arbiter.preemption_stories import higher_work_starts, preemption_comes_to_an_end
from tests.unit.arbiter.stories import NOTICE, StoryStep, node_units
from tests.unit.arbiter.story_invariants import (
    StoryCheck,
    better_than_alone,
    called_in_at_once,
    deciding_again,
    in_time,
    nobody_starves,
    whatever_comes,
)

_MAX_RESERVE = 6
"""Highest reserve of a pool, in units."""


def with_a_reserve(random: Random, *, telling: Callable[[Random], StoryCheck]) -> StoryCheck:
    """Return a story of another invariant in pools with a reserve that still fits the gang `big`, if present."""
    found, check = telling(random)
    size = sum(node_units(each) for each in found.nodes)
    big = [one for step in found.steps for one, _ in step.arrives if one.id == "big"]
    asked = sum(pod.shape.amount_of("nvidia.com/gpu") // 1000 for one in big for pod in one.pods)
    return replace(found, reserve=random.randint(0, max(0, min(_MAX_RESERVE, size - asked)))), check


def with_brief_notice(random: Random, *, telling: Callable[[Random], StoryCheck]) -> StoryCheck:
    """Return a story of another invariant in which young gangs have a brief notice."""
    found, check = telling(random)
    brief = {"brief_run": random.choice((4.0, 8.0, 100.0)), "brief_notice": random.choice((0.0, 2.0, NOTICE + 1))}
    return replace(found, steps=tuple(_with_brief_notice(step, brief) for step in found.steps)), check


def _with_brief_notice(step: StoryStep, brief: dict[str, float]) -> StoryStep:
    return replace(step, arrives=tuple((replace(one, **brief), run) for one, run in step.arrives))  # type: ignore[arg-type]


_RESERVING: dict[str, Callable[[Random], StoryCheck]] = {
    "whatever_comes": whatever_comes,
    "whatever_comes_in_two_pools": partial(whatever_comes, more=3),
    "whatever_comes_without_devices": partial(whatever_comes, without_devices=0.6),
    "called_in_at_once": called_in_at_once,
    "deciding_again": deciding_again,
    "deciding_again_in_two_pools": partial(deciding_again, more=3),
    "in_time": in_time,
    "in_time_in_two_pools": partial(in_time, more=3),
    "nobody_starves": nobody_starves,
    "nobody_starves_below_a_limit": partial(nobody_starves, limited=True),
    "better_than_alone": better_than_alone,
    "gangs_in_two_pools": gangs_in_two_pools,
    "gangs_in_two_pools_in_time": gangs_in_two_pools_in_time,
    "higher_work_starts": higher_work_starts,
    "preemption_comes_to_an_end": preemption_comes_to_an_end,
}

_BRIEF: dict[str, Callable[[Random], StoryCheck]] = {
    "whatever_comes": whatever_comes,
    "deciding_again": deciding_again,
    "in_time": in_time,
    "gangs_in_two_pools": gangs_in_two_pools,
}

INVARIANTS: dict[str, Callable[[Random], StoryCheck]] = {
    **{f"{name}_with_a_reserve": partial(with_a_reserve, telling=each) for name, each in _RESERVING.items()},
    **{f"{name}_with_brief_notice": partial(with_brief_notice, telling=each) for name, each in _BRIEF.items()},
}
