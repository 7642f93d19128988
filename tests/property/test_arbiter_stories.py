"""Invariants of the cycle over random stories, carried out step by step.

`VKGATEWAY_CASES` is the number of stories in total, spread over the invariants. A failing story is shown in its
shortest form. `python -m tests.property.deep` runs any number of stories.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.property.deep import INVARIANTS, find_failures, stories_per_invariant
from tests.unit.arbiter.stories import StoryMix, random_story, shorten_story

CASES = int(os.environ.get("VKGATEWAY_CASES", len(INVARIANTS)))
PER_INVARIANT = stories_per_invariant(CASES, len(INVARIANTS))
CHUNKS = max(1, CASES // max(100, len(INVARIANTS)))
"""Tests for each invariant, which may run in parallel."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("invariant", sorted(INVARIANTS))
def test_invariant_holds_in_every_story(invariant: str, chunk: int) -> None:
    each = PER_INVARIANT // CHUNKS
    failures = find_failures(invariant, range(chunk * each, (chunk + 1) * each))

    assert not failures, "\n".join(f"seed {one.seed}: {one.error}\n{one.story}" for one in failures)


@pytest.mark.parametrize(
    ("invariant", "seed"),
    [
        ("better_than_alone", 3346),  # surplus inside cells while its min members borrowed
        # the surplus of a gang was spared while its min members were evicted for another tenant
        ("called_in_at_once", 2373),
        ("called_in_at_once", 2778),  # a cell was larger than its pods needed, because of a plan that could move
        ("called_in_at_once", 4041),  # cells of 8 and 4, each half used, were bound the wrong way round
        ("called_in_at_once", 3649),  # and a victim that another plan needed was spared
        ("deciding_again", 1465),  # a plan on a removed node held cells
        ("deciding_again", 2126),
        ("deciding_again", 3311),  # lent to a gang that used up the limit of its tenant's own gang ahead
        (
            "deciding_again_in_two_pools",
            2275,
        ),  # a gang's last pod started while notified pods of it counted to its maximum
        ("deciding_again_in_two_pools", 5020),  # a gang that did not fit an empty pool fitted next to other gangs
        ("gangs_in_two_pools", 127),  # a part with a choice of pools took the capacity of a part without one
        ("gangs_in_two_pools", 139),  # surplus moved to another pool in the next cycle
        ("gangs_in_two_pools", 341),  # a gang that was just starting kept a later gang from its guarantee
        ("gangs_in_two_pools", 565),  # a part inside its guarantee took the only capacity of another one
        ("gangs_in_two_pools", 590),  # a gang used capacity freed for a later gang only in the next cycle
        ("gangs_in_two_pools_in_time", 550),  # surplus stayed in one pool while the rest was evicted from another
        ("gangs_in_two_pools", 303),  # surplus inside its guarantee while the min members borrowed
        ("gangs_in_two_pools_with_a_reserve", 97),  # victims of two gangs became those of one
        ("gangs_in_two_pools_with_a_reserve", 211),  # one pod of a gang was spared while all its pods were notified
        ("higher_work_starts", 335),  # the victim for the limit was surplus whose capacity was reserved
        ("higher_work_starts_in_two_pools", 307),  # such surplus ran where the gang did not fit
        ("in_time_beside_slow_ends", 89),  # a guarantee waited for a slowly ending pod of another guarantee
        # a victim of the same tenant was spared on capacity of another gang
        ("in_time_beside_slow_ends_in_two_pools", 513),
        ("nobody_starves", 41),  # small gangs of its tenant delayed a large gang again and again
        ("nobody_starves", 2187),
        ("nobody_starves_below_a_limit", 19),  # later gangs of its tenant used up the limit again and again
        ("nobody_starves_below_a_limit", 153),  # gangs of other tenants preempted the backfill of its reservation
        ("nobody_starves_below_a_limit", 859),  # such a gang was expected to end in time, but ran for longer
        ("nobody_starves_below_a_limit", 1041),  # nothing was reserved for it while other gangs had plans
        ("nobody_starves_below_a_limit", 1199),
        ("nobody_starves_below_a_limit", 5081),
        ("nobody_starves_inside_its_guarantee", 13),  # later gangs of its tenant filled the cells again and again
        ("nobody_starves_inside_its_guarantee", 23),
        ("whatever_comes_beside_slow_ends", 9),  # capacity next to a pod with a long grace period stayed idle
        ("whatever_comes_beside_slow_ends", 15),
        ("whatever_comes", 1149),  # a gang preempted another one next to lower work with a notice for no gang
        ("whatever_comes", 2756),  # two plans, one of which could use the capacity freed for the other
    ],
)
def test_former_failures_pass(invariant: str, seed: int) -> None:
    assert not find_failures(invariant, range(seed, seed + 1), shorten=False)


def test_fewer_stories_than_invariants_are_rejected() -> None:
    assert stories_per_invariant(47, 46) == 2
    with pytest.raises(ValueError, match="45 stories are fewer than the 46 invariants"):
        stories_per_invariant(45, 46)


def test_story_is_shortened_to_minimum() -> None:
    told = random_story(Random(3), StoryMix(most_gangs=9))

    short = shorten_story(told, lambda each: any(one.id == "g0" for step in each.steps for one, _ in step.arrives))

    assert len(short.steps) == len(short.nodes) == 1
    assert "g0" in str(short)
