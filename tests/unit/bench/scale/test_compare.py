"""Comparison of a run with simulations."""

from __future__ import annotations

import math

import pytest

from bench.scale.compare import compare_lives, judge_run, judge_samples, order_agreement
from bench.scale.lives import Life

NAMES = [f"g{number}" for number in range(4)]


def lives(*starts: float | None, evictions: tuple[int, ...] = (0, 0, 0, 0)) -> dict[str, Life]:
    return {
        name: Life(gang=name, arrived=10.0 * number, started=start, evictions=evicted)
        for number, (name, start, evicted) in enumerate(zip(NAMES, starts, evictions, strict=True))
    }


PLAN = lives(0, 10, 25, 40, evictions=(1, 0, 0, 0))


def test_the_tolerance_is_the_delay_of_gangs_that_never_wait() -> None:
    seen = compare_lives(NAMES, lives(0.4, 11.5, 26, 41.4), PLAN, until=100)
    assert seen.immediate == pytest.approx([0.4, 1.5])
    assert seen.waited == pytest.approx([1.0, 1.4])
    assert seen.tolerance == pytest.approx(1.5)
    assert (seen.both, seen.only_run, seen.only_simulation) == (4, (), ())
    assert seen.order == 1


def test_a_gang_that_one_side_never_starts_is_named() -> None:
    seen = compare_lives(NAMES, lives(0, 10, None, 40), lives(0, 10, 25, None), until=100)
    assert (seen.both, seen.only_run, seen.only_simulation) == (2, ("g3",), ("g2",))


def test_a_start_after_the_end_on_one_side_and_none_on_the_other_is_no_difference() -> None:
    run, simulation = lives(0, 10, None, None), lives(0, 10, 101, None)
    seen = compare_lives(NAMES, run, simulation, until=100)
    assert (seen.both, seen.only_run, seen.only_simulation) == (2, (), ())
    judged = judge_run(NAMES, run, [simulation], tolerance=1, until=100)
    assert (judged.same, judged.unexplained) == (4, ())


def test_start_between_two_simulations_is_explained() -> None:
    other = lives(0, 10, 60, 40)
    judged = judge_run(NAMES, lives(0.1, 10.1, 50, 70), [PLAN, other], tolerance=1, until=100)
    assert (judged.same, judged.spread, judged.unexplained) == (2, 1, ("g3",))
    never = judge_run(NAMES, lives(0.1, 10.1, None, 40), [PLAN, other], tolerance=1, until=100)
    assert never.unexplained == ("g2",)


def test_sample_is_judged_by_all_others() -> None:
    samples = [lives(0, 10, 60, 40), lives(0, 10, 70, 40)]
    first, second = judge_samples(NAMES, [PLAN], samples, tolerance=1, until=100)
    assert (first.same, first.spread, first.unexplained) == (3, 1, ())
    assert (second.same, second.spread, second.unexplained) == (3, 0, ("g2",))


def test_evictions_are_compared_by_their_number() -> None:
    mine = lives(0, 10, 25, 40, evictions=(0, 0, 1, 3))
    other = lives(0, 10, 25, 40, evictions=(0, 0, 2, 1))
    seen = compare_lives(NAMES, mine, PLAN, until=100)
    assert (seen.evicted_both, seen.evicted_only_run, seen.evicted_only_simulation) == (0, 2, 1)
    judged = judge_run(NAMES, mine, [PLAN, other], tolerance=1, until=100)
    assert (judged.evictions_same, judged.evictions_spread, judged.evictions_unexplained) == (1, 2, ("g3",))


def test_order_counts_pairs_beyond_the_tolerance() -> None:
    assert order_agreement([(0, 0), (10, 10), (20, 5)], 1.0) == pytest.approx(2 / 3)
    assert math.isnan(order_agreement([(0, 0), (0.5, 10)], 1.0))
