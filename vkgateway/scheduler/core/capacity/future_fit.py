"""Earliest fit of equal pods, counted over the expected ends instead of placed at each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import ABSENT, BoolArray, FloatArray, IntArray
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.node_table import MAX_AMOUNT
from vkgateway.scheduler.core.capacity.shape_views import PLENTY, sum_by_code
from vkgateway.scheduler.core.snapshot import Shape

_FIRST_ENDS, _GROWTH_FACTOR = 256, 8
"""Number of ends that the search counts first, and the factor by which it grows until the pods fit or no end is left.
"""


@dataclass(frozen=True, slots=True)
class WantedPods:
    """Equal pods with their placement constraints."""

    shape: Shape
    count: int
    required_level: str = ""
    mask: BoolArray | None = None
    """Allowed nodes by position; None: all."""


class FreeingSchedule:
    """Ends of pods in the order of time, with the node and shape of each; positions are those of the node resources."""

    def __init__(self, times: FloatArray, positions: IntArray, kinds: IntArray, shapes: Sequence[Shape]) -> None:
        """Create a schedule from ascending `times`; `kinds` are indices into `shapes`."""
        self.times = times
        self.positions = positions
        self.kinds = kinds
        self.shapes = shapes
        self._prefixes: dict[int, FreeingSchedule] = {}

    def first_ends(self, count: int) -> FreeingSchedule:
        """Return the first `count` ends."""
        if count >= len(self.times):
            return self
        found = self._prefixes.get(count)
        if found is None:
            found = FreeingSchedule(self.times[:count], self.positions[:count], self.kinds[:count], self.shapes)
            self._prefixes[count] = found
        return found

    def ends_until(self, time: float) -> FreeingSchedule:
        """Return the ends up to a time."""
        return self.first_ends(int(self.times.searchsorted(time, side="right")))

    def growing_prefixes(self) -> Iterator[FreeingSchedule]:
        """Yield growing prefixes of the schedule, the whole schedule last."""
        count = _FIRST_ENDS
        while count < len(self.times):
            yield self.first_ends(count)
            count *= _GROWTH_FACTOR
        yield self

    def merged_with(self, others: FreeingSchedule) -> FreeingSchedule:
        """Return a schedule of these ends and others."""
        if not len(others.times):
            return self
        times = np.concatenate([self.times, others.times])
        order = np.argsort(times, kind="stable")
        positions = np.concatenate([self.positions, others.positions])
        kinds = np.concatenate([self.kinds, others.kinds + len(self.shapes)])
        return FreeingSchedule(times[order], positions[order], kinds[order], [*self.shapes, *others.shapes])

    def counts_by_shape(self, size: int) -> Iterator[tuple[Shape, IntArray, IntArray]]:
        """Yield the shapes of the pods that end, with the positions of their nodes and the number of pods on each."""
        if not len(self.times):
            return
        found = np.bincount(self.kinds * size + self.positions, minlength=len(self.shapes) * size)
        for shape, counts in zip(self.shapes, found.reshape(-1, size), strict=True):
            positions = np.flatnonzero(counts)
            if len(positions):
                yield shape, positions, counts[positions]

    @cached_property
    def node_order(self) -> IntArray:
        """Indices of the ends sorted by node, then by time."""
        return np.argsort(self.positions, kind="stable")

    @cached_property
    def node_positions(self) -> IntArray:
        """Node position of each end, in `node_order`."""
        return self.positions[self.node_order]

    @cached_property
    def node_begins(self) -> BoolArray:
        """Mask of the ends that are the first of their node, in `node_order`."""
        return _group_begins(self.node_positions)

    @cached_property
    def _freed_cache(self) -> dict[str, IntArray]:
        return {}

    def freed_amounts(self, resource: str) -> IntArray:
        """Return the amount that each end and the earlier ends of its node free, in `node_order`."""
        found = self._freed_cache.get(resource)
        if found is None:
            amounts = np.array([min(shape.amount_of(resource), MAX_AMOUNT) for shape in self.shapes], dtype=np.int64)
            found = self._freed_cache[resource] = _running_sums(amounts[self.kinds[self.node_order]], self.node_begins)
        return found


def make_schedule(ends: Sequence[tuple[float, str, Shape]], positions_by_node: Mapping[str, int]) -> FreeingSchedule:
    """Return the schedule of ends given by time, node and shape."""
    numbers: dict[int, int] = {}
    shapes: list[Shape] = []
    for _, _, shape in ends:
        if id(shape) not in numbers:
            numbers[id(shape)] = len(shapes)
            shapes.append(shape)
    times = np.array([time for time, _, _ in ends], dtype=np.float64)
    positions = np.array([positions_by_node[node] for _, node, _ in ends], dtype=np.int64)
    kinds = np.array([numbers[id(shape)] for _, _, shape in ends], dtype=np.int64)
    order = np.argsort(times, kind="stable")
    return FreeingSchedule(times[order], positions[order], kinds[order], shapes)


def first_fit_time(
    resources: NodeResources, known: FreeingSchedule, others: FreeingSchedule, wanted: WantedPods
) -> float | None:
    """Return the first of these ends at which the pods fit; None: they never fit.

    Valid only without NUMA zones: sums do not describe what zones admit.
    """
    for part in known.growing_prefixes():
        last = part is known
        both = part.merged_with(others if last else others.ends_until(part.times.item(-1)))
        found = _first_fit_time(resources, both, wanted)
        if found is not None or last:
            return found
    return None


def _first_fit_time(resources: NodeResources, ends: FreeingSchedule, wanted: WantedPods) -> float | None:
    gains = _capacity_gains(resources, ends, wanted)
    if gains is None or not len(ends.times):
        return None
    capacity = resources.views[wanted.shape].capacity
    if wanted.mask is not None:
        capacity = np.where(wanted.mask, capacity, 0)
    if wanted.required_level:
        return _first_fit_in_domain(resources, ends, gains, capacity, wanted)
    in_time = np.empty_like(gains)
    in_time[ends.node_order] = gains
    index = int(np.cumsum(in_time).searchsorted(wanted.count - int(capacity.sum())))
    return ends.times.item(index) if index < len(in_time) else None


def _first_fit_in_domain(
    resources: NodeResources, ends: FreeingSchedule, gains: IntArray, capacity: IntArray, wanted: WantedPods
) -> float | None:
    column = resources.nodes.filter.label_column(wanted.required_level)
    offers = sum_by_code(column.codes, capacity, len(column.values))
    offers[-1] = 0  # nodes without the label belong to no domain
    if offers.max() >= wanted.count:
        return ends.times.item(0)
    times, codes = ends.times[ends.node_order], column.codes[ends.node_positions]
    order = np.lexsort((times, codes))
    times, codes = times[order], codes[order]
    reached = offers[codes] + _running_sums(gains[order], _group_begins(codes))
    enough = times[(reached >= wanted.count) & (codes != ABSENT)]
    return float(enough.min()) if len(enough) else None


def _capacity_gains(resources: NodeResources, ends: FreeingSchedule, wanted: WantedPods) -> IntArray | None:
    """Return how many more pods fit after each end, in `node_order`; None: a requested resource is missing."""
    nodes, begins, shape = ends.node_positions, ends.node_begins, wanted.shape
    fits = np.full(len(nodes), PLENTY, dtype=np.int64)
    for resource, amount in shape.requests:
        try:
            free = resources.free.amounts_of(resource)
        except KeyError:
            return None
        np.minimum(fits, (free[nodes] + ends.freed_amounts(resource)) // min(amount, MAX_AMOUNT), out=fits)
    np.maximum(fits, 0, out=fits)
    before = np.empty_like(fits)
    before[1:] = fits[:-1]
    before[begins] = resources.views[shape].capacity[nodes[begins]]
    gains = fits - before
    allowed = resources.nodes.filter.feasible_nodes(shape)
    if wanted.mask is not None:
        allowed = allowed & wanted.mask
    gains[~allowed[nodes]] = 0
    return gains


def _group_begins(groups: IntArray) -> BoolArray:
    """Return a mask of the first element of each run of equal numbers."""
    begins = np.empty(len(groups), dtype=bool)
    begins[:1] = True
    np.not_equal(groups[1:], groups[:-1], out=begins[1:])
    return begins


def _running_sums(amounts: IntArray, begins: BoolArray) -> IntArray:
    """Return the running sums within each group. Overflow of the total cancels out."""
    total = np.cumsum(amounts)
    starts = np.flatnonzero(begins)
    before = total[starts] - amounts[starts]
    return total - np.repeat(before, np.diff(starts, append=len(amounts)))
