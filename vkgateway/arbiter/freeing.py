"""When enough equal pods of a gang fit, by counting over the known ends of pods instead of placing them each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vkgateway.arbiter.facts import Shape
from vkgateway.arbiter.fitting import ABSENT, BoolArray, FloatArray, IntArray
from vkgateway.arbiter.room import Room
from vkgateway.arbiter.views import PLENTY, sums
from vkgateway.arbiter.yard import MOST

_FIRST, _TIMES = 256, 8
"""The search counts the first ends, then this many times more, until the pods fit or no end is left."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Equal pods, and where they may run."""

    shape: Shape
    count: int
    required_level: str = ""
    mask: BoolArray | None = None
    """Nodes by position; None: all."""


class Freeing:
    """Ends of pods in the order of time, and what they free on each node; positions are those of the room."""

    def __init__(self, times: FloatArray, positions: IntArray, kinds: IntArray, shapes: Sequence[Shape]) -> None:
        """`times` rise; `kinds` are indices of `shapes`."""
        self.times = times
        self.positions = positions
        self.kinds = kinds
        self.shapes = shapes
        self._firsts: dict[int, Freeing] = {}

    def first(self, count: int) -> Freeing:
        """Return the first ends."""
        if count >= len(self.times):
            return self
        found = self._firsts.get(count)
        if found is None:
            found = Freeing(self.times[:count], self.positions[:count], self.kinds[:count], self.shapes)
            self._firsts[count] = found
        return found

    def until(self, time: float) -> Freeing:
        """Return the ends up to a time."""
        return self.first(int(self.times.searchsorted(time, side="right")))

    def parts(self) -> Iterator[Freeing]:
        """Yield ever more of the first ends, all of them at last."""
        count = _FIRST
        while count < len(self.times):
            yield self.first(count)
            count *= _TIMES
        yield self

    def with_others(self, others: Freeing) -> Freeing:
        """Return these ends together with others."""
        if not len(others.times):
            return self
        times = np.concatenate([self.times, others.times])
        order = np.argsort(times, kind="stable")
        positions = np.concatenate([self.positions, others.positions])
        kinds = np.concatenate([self.kinds, others.kinds + len(self.shapes)])
        return Freeing(times[order], positions[order], kinds[order], [*self.shapes, *others.shapes])

    def counts(self, size: int) -> Iterator[tuple[Shape, IntArray]]:
        """Yield how many pods of each shape end on each of the nodes."""
        if not len(self.times):
            return
        found = np.bincount(self.kinds * size + self.positions, minlength=len(self.shapes) * size)
        yield from zip(self.shapes, found.reshape(-1, size), strict=True)

    @cached_property
    def by_node(self) -> IntArray:
        """The order of the ends by node, and by time on each of them."""
        return np.argsort(self.positions, kind="stable")

    @cached_property
    def nodes(self) -> IntArray:
        """The position of each end, in the order `by_node`."""
        return self.positions[self.by_node]

    @cached_property
    def begins(self) -> BoolArray:
        """Which ends are the first of their node, in the order `by_node`."""
        return _begins(self.nodes)

    @cached_property
    def _freed(self) -> dict[str, IntArray]:
        return {}

    def freed(self, resource: str) -> IntArray:
        """Return what each end and those before it on its node free of a resource, in the order `by_node`."""
        found = self._freed.get(resource)
        if found is None:
            amounts = np.array([min(shape.amount(resource), MOST) for shape in self.shapes], dtype=np.int64)
            found = self._freed[resource] = _running(amounts[self.kinds[self.by_node]], self.begins)
        return found


