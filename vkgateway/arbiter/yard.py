"""The free amounts of nodes in arrays, and a log of which of them were touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vkgateway.arbiter.facts import Node, Shape
from vkgateway.arbiter.fitting import Fitting, FloatArray, IntArray
from vkgateway.arbiter.zones import Held, Zones
from vkgateway.model.requests import Milli

MOST = 1 << 56
"""Amounts are cut here, so that sums of a hundred stay within 64 bits; 72 TB of memory in thousandths of a byte."""

SPARE_BITS = 10
SPARE = (1 << SPARE_BITS) - 1
"""The largest part of what a node has, as it is told of resources besides the unit."""

FEW, SHARE = 8, 4
"""Up to so many nodes are counted, or worked out, one by one; numpy is quicker for more. Where more than one in so many
was touched, all are worked out."""

_LINES = 256
"""Shapes of which the lines are kept."""


class Saved(NamedTuple):
    """Free amounts to come back to, and how long the log was then."""

    free: dict[str, IntArray]
    log: int
    zones: Held | None


class Yard:
    """The free amounts of nodes by resource, and a log of the nodes that were touched."""

    def __init__(self, nodes: Sequence[Node], unit: str) -> None:
        self.fitting = Fitting(nodes)
        self.unit = unit
        self.zones = Zones(nodes) if any(node.topology is not None for node in nodes) else None
        """What NUMA zones allow; None: no node has any that matter."""
        self.size = len(nodes)
        self.touched: list[int] = []
        self.dropped = 0
        """How many entries were cut off the front of the log."""
        self._known: dict[int, tuple[Shape, list[tuple[IntArray, int]]]] = {}
        """The lines of shapes by their identity: pods of one shape mostly share the object."""
        self._free: dict[str, IntArray] = {}
        self._ceiling: IntArray | None = None
        self._scale: dict[str, FloatArray] = {}
        for resource in sorted({name for node in nodes for name in node.allocatable} | {unit}):
            allocatable = _column([node.allocatable for node in nodes], resource)
            self._free[resource] = allocatable - _column([node.used for node in nodes], resource)
            self._scale[resource] = SPARE / np.maximum(allocatable, 1)
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
        other.zones = self.zones.copy() if self.zones is not None else None
        other.touched, other.dropped = [], 0
        other._known = {}
        return other

    def save(self) -> Saved:
        """What is free now."""
        return Saved(
            {name: free.copy() for name, free in self._free.items()},
            self.dropped + len(self.touched),
            self.zones.save() if self.zones is not None else None,
        )

    def restore(self, saved: Saved) -> None:
        """Back to what was free then; that costs the same however much was changed."""
        for name, free in saved.free.items():
            self._free[name][:] = free
        if self.zones is not None and saved.zones is not None:
            self.zones.restore(saved.zones)
        if saved.log >= self.dropped:
            self._touch(list(dict.fromkeys(self.touched[saved.log - self.dropped :])), many=False)
        else:
            self._touch((0,), many=True)

    def amount(self, resource: str) -> IntArray:
        """What is free of a resource on each node; not to be written to."""
        return self._free[resource]

    def asked(self, shape: Shape) -> list[tuple[IntArray, int]] | None:
        """For each resource that a shape asks for what is free and how much it asks; None: no node has one of them."""
        if any(name not in self._free for name, _ in shape.requests):
            return None
        return self._lines(shape)

    def _lines(self, shape: Shape) -> list[tuple[IntArray, int]]:
        found = self._known.get(id(shape))
        if found is None:
            if len(self._known) >= _LINES:
                self._known.clear()
            # As long as the shape is here its id is its own.
            found = self._known[id(shape)] = shape, self._all_lines(shape)
        return found[1]

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
        few = len(positions) <= FEW
        many = len(positions) * SHARE > self.size > FEW
        lines = self._lines(shape)
        if few:
            for position, count in zip(positions, counts, strict=True):
                for free, amount in lines:
                    free[position] = free.item(position) - amount * count
        else:
            for free, amount in lines:
                free[positions] -= amount * np.asarray(counts, dtype=np.int64)
        if self.zones is not None:
            self.zones.change(shape, _listed(positions), _listed(counts))
        self._touch((0,) if many else _listed(positions), many=many)

    def touch(self, position: int) -> None:
        """Something about a node changed that is not told by its free amounts."""
        self._touch((position,), many=False)

    def _touch(self, positions: Iterable[int], *, many: bool) -> None:
        # A log that was cut off says that all were touched.
        self.touched.extend(positions)
        if many or len(self.touched) > 2 * self.size + 64:
            self.dropped += len(self.touched)
            self.touched.clear()


def _listed(numbers: Sequence[int] | IntArray) -> Sequence[int]:
    return numbers.tolist() if isinstance(numbers, np.ndarray) else numbers


def _column(lists: Sequence[Milli], resource: str) -> IntArray:
    return np.array([min(amounts.get(resource, 0), MOST) for amounts in lists], dtype=np.int64)
