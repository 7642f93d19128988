"""The free amounts of nodes in arrays, and what they are worth to one shape, brought up to date by what was touched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vkgateway.arbiter.facts import Node, Shape
from vkgateway.arbiter.fitting import Fitting, IntArray
from vkgateway.model.requests import Milli

MOST = 1 << 56
"""Amounts are cut here, so that sums of them stay within 64 bits; 72 TB of memory in thousandths of a byte."""

PLENTY = 1 << 20
"""How many pods that ask for nothing fit on a node."""

NEVER = np.iinfo(np.int64).max
"""The key of a node on which nothing fits."""

_SOFT_BITS, _IMAGE_BITS, _SPARE_BITS = 3, 4, 10
"""How finely a node's key tells taints, missing images and the other resources."""

_FEW = 8
"""A share of one in so many nodes touched, and all are worked out anew."""


class Yard:
    """The free amounts of nodes by resource, and a log of the nodes that were touched."""

    def __init__(self, nodes: Sequence[Node], unit: str) -> None:
        self.fitting = Fitting(nodes)
        self.unit = unit
        self.size = len(nodes)
        self.touched: list[int] = []
        self.dropped = 0
        """How many entries were cut off the front of the log."""
        self._free: dict[str, IntArray] = {}
        self._scale: dict[str, npt.NDArray[np.float64]] = {}
        for resource in sorted({name for node in nodes for name in node.allocatable} | {unit}):
            allocatable = _column([node.allocatable for node in nodes], resource)
            self._free[resource] = allocatable - _column([node.used for node in nodes], resource)
            self._scale[resource] = ((1 << _SPARE_BITS) - 1) / np.maximum(allocatable, 1)
        sizes = [node.allocatable.get(unit, 0) for node in nodes if node.usable]
        self.whole = min(max(sizes, default=0), MOST)
        """Thousandths of the unit of the largest usable node."""

    def copy(self) -> Yard:
        """The same nodes, their free amounts to be changed apart."""
        other = Yard.__new__(Yard)
        other.__dict__.update(self.__dict__)
        other._free = {name: free.copy() for name, free in self._free.items()}
        other.touched, other.dropped = [], 0
        return other

    def amount(self, resource: str) -> IntArray:
        """What is free of a resource on each node; not to be written to."""
        return self._free[resource]

    def amounts(self, shape: Shape) -> list[tuple[str, int]] | None:
        """What a shape asks for of the resources that there are; None: it asks for one that no node has."""
        if any(name not in self._free for name, _ in shape.requests):
            return None
        return [(name, min(amount, MOST)) for name, amount in shape.requests]

    def free_at(self, position: int) -> Milli:
        """What is free on one node."""
        return {name: int(free[position]) for name, free in self._free.items()}

    def spare(self, resource: str, positions: IntArray | slice) -> npt.NDArray[np.float64]:
        """What is free of a resource, as a part of what the node has."""
        return self._free[resource][positions] * self._scale[resource][positions]

    def change(self, shape: Shape, positions: IntArray, counts: IntArray) -> None:
        """Put pods of a shape on nodes; below zero: take them away. Each position is named once."""
        for name, amount in shape.requests:
            free = self._free.get(name)
            if free is not None:
                free[positions] -= min(amount, MOST) * counts
        self.touched.extend(positions.tolist())
        if len(self.touched) > 2 * self.size + 64:
            self.dropped += len(self.touched)
            self.touched.clear()


class View:
    """What each node is worth to a shape.

    `capacity` is how many pods of it fit on each node; the smaller a node's `key`, the sooner it is chosen. Keys are
    all different, but for those of nodes on which nothing fits: they are NEVER.
    """

    def __init__(self, yard: Yard, shape: Shape) -> None:
        self._yard = yard
        self._asked = yard.amounts(shape)
        self._mask = yard.fitting.mask(shape)
        self._unit = min(shape.amount(yard.unit), MOST)
        self._others = [name for name, _ in self._asked or () if name not in (yard.unit, "pods")]
        self._soft = np.minimum(yard.fitting.dislike(shape), (1 << _SOFT_BITS) - 1)
        self._images = np.minimum(yard.fitting.missing_images(shape), (1 << _IMAGE_BITS) - 1)
        self._seen = -1
        self.capacity: IntArray = np.zeros(yard.size, dtype=np.int64)
        self.key: IntArray = np.full(yard.size, NEVER, dtype=np.int64)
        self.total = 0
        """How many fit on all nodes together."""

    def refresh(self) -> None:
        """Work out anew what was touched since the last time."""
        if self._asked is None:
            return
        log = self._yard
        now = log.dropped + len(log.touched)
        if self._seen == now:
            return
        if self._seen < log.dropped or (now - self._seen) * _FEW > log.size:
            self.capacity, self.key = self._worth(slice(None))
            self.total = int(self.capacity.sum())
        else:
            positions = np.unique(np.array(log.touched[self._seen - log.dropped :], dtype=np.int64))
            before = int(self.capacity[positions].sum())
            self.capacity[positions], self.key[positions] = self._worth(positions)
            self.total += int(self.capacity[positions].sum()) - before
        self._seen = now

    def _worth(self, positions: IntArray | slice) -> tuple[IntArray, IntArray]:
        capacity = np.where(self._mask[positions], PLENTY, 0)
        for name, amount in self._asked or ():
            np.minimum(capacity, self._yard.amount(name)[positions] // amount, out=capacity)
        np.maximum(capacity, 0, out=capacity)
        return capacity, np.where(capacity > 0, self._key(positions), NEVER)

    def _key(self, positions: IntArray | slice) -> IntArray:
        """Most telling first: a whole node broken into, dislike, units free, images missing, the rest free, position.

        The fewer units are free, the sooner a node is chosen: so none that could still take a larger pod is broken
        into where a fuller one would do.
        """
        whole = self._yard.whole
        free = np.clip(self._yard.amount(self._yard.unit)[positions], 0, whole)
        broken = (free >= whole) & (self._unit > 0)
        place_bits = max(self._yard.size - 1, 0).bit_length()
        coarse = max(0, whole.bit_length() - (62 - _SOFT_BITS - _IMAGE_BITS - _SPARE_BITS - place_bits))
        key = (broken.astype(np.int64) << _SOFT_BITS) + self._soft[positions]
        key = (key << (whole.bit_length() - coarse)) + (free >> coarse)
        key = (key << _IMAGE_BITS) + self._images[positions]
        key = (key << _SPARE_BITS) + self._rest(positions)
        return (key << place_bits) + np.arange(self._yard.size)[positions]

    def _rest(self, positions: IntArray | slice) -> IntArray:
        """How much is free of the other resources that the shape asks for, on the average."""
        if not self._others:
            return np.zeros_like(self._soft[positions])
        spare = sum(self._yard.spare(name, positions) for name in self._others) / len(self._others)
        return np.clip(spare, 0, (1 << _SPARE_BITS) - 1).astype(np.int64)


def _column(lists: Sequence[Milli], resource: str) -> IntArray:
    return np.array([min(amounts.get(resource, 0), MOST) for amounts in lists], dtype=np.int64)
