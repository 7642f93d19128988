"""The free amounts of nodes in arrays, and what they are worth to one shape, brought up to date by what was touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vkgateway.arbiter.facts import Node, Shape
from vkgateway.arbiter.fitting import Fitting, IntArray
from vkgateway.model.requests import Milli

MOST = 1 << 56
"""Amounts are cut here, so that sums of a hundred stay within 64 bits; 72 TB of memory in thousandths of a byte."""

PLENTY = 1 << 20
"""More pods than these are never said to fit on a node; of pods that ask for nothing so many do."""

NEVER = (1 << 63) - 1
"""The key of a node on which nothing fits."""

_SOFT_BITS, _IMAGE_BITS, _SPARE_BITS = 3, 4, 10
"""How finely a node's key tells taints, missing images and the other resources."""
_SPARE = (1 << _SPARE_BITS) - 1

_FEW, _SHARE = 8, 4
"""Up to so many nodes are counted, or worked out, one by one; numpy is quicker for more. Where more than one in so many
was touched, all are worked out."""

FloatArray = npt.NDArray[np.float64]


class Yard:
    """The free amounts of nodes by resource, and a log of the nodes that were touched."""

    def __init__(self, nodes: Sequence[Node], unit: str) -> None:
        self.fitting = Fitting(nodes)
        self.unit = unit
        self.size = len(nodes)
        self.touched: list[int] = []
        self.dropped = 0
        """How many entries were cut off the front of the log."""
        self._latest: tuple[Shape | None, list[tuple[IntArray, int]]] = None, []
        """The lines of the shape that was asked for last: pods of one shape come and go one after the other."""
        self._free: dict[str, IntArray] = {}
        self._ceiling: IntArray | None = None
        self._scale: dict[str, FloatArray] = {}
        for resource in sorted({name for node in nodes for name in node.allocatable} | {unit}):
            allocatable = _column([node.allocatable for node in nodes], resource)
            self._free[resource] = allocatable - _column([node.used for node in nodes], resource)
            self._scale[resource] = _SPARE / np.maximum(allocatable, 1)
        sizes = [node.allocatable.get(unit, 0) for node in nodes if node.usable]
        self.whole = min(max(sizes, default=0), MOST)
        """Thousandths of the unit of the largest usable node."""

    def copy(self, ceiling: IntArray | None = None) -> Yard:
        """The same nodes, their free amounts to be changed apart; no more units than a ceiling are handed out."""
        other = Yard.__new__(Yard)
        other.__dict__.update(self.__dict__)
        other._free = {name: free.copy() for name, free in self._free.items()}
        other._ceiling = self._ceiling if ceiling is None else ceiling
        if other._ceiling is not None:
            other._ceiling = np.minimum(other._ceiling, MOST)
        other.touched, other.dropped = [], 0
        other._latest = None, []
        return other

    def amount(self, resource: str) -> IntArray:
        """What is free of a resource on each node; not to be written to."""
        return self._free[resource]

    def asked(self, shape: Shape) -> list[tuple[IntArray, int]] | None:
        """For each resource that a shape asks for what is free and how much it asks; None: no node has one of them."""
        if any(name not in self._free for name, _ in shape.requests):
            return None
        return self._lines(shape)

    def _lines(self, shape: Shape) -> list[tuple[IntArray, int]]:
        if self._latest[0] is not shape:
            self._latest = shape, self._all_lines(shape)
        return self._latest[1]

    def _all_lines(self, shape: Shape) -> list[tuple[IntArray, int]]:
        lines = [(self._free[name], min(amount, MOST)) for name, amount in shape.requests if name in self._free]
        if self._ceiling is not None and (units := shape.amount(self.unit)):
            lines.append((self._ceiling, min(units, MOST)))
        return lines

    def share(self, resource: str) -> tuple[IntArray, FloatArray]:
        """What is free of a resource, and by what to multiply it for its part of what the node has."""
        return self._free[resource], self._scale[resource]

    def free_at(self, position: int) -> Milli:
        """What is free on one node."""
        return {name: int(free[position]) for name, free in self._free.items()}

    def change(self, shape: Shape, positions: Sequence[int] | IntArray, counts: Sequence[int] | IntArray) -> None:
        """Put pods of a shape on nodes; below zero: take them away. Each position is named once."""
        few = len(positions) <= _FEW
        many = len(positions) * _SHARE > self.size > _FEW
        for free, amount in self._lines(shape):
            if few:
                for position, count in zip(positions, counts, strict=True):
                    free[position] -= amount * count
            else:
                free[positions] -= amount * np.asarray(counts, dtype=np.int64)
        # A log that was cut off says that all were touched.
        self.touched.extend(positions if not many else (0,))
        if many or len(self.touched) > 2 * self.size + 64:
            self.dropped += len(self.touched)
            self.touched.clear()


