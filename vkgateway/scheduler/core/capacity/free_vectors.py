"""Free amounts of nodes in arrays, and a log of the touched nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.capacity.node_fit import FloatArray, IntArray
from vkgateway.scheduler.core.capacity.node_table import MAX_AMOUNT, NodeTable
from vkgateway.scheduler.core.capacity.numa_zones import NumaZones
from vkgateway.scheduler.core.snapshot import Shape

SPARE_BITS = 10
SPARE = (1 << SPARE_BITS) - 1
"""Largest value of the free fraction of a node's resources other than the unit."""

FEW, SHARE = 8, 4
"""Up to `FEW` nodes are updated one by one; numpy is quicker for more. If more than one in `SHARE` nodes was touched,
all are recomputed."""

_MAX_LINES = 256
"""Number of shapes whose lines are cached."""


class FreeCapacity:
    """Free amounts of nodes by resource, and a log of the touched nodes."""

    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self.unit = nodes.pool.unit_resource
        self.zones = NumaZones(nodes) if any(node.topology is not None for node in nodes.ordered) else None
        """NUMA limits; None: no node has relevant zones."""
        self.size = len(nodes)
        self.touched: list[int] = []
        self.dropped = 0
        """Number of log entries removed from the front."""
        self._lines_by_shape: dict[int, tuple[Shape, list[tuple[IntArray, int]]]] = {}
        """Lines by the identity of shapes: equal pods mostly share the shape."""
        self._free: dict[str, IntArray] = {}
        self._scale: dict[str, FloatArray] = {}
        for resource in sorted({name for node in nodes.ordered for name in node.allocatable} | {self.unit}):
            allocatable = _amount_column([node.allocatable for node in nodes.ordered], resource)
            self._free[resource] = allocatable - _amount_column([node.used for node in nodes.ordered], resource)
            self._scale[resource] = SPARE / np.maximum(allocatable, 1)

    def copy(self) -> FreeCapacity:
        """Return an independent copy."""
        other = FreeCapacity.__new__(FreeCapacity)
        other.__dict__.update(self.__dict__)
        other._free = {name: free.copy() for name, free in self._free.items()}
        other.zones = self.zones.copy() if self.zones is not None else None
        other.touched, other.dropped = [], 0
        other._lines_by_shape = {}
        return other

    def amounts_of(self, resource: str) -> IntArray:
        """Return the free amount of a resource on each node, by position; negative where it is overcommitted.

        The array is read-only and valid until the next change. Raises KeyError for a resource that no node has.
        """
        return self._free[resource]

    def amounts_on(self, name: str) -> MilliResources:
        """Return the free amounts on a node by resource. Raises KeyError for a node outside the pool."""
        position = self.nodes.positions[name]
        return {resource: int(free[position]) for resource, free in self._free.items()}

    def idle_by_node(self) -> IntArray:
        """Return the thousandths of the unit that are free on each usable node.

        A node that plans overcommit has no idle units.
        """
        return np.where(self.nodes.filter.usable, np.maximum(self._free[self.unit], 0), 0)

    @property
    def idle_units(self) -> int:
        """Thousandths of the unit that are free on all usable nodes together."""
        return int(self.idle_by_node().sum())

    def requested_lines(self, shape: Shape) -> list[tuple[IntArray, int]] | None:
        """Return free and requested amounts for each resource of a shape; None: no node has one of the resources."""
        if any(name not in self._free for name, _ in shape.requests):
            return None
        return self._lines_of(shape)

    def _lines_of(self, shape: Shape) -> list[tuple[IntArray, int]]:
        found = self._lines_by_shape.get(id(shape))
        if found is None:
            if len(self._lines_by_shape) >= _MAX_LINES:
                self._lines_by_shape.clear()
            requests = shape.requests
            lines = [(self._free[name], min(amount, MAX_AMOUNT)) for name, amount in requests if name in self._free]
            # The stored reference keeps the shape alive, so its id stays unique.
            found = self._lines_by_shape[id(shape)] = shape, lines
        return found[1]

    def weighted_amounts(self, resource: str) -> tuple[IntArray, FloatArray]:
        """Return the free amounts of a resource, and the factors that turn them into fractions of node capacity."""
        return self._free[resource], self._scale[resource]

    def change_pods(self, shape: Shape, positions: Sequence[int] | IntArray, counts: Sequence[int] | IntArray) -> None:
        """Add pods of a shape to nodes; negative counts remove them. Each position occurs once."""
        few = len(positions) <= FEW
        many = len(positions) * SHARE > self.size > FEW
        lines = self._lines_of(shape)
        if few:
            if isinstance(positions, np.ndarray):
                # For few nodes plain integers are quicker than numpy.
                positions, counts = positions.tolist(), _as_list(counts)
            for position, count in zip(positions, counts, strict=True):
                for free, amount in lines:
                    free[position] = free.item(position) - amount * count
        else:
            for free, amount in lines:
                free[positions] -= amount * np.asarray(counts, dtype=np.int64)
        if self.zones is not None:
            self.zones.change_pods(shape, _as_list(positions), _as_list(counts))
        self._log_touched((0,) if many else _as_list(positions), many=many)

    def count_published(self, position: int, shape: Shape, count: int) -> None:
        """Count pods as included in the published zones of a node; a negative count removes them."""
        if self.zones is not None:
            self.zones.count_published(shape, position, count)
            self._log_touched((position,), many=False)

    def _log_touched(self, positions: Iterable[int], *, many: bool) -> None:
        # A truncated log means that all nodes were touched.
        self.touched.extend(positions)
        if many or len(self.touched) > 2 * self.size + 64:
            self.dropped += len(self.touched)
            self.touched.clear()


def _as_list(numbers: Sequence[int] | IntArray) -> Sequence[int]:
    return numbers.tolist() if isinstance(numbers, np.ndarray) else numbers


def _amount_column(lists: Sequence[MilliResources], resource: str) -> IntArray:
    return np.array([min(amounts.get(resource, 0), MAX_AMOUNT) for amounts in lists], dtype=np.int64)
