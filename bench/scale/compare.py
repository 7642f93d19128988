"""Comparison of a run with its simulations: which starts and evictions agree, and which differences timing explains.

Every simulation gets the same trace. The samples get other delays, drawn from those of the platform. A start is
explained if it lies between the earliest and the latest of the simulations, within the tolerance. To calibrate the
comparison, each sample is judged by the other simulations in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from bench.scale.lives import Life
from bench.stats import percentile

_ENOUGH: Final = 0.99
_LEAST: Final = 1.0
"""Minimum of the tolerance in seconds: hollow pods end up to a second early, because their start is a whole second."""

Lives = Mapping[str, Life]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of a run with one simulation. Start differences are run minus simulation, in seconds."""

    both: int
    """Gangs that started in both."""
    only_run: tuple[str, ...]
    only_simulation: tuple[str, ...]
    evicted_both: int
    evicted_only_run: int
    evicted_only_simulation: int
    immediate: Sequence[float]
    """Differences of gangs that the simulation starts on arrival."""
    waited: Sequence[float]
    """Differences of the other gangs."""
    order: float
    """Share of pairs of gangs that start in the same order. NaN if there are no pairs."""
    tolerance: float
    """99th percentile of the difference of gangs that start on arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Comparison of the gangs of one run with all simulations."""

    same: int
    """Gangs that started within the tolerance of the first simulation, or in neither."""
    spread: int
    """Gangs that started between the earliest and the latest of the simulations."""
    unexplained: tuple[str, ...]
    evictions_same: int
    """Gangs evicted as often as in the first simulation."""
    evictions_spread: int
    evictions_unexplained: tuple[str, ...]


def compare_lives(names: Sequence[str], run: Lives, simulation: Lives, *, until: float) -> Agreement:
    """Return the agreement with one simulation. Gangs that neither side started before `until` count as not started."""
    ours, theirs = _start_times(names, run), _start_times(names, simulation)
    started = {name for name in names if min(ours[name], theirs[name]) <= until}
    both = [name for name in names if name in started and math.isfinite(max(ours[name], theirs[name]))]
    at_once = {name for name in both if theirs[name] - _arrival_time(simulation[name]) <= _LEAST}
    quick = [ours[name] - theirs[name] for name in both if name in at_once]
    tolerance = max(_LEAST, percentile(quick, _ENOUGH)) if quick else _LEAST
    evicted, evicted_there = _evicted_gangs(names, run), _evicted_gangs(names, simulation)
    return Agreement(
        both=len(both),
        only_run=tuple(name for name in names if name in started and math.isinf(theirs[name])),
        only_simulation=tuple(name for name in names if name in started and math.isinf(ours[name])),
        evicted_both=len(evicted & evicted_there),
        evicted_only_run=len(evicted - evicted_there),
        evicted_only_simulation=len(evicted_there - evicted),
        immediate=quick,
        waited=[ours[name] - theirs[name] for name in both if name not in at_once],
        order=order_agreement([(theirs[name], ours[name]) for name in both], tolerance),
        tolerance=tolerance,
    )


def judge_run(
    names: Sequence[str], run: Lives, simulations: Sequence[Lives], *, tolerance: float, until: float
) -> Judgement:
    """Return the judgement of one run by simulations, the first of which is that of the plan."""
    starts = [_start_times(names, each, until=until) for each in simulations]
    mine = _start_times(names, run, until=until)
    near = {name for name in names if _is_between(mine[name], [starts[0][name]], tolerance, until)}
    spread = {
        name
        for name in names
        if name not in near and _is_between(mine[name], [each[name] for each in starts], tolerance, until)
    }
    counts = {name: [_eviction_count(each, name) for each in simulations] for name in names}
    equal = {name for name in names if _eviction_count(run, name) == counts[name][0]}
    within = {
        name
        for name in names
        if name not in equal and min(counts[name]) <= _eviction_count(run, name) <= max(counts[name])
    }
    return Judgement(
        same=len(near),
        spread=len(spread),
        unexplained=tuple(name for name in names if name not in near and name not in spread),
        evictions_same=len(equal),
        evictions_spread=len(within),
        evictions_unexplained=tuple(name for name in names if name not in equal and name not in within),
    )


def judge_samples(
    names: Sequence[str], simulations: Sequence[Lives], samples: Sequence[Lives], *, tolerance: float, until: float
) -> list[Judgement]:
    """Return the judgement of each sample by the simulations and the other samples."""
    return [
        judge_run(
            names,
            sample,
            [*simulations, *samples[:number], *samples[number + 1 :]],
            tolerance=tolerance,
            until=until,
        )
        for number, sample in enumerate(samples)
    ]


def order_agreement(pairs: Sequence[tuple[float, float]], tolerance: float) -> float:
    """Return the share of pairs of gangs whose two starts have the same order on both sides.

    Pairs that start within the tolerance of each other on one side have no order.
    """
    same = ordered = 0
    for (one, later), (other, later_other) in combinations(pairs, 2):
        if abs(one - other) <= tolerance or abs(later - later_other) <= tolerance:
            continue
        ordered += 1
        same += (one < other) == (later < later_other)
    return same / ordered if ordered else math.nan


def _is_between(start: float, others: Sequence[float], tolerance: float, until: float) -> bool:
    """Return whether a start lies between others. A start that may be later than the end counts as none."""
    if math.isinf(start):
        return max(others) + tolerance > until
    return min(others) - tolerance <= start <= max(others) + tolerance


def _start_times(names: Iterable[str], lives: Lives, *, until: float = math.inf) -> dict[str, float]:
    """Return the starts up to a time. Infinity: no start."""
    return {name: start if (start := _start_time(lives.get(name))) <= until else math.inf for name in names}


def _start_time(life: Life | None) -> float:
    return math.inf if life is None or life.started is None else life.started


def _arrival_time(life: Life) -> float:
    return 0.0 if life.arrived is None else life.arrived


def _evicted_gangs(names: Iterable[str], lives: Lives) -> set[str]:
    return {name for name in names if _eviction_count(lives, name)}


def _eviction_count(lives: Lives, name: str) -> int:
    life = lives.get(name)
    return 0 if life is None else life.evictions
