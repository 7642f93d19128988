"""Comparison of a run with its simulations: which starts and evictions agree, and which differences timing explains.

Every simulation gets the same trace; the samples get other delays, drawn from those that the platform showed. A start
is explained where it lies between the earliest and the latest of the simulations, give or take the tolerance. The
samples measure this yardstick: each is judged by the other simulations in the same way.
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
"""The tolerance in seconds at least: hollow pods end up to a second early, since their start is a whole second."""

Lives = Mapping[str, Life]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A run beside one simulation. Starts are compared as run minus simulation, in seconds."""

    both: int
    """Gangs that started in both."""
    only_run: tuple[str, ...]
    only_simulation: tuple[str, ...]
    evicted_both: int
    evicted_only_run: int
    evicted_only_simulation: int
    at_once: Sequence[float]
    """Of gangs that the simulation starts when they arrive."""
    waited: Sequence[float]
    """Of the others."""
    order: float
    """The share of pairs of gangs that start in the same order; NaN of no pairs."""
    tolerance: float
    """The difference that a gang that starts at once has at most, but for a hundredth of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How the gangs of one run compare with all simulations."""

    same: int
    """Started within the tolerance of the first simulation, or in neither."""
    spread: int
    """Started between the earliest and the latest of the simulations."""
    unexplained: tuple[str, ...]
    evictions_same: int
    """Evicted as often as in the first simulation."""
    evictions_spread: int
    evictions_unexplained: tuple[str, ...]


def compare(names: Sequence[str], run: Lives, simulation: Lives, *, until: float) -> Agreement:
    """Compare gangs with one simulation. Those that neither side started before `until` count as started in neither."""
    ours, theirs = _starts(names, run), _starts(names, simulation)
    started = {name for name in names if min(ours[name], theirs[name]) <= until}
    both = [name for name in names if name in started and math.isfinite(max(ours[name], theirs[name]))]
    at_once = {name for name in both if theirs[name] - _arrived(simulation[name]) <= _LEAST}
    quick = [ours[name] - theirs[name] for name in both if name in at_once]
    tolerance = max(_LEAST, percentile(quick, _ENOUGH)) if quick else _LEAST
    evicted, evicted_there = _evicted(names, run), _evicted(names, simulation)
    return Agreement(
        both=len(both),
        only_run=tuple(name for name in names if name in started and math.isinf(theirs[name])),
        only_simulation=tuple(name for name in names if name in started and math.isinf(ours[name])),
        evicted_both=len(evicted & evicted_there),
        evicted_only_run=len(evicted - evicted_there),
        evicted_only_simulation=len(evicted_there - evicted),
        at_once=quick,
        waited=[ours[name] - theirs[name] for name in both if name not in at_once],
        order=order([(theirs[name], ours[name]) for name in both], tolerance),
        tolerance=tolerance,
    )


def judge(names: Sequence[str], run: Lives, simulations: Sequence[Lives], *, tolerance: float, until: float) -> Judged:
    """Judge one run by simulations, the first of which is that of the plan."""
    starts = [_starts(names, each, until=until) for each in simulations]
    mine = _starts(names, run, until=until)
    near = {name for name in names if _is_between(mine[name], [starts[0][name]], tolerance, until)}
    spread = {
        name
        for name in names
        if name not in near and _is_between(mine[name], [each[name] for each in starts], tolerance, until)
    }
    counts = {name: [_evictions(each, name) for each in simulations] for name in names}
    equal = {name for name in names if _evictions(run, name) == counts[name][0]}
    within = {
        name for name in names if name not in equal and min(counts[name]) <= _evictions(run, name) <= max(counts[name])
    }
    return Judged(
        same=len(near),
        spread=len(spread),
        unexplained=tuple(name for name in names if name not in near and name not in spread),
        evictions_same=len(equal),
        evictions_spread=len(within),
        evictions_unexplained=tuple(name for name in names if name not in equal and name not in within),
    )


def judge_samples(
    names: Sequence[str], simulations: Sequence[Lives], samples: Sequence[Lives], *, tolerance: float, until: float
) -> list[Judged]:
    """Judge each sample by the simulations and the other samples."""
    return [
        judge(
            names,
            sample,
            [*simulations, *samples[:number], *samples[number + 1 :]],
            tolerance=tolerance,
            until=until,
        )
        for number, sample in enumerate(samples)
    ]


def order(pairs: Sequence[tuple[float, float]], tolerance: float) -> float:
    """Return the share of pairs of gangs whose two starts have the same order on both sides.

    Pairs that one side starts within the tolerance of each other have no order.
    """
    same = told = 0
    for (one, mine), (other, yours) in combinations(pairs, 2):
        if abs(one - other) <= tolerance or abs(mine - yours) <= tolerance:
            continue
        told += 1
        same += (one < other) == (mine < yours)
    return same / told if told else math.nan


def _is_between(start: float, others: Sequence[float], tolerance: float, until: float) -> bool:
    """Return whether a start lies between others. One that is so late that it may be past the end counts as none."""
    if math.isinf(start):
        return max(others) + tolerance > until
    return min(others) - tolerance <= start <= max(others) + tolerance


def _starts(names: Iterable[str], lives: Lives, *, until: float = math.inf) -> dict[str, float]:
    """Return the starts up to a time; infinity: there was none."""
    return {name: start if (start := _start(lives.get(name))) <= until else math.inf for name in names}


def _start(life: Life | None) -> float:
    return math.inf if life is None or life.started is None else life.started


def _arrived(life: Life) -> float:
    return 0.0 if life.arrived is None else life.arrived


def _evicted(names: Iterable[str], lives: Lives) -> set[str]:
    return {name for name in names if _evictions(lives, name)}


def _evictions(lives: Lives, name: str) -> int:
    life = lives.get(name)
    return 0 if life is None else life.evictions