def freeing_of(ends: Sequence[tuple[float, str, Shape]], room: Room) -> Freeing:
    """Return ends that are given by time, node and shape."""
    numbers: dict[int, int] = {}
    shapes: list[Shape] = []
    for _, _, shape in ends:
        if id(shape) not in numbers:
            numbers[id(shape)] = len(shapes)
            shapes.append(shape)
    times = np.array([time for time, _, _ in ends], dtype=np.float64)
    positions = np.array([room.position(node) for _, node, _ in ends], dtype=np.int64)
    kinds = np.array([numbers[id(shape)] for _, _, shape in ends], dtype=np.int64)
    order = np.argsort(times, kind="stable")
    return Freeing(times[order], positions[order], kinds[order], shapes)


def first_fit(room: Room, known: Freeing, others: Freeing, wanted: Wanted) -> float | None:
    """Return the first of these ends at which the pods fit; None: they never do.

    Without NUMA zones only: what zones allow is no matter of sums.
    """
    for part in known.parts():
        last = part is known
        both = part.with_others(others if last else others.until(part.times.item(-1)))
        found = _first_fit(room, both, wanted)
        if found is not None or last:
            return found
    return None


def _first_fit(room: Room, ends: Freeing, wanted: Wanted) -> float | None:
    gains = _gains(room, ends, wanted)
    if gains is None or not len(ends.times):
        return None
    capacity = room.view(wanted.shape).capacity
    if wanted.mask is not None:
        capacity = np.where(wanted.mask, capacity, 0)
    if wanted.required_level:
        return _first_fit_in_domain(room, ends, gains, capacity, wanted)
    in_time = np.empty_like(gains)
    in_time[ends.by_node] = gains
    index = int(np.cumsum(in_time).searchsorted(wanted.count - int(capacity.sum())))
    return ends.times.item(index) if index < len(in_time) else None


def _first_fit_in_domain(
    room: Room, ends: Freeing, gains: IntArray, capacity: IntArray, wanted: Wanted
) -> float | None:
    column = room.fitting.column(wanted.required_level)
    offers = sums(column.codes, capacity, len(column.values))
    offers[-1] = 0  # nodes without the label are no domain
    if offers.max() >= wanted.count:
        return ends.times.item(0)
    times, codes = ends.times[ends.by_node], column.codes[ends.nodes]
    order = np.lexsort((times, codes))
    times, codes = times[order], codes[order]
    reached = offers[codes] + _running(gains[order], _begins(codes))
    enough = times[(reached >= wanted.count) & (codes != ABSENT)]
    return float(enough.min()) if len(enough) else None


def _gains(room: Room, ends: Freeing, wanted: Wanted) -> IntArray | None:
    """How many more pods fit after each end, in the order `by_node`; None: none ever does."""
    nodes, begins, shape = ends.nodes, ends.begins, wanted.shape
    fits = np.full(len(nodes), PLENTY, dtype=np.int64)
    for resource, amount in shape.requests:
        try:
            free = room.amount(resource)
        except KeyError:
            return None
        np.minimum(fits, (free[nodes] + ends.freed(resource)) // min(amount, MOST), out=fits)
    np.maximum(fits, 0, out=fits)
    before = np.empty_like(fits)
    before[1:] = fits[:-1]
    before[begins] = room.view(shape).capacity[nodes[begins]]
    gains = fits - before
    allowed = room.fitting.mask(shape)
    if wanted.mask is not None:
        allowed = allowed & wanted.mask
    gains[~allowed[nodes]] = 0
    return gains


def _begins(groups: IntArray) -> BoolArray:
    """Where another group begins among numbers that stand together by group."""
    begins = np.empty(len(groups), dtype=bool)
    begins[:1] = True
    np.not_equal(groups[1:], groups[:-1], out=begins[1:])
    return begins


def _running(amounts: IntArray, begins: BoolArray) -> IntArray:
    """The sum of each group up to each of its amounts. Sums that overflow come out right all the same."""
    total = np.cumsum(amounts)
    starts = np.flatnonzero(begins)
    before = total[starts] - amounts[starts]
    return total - np.repeat(before, np.diff(starts, append=len(amounts)))