@dataclass(frozen=True, slots=True)
class Sums:
    """What the nodes of each domain of a level offer to a shape together; the last is for nodes without the label."""

    capacity: IntArray
    loose: IntArray
    """How many fit on nodes that are not whole."""
    units: IntArray
    """Free thousandths of the unit, on nodes where the shape may run."""


class View:
    """What each node is worth to a shape.

    `capacity` is how many pods of it fit on each node; the smaller a node's `key`, the sooner it is chosen. Keys are
    all different, but for those of nodes on which nothing fits: they are NEVER. What a key tells, most telling first:
    whether a whole node is broken into, dislike (taints), units free, how much is free of the other resources, images
    missing, position. The fewer units are free the sooner a node is chosen, so that none which could still take a
    larger pod is broken into where a fuller one would do.
    """

    def __init__(self, yard: Yard, shape: Shape) -> None:
        self._yard = yard
        self._mask = yard.fitting.mask(shape)
        asked = yard.asked(shape)
        self._asked = asked or []
        self._possible = asked is not None
        self._free = yard.amount(yard.unit)
        self._breaks = shape.amount(yard.unit) > 0
        others = [name for name, _ in shape.requests if self._possible and name not in (yard.unit, "pods")]
        self._others = [yard.share(name) for name in others]
        self._layout = _Layout.of(yard.whole, yard.size)
        self._fixed = self._layout.fixed(yard.fitting.dislike(shape), yard.fitting.missing_images(shape))
        self._seen = -1
        self._sums: dict[str, tuple[IntArray, Sums]] = {}
        self.capacity: IntArray = np.zeros(yard.size, dtype=np.int64)
        self.key: IntArray = np.full(yard.size, NEVER, dtype=np.int64)
        self.units: IntArray = np.zeros(yard.size, dtype=np.int64)
        """Free thousandths of the unit, where the shape may run."""
        self.total = 0
        """How many fit on all nodes together."""

    def refresh(self) -> None:
        """Work out anew what was touched since the last time."""
        log = self._yard
        now = log.dropped + len(log.touched)
        if self._seen == now or not self._possible:
            return
        # A node may have been touched more than once.
        touched = () if self._seen < log.dropped else dict.fromkeys(log.touched[self._seen - log.dropped :])
        if not touched or len(touched) * _SHARE > log.size > _FEW:
            self._all()
        elif len(touched) > _FEW:
            self._some(np.array(list(touched), dtype=np.int64))
        else:
            for position in touched:
                self._one(position)
        self._seen = now

    def choice(self, positions: IntArray | None) -> int:
        """On how many of these nodes one of the shape fits."""
        return int(np.count_nonzero(self.capacity if positions is None else self.capacity[positions]))

    def loose(self, at: IntArray | slice) -> IntArray:
        """How many fit on each of these nodes, none on whole ones."""
        return np.where(self.units[at] >= self._yard.whole, 0, self.capacity[at])

    def sums(self, level: str) -> Sums:
        """What the domains of a level offer, by the codes of `Fitting.column`; not to be written to."""
        found = self._sums.get(level)
        if found is None:
            column = self._yard.fitting.column(level)
            number = len(column.values)
            parts = (
                sums(column.codes, values, number) for values in (self.capacity, self.loose(slice(None)), self.units)
            )
            found = self._sums[level] = column.codes, Sums(*parts)
        return found[1]

    def _all(self) -> None:
        self.capacity, self.units, self.key = self._worth(slice(None))
        self.total = int(self.capacity.sum())
        self._sums.clear()

    def _some(self, positions: IntArray) -> None:
        before = self.capacity[positions], self.loose(positions), self.units[positions]
        self.capacity[positions], self.units[positions], self.key[positions] = self._worth(positions)
        after = self.capacity[positions], self.loose(positions), self.units[positions]
        self.total += int(after[0].sum() - before[0].sum())
        for codes, kept in self._sums.values():
            for line, old, new in zip((kept.capacity, kept.loose, kept.units), before, after, strict=True):
                np.add.at(line, codes[positions], new - old)

    def _worth(self, at: IntArray | slice) -> tuple[IntArray, IntArray, IntArray]:
        """Capacity, units and key of these nodes."""
        mask, whole, layout = self._mask[at], self._yard.whole, self._layout
        capacity = np.where(mask, PLENTY, 0)
        for free, amount in self._asked:
            np.minimum(capacity, free[at] // amount, out=capacity)
        np.maximum(capacity, 0, out=capacity)
        units = np.clip(self._free[at], 0, whole)
        key = self._fixed[at] + ((units >> layout.coarse) << layout.units)
        if self._breaks:
            key += (units >= whole).astype(np.int64) << layout.broken
        if self._others:
            rest = sum(free[at] * scale[at] for free, scale in self._others) / len(self._others)
            key += np.clip(rest, 0, _SPARE).astype(np.int64) << layout.spare
        return capacity, np.where(mask, units, 0), np.where(capacity > 0, key, NEVER)

    def _one(self, position: int) -> None:
        """The same for a single node, for which numpy would take ten times longer."""
        if not self._mask[position]:
            return
        capacity = PLENTY
        for free, amount in self._asked:
            capacity = min(capacity, free.item(position) // amount)
        capacity = max(capacity, 0)
        units = min(max(self._free.item(position), 0), self._yard.whole)
        self._note(position, capacity, units)
        if capacity == 0:
            self.key[position] = NEVER
            return
        key = self._fixed.item(position) + ((units >> self._layout.coarse) << self._layout.units)
        if self._breaks and units >= self._yard.whole:
            key += 1 << self._layout.broken
        if self._others:
            rest = sum(free.item(position) * scale.item(position) for free, scale in self._others) / len(self._others)
            key += int(min(max(rest, 0), _SPARE)) << self._layout.spare
        self.key[position] = key

    def _note(self, position: int, capacity: int, units: int) -> None:
        whole = self._yard.whole
        old_capacity, old_units = self.capacity.item(position), self.units.item(position)
        self.capacity[position], self.units[position] = capacity, units
        self.total += capacity - old_capacity
        for codes, sums_ in self._sums.values():
            # The code of nodes without the label is -1: the last of the sums.
            code = codes.item(position)
            sums_.capacity[code] += capacity - old_capacity
            sums_.loose[code] += (capacity if units < whole else 0) - (old_capacity if old_units < whole else 0)
            sums_.units[code] += units - old_units


def sums(codes: IntArray, values: IntArray, number: int) -> IntArray:
    """The sum of the values for each of so many codes, and at last for those without one."""
    found = np.zeros(number + 1, dtype=np.int64)
    np.add.at(found, codes, values)
    return found


class _Layout(NamedTuple):
    """Where each part of a key stands: the number of bits below it."""

    images: int
    spare: int
    units: int
    soft: int
    broken: int
    coarse: int
    """So many bits of the units are left out, where they are too many."""

    @classmethod
    def of(cls, whole: int, size: int) -> _Layout:
        images = max(size - 1, 0).bit_length()
        spare = images + _IMAGE_BITS
        units = spare + _SPARE_BITS
        coarse = max(0, units + whole.bit_length() + _SOFT_BITS + 1 - 63)
        soft = units + whole.bit_length() - coarse
        return cls(images, spare, units, soft, soft + _SOFT_BITS, coarse)

    def fixed(self, dislike: IntArray, images: IntArray) -> IntArray:
        """What does not change with what is free."""
        key = np.minimum(dislike, (1 << _SOFT_BITS) - 1) << self.soft
        key += np.minimum(images, (1 << _IMAGE_BITS) - 1) << self.images
        key += np.arange(len(key))
        return key


def _column(lists: Sequence[Milli], resource: str) -> IntArray:
    return np.array([min(amounts.get(resource, 0), MOST) for amounts in lists], dtype=np.int64)
