"""The cycle over random stories, carried out step by step: what must hold whatever comes.

`VKGATEWAY_CASES` says how many stories there are in all, spread over the invariants: few, for a first look. One that
fails is told in its shortest form. `python -m tests.property.deep` looks at any number of them.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.property.deep import INVARIANTS, look
from tests.unit.arbiter.stories import Mix, shortened, story

CASES = int(os.environ.get("VKGATEWAY_CASES", "40"))
CHUNKS = max(1, CASES // 100)
"""Tests for each invariant, so that they may run side by side."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("invariant", sorted(INVARIANTS))
def test_holds_in_every_story(invariant: str, chunk: int) -> None:
    each = max(1, CASES // len(INVARIANTS) // CHUNKS)
    failures = look(invariant, range(chunk * each, (chunk + 1) * each))

    assert not failures, "\n".join(f"seed {one.seed}: {one.error}\n{one.story}" for one in failures)


@pytest.mark.parametrize(
    ("invariant", "seed"),
    [
        ("better_than_alone", 3346),  # surplus inside cells, whose core borrowed
        ("called_in_at_once", 2373),  # the surplus of a gang whose core went for another tenant was spared
        ("called_in_at_once", 2778),  # a cell was larger than its pods needed, in view of a plan that could move
        ("called_in_at_once", 4041),  # cells of 8 and 4, each half used, were bound the wrong way round
        ("called_in_at_once", 3649),  # and so was whom another plan counted on
        ("deciding_again", 1465),  # a plan on a node that had gone held cells
        ("deciding_again", 2126),
        ("deciding_again", 3311),  # lent to a gang that used up the limit of its tenant's own gang ahead
        (
            "deciding_again_in_two_pools",
            2275,
        ),  # a gang's last pod started while others of it, at its maximum, might stay
        ("deciding_again_in_two_pools", 5020),  # what did not fit an empty pool did beside others
        ("gangs_in_two_pools", 127),  # a part that may go to both pools took the room of one that may not
        ("gangs_in_two_pools", 139),  # surplus went to another pool in the next cycle
        ("gangs_in_two_pools", 341),  # what only started kept a later gang from its guarantee
        ("gangs_in_two_pools", 565),  # a part inside its guarantee took the only room of another one
        ("gangs_in_two_pools", 590),  # a gang counted on what was to leave for a later one in the next cycle only
        ("gangs_in_two_pools_in_time", 550),  # surplus stayed in one pool while the rest went from another
        ("gangs_in_two_pools", 303),  # surplus inside its guarantee made surplus of a core that borrows
        ("gangs_in_two_pools_with_a_reserve", 97),  # victims of two gangs became those of one
        ("gangs_in_two_pools_with_a_reserve", 211),  # of a gang whose pods were all under notice one was spared
        ("higher_work_starts", 335),  # what was evicted for the limit was surplus, whose room was reserved
        ("higher_work_starts_in_two_pools", 307),  # such surplus was where the gang did not fit
        ("in_time_beside_slow_ends", 89),  # a guarantee waited for a pod of another one that took its time to end
        ("in_time_beside_slow_ends_in_two_pools", 513),  # whom its own tenant preempted was spared in another's room
        ("nobody_starves", 41),  # small work of its own tenant put off the turn of a large gang again and again
        ("nobody_starves", 2187),
        ("nobody_starves_below_a_limit", 19),  # later work of its own tenant used up the limit again and again
        ("nobody_starves_below_a_limit", 153),  # other tenants' higher work preempted what ran in its reserved place
        ("nobody_starves_below_a_limit", 859),  # such work that was to have gone in time, but ran for longer
        ("nobody_starves_below_a_limit", 1041),  # nothing was reserved for it while other gangs had plans
        ("nobody_starves_below_a_limit", 1199),
        ("nobody_starves_below_a_limit", 5081),
        ("nobody_starves_inside_its_guarantee", 13),  # later work of its own tenant filled the cells again and again
        ("nobody_starves_inside_its_guarantee", 23),
        ("whatever_comes_beside_slow_ends", 9),  # what was free beside a pod with a long grace was kept idle
        ("whatever_comes_beside_slow_ends", 15),
        ("whatever_comes", 1149),  # a gang preempted another beside lower work that was notified for no one any more
        ("whatever_comes", 2756),  # two plans, of which one could have stood on what was freed for the other
    ],
)
def test_what_failed_once(invariant: str, seed: int) -> None:
    assert not look(invariant, range(seed, seed + 1), shorten=False)


def test_a_story_is_made_as_short_as_it_can_be() -> None:
    told = story(Random(3), Mix(most_gangs=9))

    short = shortened(told, lambda each: any(one.id == "g0" for step in each.steps for one, _ in step.arrives))

    assert len(short.steps) == len(short.nodes) == 1
    assert "g0" in str(short)
