"""Comparisons of a run with simulations."""

from __future__ import annotations

import math

import pytest

from bench.scale.compare import compare, order
from bench.scale.lives import Life
from vkgateway.arbiter.facts import Shape
from vkgateway.simulate.scenario import GPU, Job

JOBS = [
    Job(id=f"g{number}", tenant="a", shapes=(Shape.of({GPU: 8000}),), submitted=10.0 * number, run=5.0)
    for number in range(4)
]


def lives(*starts: float | None, evictions: tuple[int, ...] = (0, 0, 0, 0)) -> dict[str, Life]:
    return {
        job.id: Life(gang=job.id, arrived=job.submitted, started=start, evictions=evicted)
        for job, start, evicted in zip(JOBS, starts, evictions, strict=True)
    }


PLAN = lives(0, 10, 25, 40, evictions=(1, 0, 0, 0))


def test_starts_within_the_delay_of_gangs_that_never_wait_are_the_same() -> None:
    seen = compare(JOBS, lives(0.4, 11.5, 26, 41.4), [PLAN], [], until=100)
    assert seen.at_once == pytest.approx([0.4, 1.5])
    assert seen.waited == pytest.approx([1.0, 1.4])
    assert seen.tolerance == pytest.approx(1.5)
    assert (seen.both, seen.only_platform, seen.only_simulation) == (4, (), ())
    assert (seen.platform.same, seen.platform.spread, seen.platform.unexplained) == (4, 0, ())


def test_a_start_between_those_of_two_simulations_is_explained_and_one_beyond_is_not() -> None:
    other = lives(0, 10, 60, 40)
    seen = compare(JOBS, lives(0.1, 10.1, 50, 70), [PLAN], [other], until=100)
    assert (seen.platform.same, seen.platform.spread, seen.platform.unexplained) == (2, 1, ("g3",))
    # The sample is judged by the plan alone: nothing explains its 60.
    assert seen.samples[0].unexplained == ("g2",)


def test_a_gang_that_one_side_never_starts_is_named() -> None:
    seen = compare(JOBS, lives(0, 10, None, 40), [lives(0, 10, 25, None)], [], until=100)
    assert (seen.both, seen.only_platform, seen.only_simulation) == (2, ("g3",), ("g2",))
    assert seen.platform.unexplained == ("g2", "g3")


def test_no_start_is_explained_by_one_after_the_end_and_by_none() -> None:
    seen = compare(JOBS, lives(0, 10, None, None), [lives(0, 10, 101, None)], [], until=100)
    assert (seen.only_platform, seen.only_simulation) == ((), ())
    assert (seen.platform.same, seen.platform.unexplained) == (4, ())


def test_evictions_are_compared_by_their_number() -> None:
    mine = lives(0, 10, 25, 40, evictions=(0, 0, 1, 3))
    other = lives(0, 10, 25, 40, evictions=(0, 0, 2, 1))
    seen = compare(JOBS, mine, [PLAN], [other], until=100)
    assert (seen.evicted_both, seen.evicted_only_platform, seen.evicted_only_simulation) == (0, 2, 1)
    assert seen.platform.evictions_same == 1
    assert seen.platform.evictions_spread == 2
    assert seen.platform.evictions_unexplained == ("g3",)


def test_order_counts_pairs_that_are_apart_on_both_sides() -> None:
    assert order([(0, 0), (10, 10), (20, 5)], 1.0) == pytest.approx(2 / 3)
    assert math.isnan(order([(0, 0), (0.5, 10)], 1.0))
