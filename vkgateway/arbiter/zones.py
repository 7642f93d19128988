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

from vkgateway.arbiter.facts import Node, Shape, Topology
from vkgateway.arbiter.fitting import IntArray
from vkgateway.translate.governed import is_extended

Part = tuple[tuple[str, int], ...]
"""What is to come out of one zone: resource and thousandths."""
Parts = tuple[Part, ...]

_DEVICE = 1000
"""Thousandths of one device; nobody gets less."""
_MEMO = 4096


class Held(NamedTuple):
    """By node position, how many pods of each kind are there; and those of them that what was published counts in."""

    there: dict[int, Counter[Parts]]
    counted: dict[int, Counter[Parts]]


class Zones:
    """The zones of some nodes, by position; nodes that have none are not limited by it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._grounds = {
            position: _Ground(node.topology, node.used)
            for position, node in enumerate(nodes)
            if node.topology is not None
        }
        self._held = Held({position: Counter() for position in self._grounds}, {p: Counter() for p in self._grounds})
        self._parts: dict[int, tuple[Shape, Parts]] = {}
        """Of shapes by their identity: pods of one shape mostly share the object."""

    def __bool__(self) -> bool:
        return bool(self._grounds)

    def __contains__(self, position: object) -> bool:
        return position in self._grounds

    def copy(self) -> Zones:
        """The same zones; what is on the nodes is changed apart."""
        other = Zones.__new__(Zones)
        other.__dict__.update(self.__dict__)
        other._held, other._parts = self.save(), {}
        return other

    def save(self) -> Held:
        """What is on the nodes now."""
        there, counted = self._held
        return Held(
            {position: Counter(kinds) for position, kinds in there.items()},
            {position: Counter(kinds) for position, kinds in counted.items()},
        )

    def restore(self, saved: Held) -> None:
        """Back to what was there then, which stays good to come back to."""
        self._held = saved
        self._held = self.save()

    def change(self, shape: Shape, positions: Iterable[int], counts: Iterable[int]) -> None:
        """Put pods of a shape on nodes; below zero: take them away."""
        self._add(self._held.there, shape, positions, counts)

    def count_in(self, shape: Shape, position: int, count: int) -> None:
        """So many more pods of a shape, which are there, are in what was published; below zero: fewer."""
        self._add(self._held.counted, shape, (position,), (count,))

    def _add(
        self, held: Mapping[int, Counter[Parts]], shape: Shape, positions: Iterable[int], counts: Iterable[int]
    ) -> None:
        parts = self._parts_of(shape)
        if not parts:
            return
        for position, count in zip(positions, counts, strict=True):
            kinds = held.get(position)
            if kinds is not None:
                kinds[parts] += count
                if not kinds[parts]:
                    del kinds[parts]

    def limit(self, capacity: IntArray, shape: Shape, positions: IntArray | None) -> None:
        """Cut capacities, by index, to what the zones of the nodes at these positions (None: of all) can take."""
        parts = self._parts_of(shape)
        if not parts:
            return
        if positions is None:
            for position in self._grounds:
                if capacity.item(position) > 0:
                    capacity[position] = min(capacity.item(position), self._places(position, parts))
            return
        for index, position in enumerate(positions.tolist()):
            if position in self._grounds and capacity.item(index) > 0:
                capacity[index] = min(capacity.item(index), self._places(position, parts))

    def limited(self, capacity: int, shape: Shape, position: int) -> int:
        """The same for a single node."""
        if capacity <= 0 or position not in self._grounds:
            return capacity
        parts = self._parts_of(shape)
        return min(capacity, self._places(position, parts)) if parts else capacity

    def hold(self, placed: Iterable[tuple[int, Shape]]) -> bool:
        """Whether there are places for these pods, by position, which are counted as there already."""
        here = [(position, shape) for position, shape in placed if position in self._grounds]
        for position, shape in here:
            self.change(shape, (position,), (-1,))
        held = True
        for position, shape in here:
            held = held and self.limited(1, shape, position) > 0
            self.change(shape, (position,), (1,))
        return held

    def _places(self, position: int, parts: Parts) -> int:
        there, counted = self._held.there[position], self._held.counted[position]
        return self._grounds[position].places(parts, there, counted)

    def _parts_of(self, shape: Shape) -> Parts:
        found = self._parts.get(id(shape))
        if found is None:
            if len(self._parts) >= _MEMO:
                self._parts.clear()
            # As long as the shape is here its id is its own.
            found = self._parts[id(shape)] = shape, parts_of(shape)
        return found[1]


def parts_of(shape: Shape) -> Parts:
    """What each container of such a pod is given for itself alone, as far as it is anything."""
    parts = shape.parts or (tuple(each for each in shape.requests if is_extended(each[0])),)
    whole = (tuple((name, n) for name, n in part if n >= _DEVICE or not is_extended(name)) for part in parts)
    return tuple(part for part in whole if part)


class _Ground:
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
        self._strangers = {name: amount for name, amount in used.items() if name in self._names and is_extended(name)}
        self._new_strangers = {
            name: amount - topology.used.get(name, 0)
            for name, amount in self._strangers.items()
            if amount > topology.used.get(name, 0)
        }
        self._gone = [parts_of(shape) for shape in topology.gone.values()]

    def places(self, parts: Parts, there: Mapping[Parts, int], counted: Mapping[Parts, int]) -> int:
        """How many pods of this kind certainly fit beside those that are there."""
        mine = self._asked(parts)
        if not mine:
            return 1 << 20
        late = {kind: number - counted.get(kind, 0) for kind, number in there.items()}
        since = self._left(mine, self._free, late, self._new_strangers, self._gone)
        return max(0, since, self._left(mine, self._empty, there, self._strangers))

    def _left(
        self,
        mine: Parts,
        zones: Sequence[Mapping[str, int]],
        others: Mapping[Parts, int],
        strangers: Mapping[str, int],
        gone: Sequence[Parts] = (),
    ) -> int:
        """How many pods there are places for; of one with several parts each part needs one, beside those before it."""
        fewest, before = 1 << 20, [0] * len(mine)
        for index, part in enumerate(mine):
            left = sum(_slots(zone, part) for zone in zones)
            left -= sum(number * self._cost(kind, part) for kind, number in others.items() if number > 0)
            left += sum(self._left_behind(kind, part) for kind in gone)
            # Each device of theirs may be in a zone of its own.
            left -= sum(strangers.get(name, 0) // _DEVICE for name, _ in part)
            own = [_taken(other, part) for other in mine]
            before[index] = sum(own[:index])
            fewest = min(fewest, 1 + (left - before[index] - 1) // sum(own))
        return fewest

    def _cost(self, kind: Parts, part: Part) -> int:
        return sum(_taken(other, part) for other in self._asked(kind))

    def _left_behind(self, kind: Parts, part: Part) -> int:
        """How many places there are more at least since one of that kind has gone."""
        return sum(_slots(dict(other), part) for other in self._asked(kind))

    def _asked(self, parts: Parts) -> Parts:
        """Of what is asked for, what these zones have; with the scope `pod` all of it at once."""
        if self._by_pod and len(parts) > 1:
            total: Counter[str] = Counter()
            for part in parts:
                total.update(dict(part))
            parts = (tuple(sorted(total.items())),)
        known = (tuple((name, amount) for name, amount in part if name in self._names) for part in parts)
        return tuple(part for part in known if part)


def _slots(zone: Mapping[str, int], part: Part) -> int:
    return min(zone.get(name, 0) // amount for name, amount in part)


def _taken(other: Part, part: Part) -> int:
    """How many places for a part another one takes at most."""
    asked = dict(part)
    return max((-(-amount // asked[name]) for name, amount in other if name in asked), default=0)
