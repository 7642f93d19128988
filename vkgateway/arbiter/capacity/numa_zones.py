"""How many pods of a shape fit on a node whose kubelet gives each what it asks for out of one NUMA zone, or rejects it.

Which zone a pod took nobody tells: what is published are each zone's free amounts. So this counts in *places*: a zone
has so many for pods of a shape, and a pod of another shape takes away so many at most, whichever zone it is in. What
is left of the places is certain; for equal pods it is exact. It is worked out twice, from what was published last
less the pods that came since and with what those left behind that went, and from empty zones less all pods on the
node (what counts once others have gone); the larger holds.

https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from vkgateway.arbiter.capacity.node_fit import IntArray
from vkgateway.arbiter.snapshot import Node, Shape, Topology
from vkgateway.translate.governed import is_extended

ContainerRequest = tuple[tuple[str, int], ...]
"""What is to come out of one zone: resource and thousandths."""
PodRequest = tuple[ContainerRequest, ...]

_DEVICE = 1000
"""Thousandths of one device; nobody gets less."""
_MAX_SHAPES = 4096


class ZoneUsage(NamedTuple):
    """By node position, how many pods of each kind are there; and those of them that what was published counts in."""

    there: dict[int, Counter[PodRequest]]
    counted: dict[int, Counter[PodRequest]]


class NumaZones:
    """The zones of some nodes, by position; nodes that have none are not limited by it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._zones_by_node = {
            position: _NodeZones(node.topology, node.used)
            for position, node in enumerate(nodes)
            if node.topology is not None
        }
        self._usage = ZoneUsage(
            {position: Counter() for position in self._zones_by_node}, {p: Counter() for p in self._zones_by_node}
        )
        self._requests_by_shape: dict[int, tuple[Shape, PodRequest]] = {}
        """Of shapes by their identity: pods of one shape mostly share the object."""

    def __bool__(self) -> bool:
        return bool(self._zones_by_node)

    def __contains__(self, position: object) -> bool:
        return position in self._zones_by_node

    def copy(self) -> NumaZones:
        """The same zones; what is on the nodes is changed apart."""
        other = NumaZones.__new__(NumaZones)
        other.__dict__.update(self.__dict__)
        other._usage, other._requests_by_shape = self.save(), {}
        return other

    def save(self) -> ZoneUsage:
        """What is on the nodes now."""
        there, counted = self._usage
        return ZoneUsage(
            {position: Counter(kinds) for position, kinds in there.items()},
            {position: Counter(kinds) for position, kinds in counted.items()},
        )

    def restore(self, saved: ZoneUsage) -> None:
        """Back to what was there then, which stays good to come back to."""
        self._usage = saved
        self._usage = self.save()

    def change_pods(self, shape: Shape, positions: Iterable[int], counts: Iterable[int]) -> None:
        """Put pods of a shape on nodes; below zero: take them away."""
        self._add_counts(self._usage.there, shape, positions, counts)

    def count_published(self, shape: Shape, position: int, count: int) -> None:
        """So many more pods of a shape, which are there, are in what was published; below zero: fewer."""
        self._add_counts(self._usage.counted, shape, (position,), (count,))

    def _add_counts(
        self, held: Mapping[int, Counter[PodRequest]], shape: Shape, positions: Iterable[int], counts: Iterable[int]
    ) -> None:
        parts = self._request_of(shape)
        if not parts:
            return
        for position, count in zip(positions, counts, strict=True):
            kinds = held.get(position)
            if kinds is not None:
                kinds[parts] += count
                if not kinds[parts]:
                    del kinds[parts]

    def limit_capacities(self, capacity: IntArray, shape: Shape, positions: IntArray | None) -> None:
        """Cut capacities, by index, to what the zones of the nodes at these positions (None: of all) can take."""
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
        """The same for a single node."""
        if capacity <= 0 or position not in self._zones_by_node:
            return capacity
        parts = self._request_of(shape)
        return min(capacity, self._places_on(position, parts)) if parts else capacity

    def fits_placed(self, placed: Iterable[tuple[int, Shape]]) -> bool:
        """Whether there are places for these pods, by position, which are counted as there already."""
        here = [(position, shape) for position, shape in placed if position in self._zones_by_node]
        for position, shape in here:
            self.change_pods(shape, (position,), (-1,))
        held = True
        for position, shape in here:
            held = held and self.limit_capacity(1, shape, position) > 0
            self.change_pods(shape, (position,), (1,))
        return held

    def _places_on(self, position: int, parts: PodRequest) -> int:
        there, counted = self._usage.there[position], self._usage.counted[position]
        return self._zones_by_node[position].count_places(parts, there, counted)

    def _request_of(self, shape: Shape) -> PodRequest:
        found = self._requests_by_shape.get(id(shape))
        if found is None:
            if len(self._requests_by_shape) >= _MAX_SHAPES:
                self._requests_by_shape.clear()
            # As long as the shape is here its id is its own.
            found = self._requests_by_shape[id(shape)] = shape, zone_requests(shape)
        return found[1]


def zone_requests(shape: Shape) -> PodRequest:
    """What each container of such a pod is given for itself alone, as far as it is anything."""
    parts = shape.parts or (tuple(each for each in shape.requests if is_extended(each[0])),)
    whole = (tuple((name, n) for name, n in part if n >= _DEVICE or not is_extended(name)) for part in parts)
    return tuple(part for part in whole if part)


class _NodeZones:
    """One node's zones: what they are, and what was published of them."""

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
        self, parts: PodRequest, there: Mapping[PodRequest, int], counted: Mapping[PodRequest, int]
    ) -> int:
        """How many pods of this kind certainly fit beside those that are there."""
        mine = self._relevant_request(parts)
        if not mine:
            return 1 << 20
        late = {kind: number - counted.get(kind, 0) for kind, number in there.items()}
        since = self._count_left(mine, self._free, late, self._new_unmanaged, self._gone)
        return max(0, since, self._count_left(mine, self._empty, there, self._unmanaged))

    def _count_left(
        self,
        mine: PodRequest,
        zones: Sequence[Mapping[str, int]],
        others: Mapping[PodRequest, int],
        strangers: Mapping[str, int],
        gone: Sequence[PodRequest] = (),
    ) -> int:
        """How many pods there are places for; of one with several parts each part needs one, beside those before it."""
        fewest, before = 1 << 20, [0] * len(mine)
        for index, part in enumerate(mine):
            left = sum(_places_in(zone, part) for zone in zones)
            left -= sum(number * self._places_taken(kind, part) for kind, number in others.items() if number > 0)
            left += sum(self._places_freed(kind, part) for kind in gone)
            # Each device of theirs may be in a zone of its own.
            left -= sum(strangers.get(name, 0) // _DEVICE for name, _ in part)
            own = [_places_lost(other, part) for other in mine]
            before[index] = sum(own[:index])
            fewest = min(fewest, 1 + (left - before[index] - 1) // sum(own))
        return fewest

    def _places_taken(self, kind: PodRequest, part: ContainerRequest) -> int:
        return sum(_places_lost(other, part) for other in self._relevant_request(kind))

    def _places_freed(self, kind: PodRequest, part: ContainerRequest) -> int:
        """How many places there are more at least since one of that kind has gone."""
        return sum(_places_in(dict(other), part) for other in self._relevant_request(kind))

    def _relevant_request(self, parts: PodRequest) -> PodRequest:
        """Of what is asked for, what these zones have; with the scope `pod` all of it at once."""
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
    """How many places for a part another one takes at most."""
    asked = dict(part)
    return max((-(-amount // asked[name]) for name, amount in other if name in asked), default=0)
