"""Free amounts of nodes in arrays, and a log of the touched nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vkgateway.api.requests import MilliResources, is_extended
from vkgateway.scheduler.core.capacity.node_fit import FloatArray, IntArray
from vkgateway.scheduler.core.capacity.node_table import MAX_AMOUNT, NodeTable
from vkgateway.scheduler.core.snapshot import Shape, Topology

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


ContainerRequest = tuple[tuple[str, int], ...]
"""Resources that must come out of one zone: name and thousandths."""
PodRequest = tuple[ContainerRequest, ...]

_DEVICE = 1000
"""Thousandths of one device, the smallest amount that is allocated."""
_MAX_SHAPES = 4096


class ZoneUsage(NamedTuple):
    """Number of pods of each kind by node position: placed, and of these included in the published amounts."""

    placed: dict[int, Counter[PodRequest]]
    counted: dict[int, Counter[PodRequest]]


class NumaZones:
    """NUMA zones by node position; nodes without zones are not limited.

    Nodes publish only the free amounts of each zone, not the zone of each pod. So *places* are counted: a zone has a
    number of places for pods of a shape, and a pod of another shape takes at most a number of them, in whichever zone
    it runs. The remaining places are certain; for equal pods the count is exact. Two counts are made, and the larger
    one applies. The first starts from the published amounts, minus the pods that arrived since, plus what ended pods
    freed. The second starts from empty zones, minus all pods on the node; it matters after other pods end.
    https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/
    """

    def __init__(self, nodes: NodeTable) -> None:
        self._positions = nodes.positions
        self._zones_by_node = {
            position: _NodeZones(node.topology, node.used)
            for position, node in enumerate(nodes.ordered)
            if node.topology is not None
        }
        self._usage = ZoneUsage(
            {position: Counter() for position in self._zones_by_node}, {p: Counter() for p in self._zones_by_node}
        )
        self._requests_by_shape: dict[int, tuple[Shape, PodRequest]] = {}
        """Requests by the identity of shapes: equal pods mostly share the shape."""

    def is_zoned(self, name: str) -> bool:
        """Return whether NUMA zones limit the pods on this node. Raises KeyError for a node outside the pool."""
        return self._positions[name] in self._zones_by_node

    def copy(self) -> NumaZones:
        """Return a copy with the same zones and an independent usage."""
        other = NumaZones.__new__(NumaZones)
        other.__dict__.update(self.__dict__)
        other._requests_by_shape = {}
        placed, counted = self._usage
        other._usage = ZoneUsage(
            {position: Counter(kinds) for position, kinds in placed.items()},
            {position: Counter(kinds) for position, kinds in counted.items()},
        )
        return other

    def change_pods(self, shape: Shape, positions: Iterable[int], counts: Iterable[int]) -> None:
        """Add pods of a shape to nodes; negative counts remove them."""
        self._add_counts(self._usage.placed, shape, positions, counts)

    def count_published(self, shape: Shape, position: int, count: int) -> None:
        """Count placed pods as included in the published amounts; a negative count removes them."""
        self._add_counts(self._usage.counted, shape, (position,), (count,))

    def _add_counts(
        self, usage: Mapping[int, Counter[PodRequest]], shape: Shape, positions: Iterable[int], counts: Iterable[int]
    ) -> None:
        parts = self._request_of(shape)
        if not parts:
            return
        for position, count in zip(positions, counts, strict=True):
            kinds = usage.get(position)
            if kinds is not None:
                kinds[parts] += count
                if not kinds[parts]:
                    del kinds[parts]

    def limit_capacities(self, capacity: IntArray, shape: Shape, positions: IntArray | None) -> None:
        """Limit capacities, by index, to the places in the zones of these nodes (None: all nodes)."""
        parts = self._request_of(shape)
        if not parts:
            return
        if positions is None:
            for position in self._zones_by_node:
                if capacity.item(position) > 0:
                    capacity[position] = min(capacity.item(position), self._places_on(position, parts))
            return
        for index, position in enumerate(positions.tolist()):
            if position in self._zones_by_node and capacity.item(index) > 0:
                capacity[index] = min(capacity.item(index), self._places_on(position, parts))

    def limit_capacity(self, capacity: int, shape: Shape, position: int) -> int:
        """Limit the capacity of a single node."""
        if capacity <= 0 or position not in self._zones_by_node:
            return capacity
        parts = self._request_of(shape)
        return min(capacity, self._places_on(position, parts)) if parts else capacity

    def fits_placed(self, placed: Iterable[tuple[str, Shape]]) -> bool:
        """Return whether the zones have places for these placed pods, given by node and shape."""
        zoned = [(self._positions[name], shape) for name, shape in placed if self.is_zoned(name)]
        for position, shape in zoned:
            self.change_pods(shape, (position,), (-1,))
        fits = True
        for position, shape in zoned:
            fits = fits and self.limit_capacity(1, shape, position) > 0
            self.change_pods(shape, (position,), (1,))
        return fits

    def _places_on(self, position: int, parts: PodRequest) -> int:
        placed, counted = self._usage.placed[position], self._usage.counted[position]
        return self._zones_by_node[position].count_places(parts, placed, counted)

    def _request_of(self, shape: Shape) -> PodRequest:
        found = self._requests_by_shape.get(id(shape))
        if found is None:
            if len(self._requests_by_shape) >= _MAX_SHAPES:
                self._requests_by_shape.clear()
            # The stored reference keeps the shape alive, so its id stays unique.
            found = self._requests_by_shape[id(shape)] = shape, zone_requests(shape)
        return found[1]


def zone_requests(shape: Shape) -> PodRequest:
    """Return the exclusive resources of each container of such a pod, without empty ones."""
    parts = shape.parts or (tuple(each for each in shape.requests if is_extended(each[0])),)
    whole = (tuple((name, n) for name, n in part if n >= _DEVICE or not is_extended(name)) for part in parts)
    return tuple(part for part in whole if part)


class _NodeZones:
    """Zones of one node, with their published amounts."""

    def __init__(self, topology: Topology, used: Mapping[str, int]) -> None:
        self._by_pod = topology.scope == "pod"
        names = sorted({name for zone in topology.zones for name in zone.allocatable})
        self._names = frozenset(names)
        self._empty = [{name: zone.allocatable.get(name, 0) for name in names} for zone in topology.zones]
        self._free = [
            {name: min(zone.available.get(name, 0), zone.allocatable.get(name, 0)) for name in names}
            for zone in topology.zones
        ]
        self._unmanaged = {name: amount for name, amount in used.items() if name in self._names and is_extended(name)}
        self._new_unmanaged = {
            name: amount - topology.used.get(name, 0)
            for name, amount in self._unmanaged.items()
            if amount > topology.used.get(name, 0)
        }
        self._gone = [zone_requests(shape) for shape in topology.gone.values()]

    def count_places(
        self, parts: PodRequest, placed: Mapping[PodRequest, int], counted: Mapping[PodRequest, int]
    ) -> int:
        """Return how many pods of this kind certainly fit in addition to the placed ones."""
        request = self._relevant_request(parts)
        if not request:
            return 1 << 20
        unpublished = {kind: number - counted.get(kind, 0) for kind, number in placed.items()}
        since = self._count_left(request, self._free, unpublished, self._new_unmanaged, self._gone)
        return max(0, since, self._count_left(request, self._empty, placed, self._unmanaged))

    def _count_left(
        self,
        request: PodRequest,
        zones: Sequence[Mapping[str, int]],
        others: Mapping[PodRequest, int],
        unmanaged: Mapping[str, int],
        ended: Sequence[PodRequest] = (),
    ) -> int:
        """Return the number of free places. Each container of a pod needs one, after those of earlier containers."""
        fewest, before = 1 << 20, [0] * len(request)
        for index, part in enumerate(request):
            left = sum(_places_in(zone, part) for zone in zones)
            left -= sum(number * self._places_taken(kind, part) for kind, number in others.items() if number > 0)
            left += sum(self._places_freed(kind, part) for kind in ended)
            # Each device of unmanaged pods may be in a different zone.
            left -= sum(unmanaged.get(name, 0) // _DEVICE for name, _ in part)
            lost = [_places_lost(other, part) for other in request]
            before[index] = sum(lost[:index])
            fewest = min(fewest, 1 + (left - before[index] - 1) // sum(lost))
        return fewest

    def _places_taken(self, kind: PodRequest, part: ContainerRequest) -> int:
        return sum(_places_lost(other, part) for other in self._relevant_request(kind))

    def _places_freed(self, kind: PodRequest, part: ContainerRequest) -> int:
        """Return the least number of places that an ended pod of that kind freed."""
        return sum(_places_in(dict(other), part) for other in self._relevant_request(kind))

    def _relevant_request(self, parts: PodRequest) -> PodRequest:
        """Return the part of a request that these zones provide; with the scope `pod`, in one sum."""
        if self._by_pod and len(parts) > 1:
            total: Counter[str] = Counter()
            for part in parts:
                total.update(dict(part))
            parts = (tuple(sorted(total.items())),)
        known = (tuple((name, amount) for name, amount in part if name in self._names) for part in parts)
        return tuple(part for part in known if part)


def _places_in(zone: Mapping[str, int], part: ContainerRequest) -> int:
    return min(zone.get(name, 0) // amount for name, amount in part)


def _places_lost(other: ContainerRequest, part: ContainerRequest) -> int:
    """Return the highest number of places for a part that another part takes."""
    requested = dict(part)
    return max((-(-amount // requested[name]) for name, amount in other if name in requested), default=0)
