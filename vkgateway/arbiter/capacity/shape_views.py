"""What nodes are worth to one shape, brought up to date by what was touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vkgateway.arbiter.capacity.free_vectors import FEW, SHARE, SPARE, SPARE_BITS, FreeCapacity
from vkgateway.arbiter.capacity.node_fit import IntArray
from vkgateway.arbiter.snapshot import Shape

PLENTY = 1 << 20
"""More pods than these are never said to fit on a node; of pods that ask for nothing so many do."""

NEVER = (1 << 63) - 1
"""The key of a node on which nothing fits."""

_SOFT_BITS, _IMAGE_BITS = 3, 4
"""How finely a node's key tells taints and missing images."""


@dataclass(frozen=True, slots=True)
class DomainSums:
    """What the nodes of each domain of a level offer to a shape together; the last is for nodes without the label."""

    capacity: IntArray
    loose: IntArray
    """How many fit on nodes that are not whole."""
    units: IntArray
    """Free thousandths of the unit, on nodes where the shape may run."""


class ShapeView:
    """What each node is worth to a shape.

    `capacity` is how many pods of it fit on each node; the smaller a node's `key`, the sooner it is chosen. Keys are
    all different, but for those of nodes on which nothing fits: they are NEVER. What a key tells, most telling first:
    whether a whole node is broken into, dislike (taints), units free, how much is free of the other resources, images
    missing, position. The fewer units are free the sooner a node is chosen, so that none which could still take a
    larger pod is broken into where a fuller one would do.
    """

    def __init__(self, yard: FreeCapacity, shape: Shape) -> None:
        self._free_capacity = yard
        self._shape = shape
        self._mask = yard.node_filter.feasible_nodes(shape)
        asked = yard.requested_lines(shape)
        self._asked = asked or []
        self._is_possible = asked is not None
        self._free = yard.free_amounts(yard.unit)
        self._breaks_whole_nodes = shape.amount_of(yard.unit) > 0
        others = [name for name, _ in shape.requests if self._is_possible and name not in (yard.unit, "pods")]
        self._others = [yard.weighted_amounts(name) for name in others]
        self._layout = _KeyLayout.for_pool(yard.whole, yard.size)
        self._fixed = self._layout.fixed_keys(
            yard.node_filter.taint_penalty(shape), yard.node_filter.missing_images(shape)
        )
        self._seen_until = -1
        self._sums: dict[str, tuple[IntArray, DomainSums]] = {}
        self.capacity: IntArray = np.zeros(yard.size, dtype=np.int64)
        self.key: IntArray = np.full(yard.size, NEVER, dtype=np.int64)
        self.units: IntArray = np.zeros(yard.size, dtype=np.int64)
        """Free thousandths of the unit, where the shape may run."""
        self.total = 0
        """How many fit on all nodes together."""

    def refresh(self) -> None:
        """Work out anew what was touched since the last time."""
        log = self._free_capacity
        now = log.dropped + len(log.touched)
        if self._seen_until == now or not self._is_possible:
            return
        # A node may have been touched more than once.
        touched = () if self._seen_until < log.dropped else dict.fromkeys(log.touched[self._seen_until - log.dropped :])
        if not touched or len(touched) * SHARE > log.size > FEW:
            self._refresh_all()
        elif len(touched) > FEW:
            self._refresh_some(np.array(list(touched), dtype=np.int64))
        else:
            for position in touched:
                self._refresh_one(position)
        self._seen_until = now

    def equal_nodes(self, position: int) -> IntArray:
        """The nodes that differ from this one, on which the shape fits, by nothing but their position."""
        return np.flatnonzero(self.key >> self._layout.images == self.worth_of(position))

    def worth_of(self, position: int) -> int:
        """The key of a node without its position."""
        return self.key.item(position) >> self._layout.images

    def count_fitting_nodes(self, positions: IntArray | None) -> int:
        """On how many of these nodes one of the shape fits."""
        return int(np.count_nonzero(self.capacity if positions is None else self.capacity[positions]))

    def loose_capacity(self, at: IntArray | slice) -> IntArray:
        """How many fit on each of these nodes, none on whole ones."""
        return np.where(self.units[at] >= self._free_capacity.whole, 0, self.capacity[at])

    def domain_sums(self, level: str) -> DomainSums:
        """What the domains of a level offer, by the codes of `NodeFilter.label_column`; not to be written to."""
        found = self._sums.get(level)
        if found is None:
            column = self._free_capacity.node_filter.label_column(level)
            number = len(column.values)
            parts = (
                sum_by_code(column.codes, values, number)
                for values in (self.capacity, self.loose_capacity(slice(None)), self.units)
            )
            found = self._sums[level] = column.codes, DomainSums(*parts)
        return found[1]

    def _refresh_all(self) -> None:
        self.capacity, self.units, self.key = self._compute_worth(slice(None))
        self.total = int(self.capacity.sum())
        self._sums.clear()

    def _refresh_some(self, positions: IntArray) -> None:
        before = self.capacity[positions], self.loose_capacity(positions), self.units[positions]
        self.capacity[positions], self.units[positions], self.key[positions] = self._compute_worth(positions)
        after = self.capacity[positions], self.loose_capacity(positions), self.units[positions]
        self.total += int(after[0].sum() - before[0].sum())
        for codes, kept in self._sums.values():
            for line, old, new in zip((kept.capacity, kept.loose, kept.units), before, after, strict=True):
                np.add.at(line, codes[positions], new - old)

    def _compute_worth(self, at: IntArray | slice) -> tuple[IntArray, IntArray, IntArray]:
        """Capacity, units and key of these nodes."""
        mask, whole, layout = self._mask[at], self._free_capacity.whole, self._layout
        capacity = np.where(mask, PLENTY, 0)
        for free, amount in self._asked:
            np.minimum(capacity, free[at] // amount, out=capacity)
        np.maximum(capacity, 0, out=capacity)
        if self._free_capacity.zones is not None:
            self._free_capacity.zones.limit_capacities(capacity, self._shape, None if isinstance(at, slice) else at)
        units = np.clip(self._free[at], 0, whole)
        key = self._fixed[at] + ((units >> layout.coarse) << layout.units)
        if self._breaks_whole_nodes:
            key += (units >= whole).astype(np.int64) << layout.broken
        if self._others:
            rest = sum(free[at] * scale[at] for free, scale in self._others) / len(self._others)
            key += np.clip(rest, 0, SPARE).astype(np.int64) << layout.spare
        return capacity, np.where(mask, units, 0), np.where(capacity > 0, key, NEVER)

    def _refresh_one(self, position: int) -> None:
        """The same for a single node, for which numpy would take ten times longer."""
        if not self._mask.item(position):
            return
        capacity = PLENTY
        for free, amount in self._asked:
            fits = free.item(position) // amount
            capacity = min(capacity, fits)
        capacity = max(capacity, 0)
        if self._free_capacity.zones is not None:
            capacity = self._free_capacity.zones.limit_capacity(capacity, self._shape, position)
        whole, layout = self._free_capacity.whole, self._layout
        units = max(0, min(self._free.item(position), whole))
        if self._sums:
            self._update_sums(position, capacity, units)
        self.total += capacity - self.capacity.item(position)
        self.capacity[position], self.units[position] = capacity, units
        if capacity == 0:
            self.key[position] = NEVER
            return
        key = self._fixed.item(position) + ((units >> layout.coarse) << layout.units)
        if self._breaks_whole_nodes and units >= whole:
            key += 1 << layout.broken
        if self._others:
            rest = 0.0
            for free, scale in self._others:
                rest += free.item(position) * scale.item(position)
            key += int(min(max(rest / len(self._others), 0), SPARE)) << layout.spare
        self.key[position] = key

    def _update_sums(self, position: int, capacity: int, units: int) -> None:
        """Take into the sums what a node is worth from now on."""
        whole = self._free_capacity.whole
        old_capacity, old_units = self.capacity.item(position), self.units.item(position)
        for codes, sums_ in self._sums.values():
            # The code of nodes without the label is -1: the last of the sums.
            code = codes.item(position)
            sums_.capacity[code] += capacity - old_capacity
            sums_.loose[code] += (capacity if units < whole else 0) - (old_capacity if old_units < whole else 0)
            sums_.units[code] += units - old_units


def sum_by_code(codes: IntArray, values: IntArray, number: int) -> IntArray:
    """The sum of the values for each of so many codes, and at last for those without one."""
    found = np.zeros(number + 1, dtype=np.int64)
    np.add.at(found, codes, values)
    return found


class _KeyLayout(NamedTuple):
    """Where each part of a key stands: the number of bits below it."""

    images: int
    spare: int
    units: int
    soft: int
    broken: int
    coarse: int
    """So many bits of the units are left out, where they are too many."""

    @classmethod
    def for_pool(cls, whole: int, size: int) -> _KeyLayout:
        images = max(size - 1, 0).bit_length()
        spare = images + _IMAGE_BITS
        units = spare + SPARE_BITS
        coarse = max(0, units + whole.bit_length() + _SOFT_BITS + 1 - 63)
        soft = units + whole.bit_length() - coarse
        return cls(images, spare, units, soft, soft + _SOFT_BITS, coarse)

    def fixed_keys(self, dislike: IntArray, images: IntArray) -> IntArray:
        """What does not change with what is free."""
        key = np.minimum(dislike, (1 << _SOFT_BITS) - 1) << self.soft
        key += np.minimum(images, (1 << _IMAGE_BITS) - 1) << self.images
        key += np.arange(len(key))
        return key
