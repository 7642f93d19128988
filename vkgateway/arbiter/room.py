"""What is free on the nodes of a pool, how many pods of a shape fit on each, and trials that can be undone.

Nodes stand in the order of the network: by the pool's levels, the widest first, then by name; a node's position is its
index in this order, and all arrays are in it. A room is one state: for "what if all of these were evicted", give their
places back after a mark, look, and undo, or work on a copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from vkgateway.arbiter.facts import Node, Pool, Shape
from vkgateway.arbiter.fitting import ABSENT, BoolArray, Fitting, IntArray
from vkgateway.arbiter.views import View
from vkgateway.arbiter.yard import FEW, Saved, Yard
from vkgateway.model.requests import Milli

Among = Iterable[str] | BoolArray | None
"""Nodes that are allowed: names (others than the pool's are passed over), or a mask by position; None: all."""

_VIEWS = 256
_MISSES = 4096


class Mark(NamedTuple):
    """A state to go back to."""

    changes: int
    version: int


@dataclass(slots=True)
class _Change:
    """So many pods of a shape put on nodes (below zero: taken away)."""

    shape: Shape
    positions: Sequence[int] | IntArray
    counts: Sequence[int] | IntArray


class Room:
    """The free amounts of a pool's nodes, in thousandths.

    Whatever is taken is counted, even beyond what a node has and on nodes that are not usable: what runs, runs. It
    is `capacity` that never offers more than there is. Resources that no node of the pool has are not counted.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.nodes: tuple[Node, ...] = tuple(sorted(pool.nodes, key=lambda node: _along_network(node, pool.levels)))
        self.names: tuple[str, ...] = tuple(node.name for node in self.nodes)
        self.version = 0
        """Grows when room appears. What did not fit does not fit as long as the version stays the same."""
        self._position = {name: index for index, name in enumerate(self.names)}
        self._yard = Yard(self.nodes, pool.unit)
        self._views: dict[Shape, View] = {}
        self._view_of: dict[int, tuple[Shape, View]] = {}
        """The same by the identity of shapes: pods of one shape mostly share the object, and it is slow to hash."""
        self._changes: list[_Change | object] = []
        self._latest = 0
        self._misses: dict[object, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._position

    def __len__(self) -> int:
        return len(self.nodes)

    def copy(self) -> Room:
        """A second state of the same nodes, to be changed apart from this one. Marks are not carried over."""
        return self._with(self._yard.copy())

    def limited(self, ceiling: IntArray) -> Room:
        """A copy that offers no more of the pool's unit on each node than the ceiling, by position, in thousandths.

        Which nodes are full and which are whole is judged by what is free, not by the ceiling.
        """
        return self._with(self._yard.copy(ceiling))

    def _with(self, yard: Yard) -> Room:
        other = Room.__new__(Room)
        other.__dict__.update(self.__dict__)
        other._yard = yard
        other._views, other._view_of, other._changes, other._misses = {}, {}, [], {}
        return other

    @cached_property
    def told_order(self) -> IntArray:
        """By position the index of the node among the pool's, as these were told."""
        index = {node.name: number for number, node in enumerate(self.pool.nodes)}
        return np.array([index[name] for name in self.names], dtype=np.int64)

    @property
    def fitting(self) -> Fitting:
        """What labels and taints allow, by position."""
        return self._yard.fitting

    def amount(self, resource: str) -> IntArray:
        """What is free of a resource on each node, by position: below zero where too much was taken.

        To be read before the next change, and not written to. Raises KeyError for a resource that no node has.
        """
        return self._yard.amount(resource)

    @property
    def whole(self) -> int:
        """Thousandths of the pool's unit on its largest usable node: a node with as much free is a whole one."""
        return self._yard.whole

    @property
    def idle(self) -> int:
        """Thousandths of the unit that are free on usable nodes.

        On a node where plans take more than is free, nothing is idle.
        """
        return int(self._idle().sum())

    def take_idle(self) -> None:
        """Count all that is idle as taken."""
        idle = self._idle()
        for amount in np.unique(idle[idle > 0]).tolist():
            at = np.flatnonzero(idle == amount).tolist()
            self.take_at(at, Shape.of({self.pool.unit: amount}), [1] * len(at))

    def _idle(self) -> IntArray:
        free = np.maximum(self.amount(self.pool.unit), 0)
        return np.where(self.fitting.usable, free, 0)

    @property
    def zoned(self) -> bool:
        """Whether NUMA zones limit what fits on any of the nodes."""
        return self._yard.zones is not None

    def is_zoned(self, name: str) -> bool:
        """Whether they do on this one. Raises KeyError for a node that is not the pool's."""
        return self._yard.zones is not None and self._position[name] in self._yard.zones

    def count_in(self, name: str, shape: Shape, count: int = 1) -> None:
        """So many more pods on a node are in what was published of its zones; below zero: fewer."""
        if self._yard.zones is not None:
            self._yard.zones.count_in(shape, self._position[name], count)
            self._yard.touch(self._position[name])
            self._newer()

    def zones_hold(self, placed: Iterable[tuple[str, Shape]]) -> bool:
        """Whether the zones have places for these pods, by node and shape, which are placed already."""
        zones = self._yard.zones
        return zones is None or zones.hold([(self._position[name], shape) for name, shape in placed])

    def near(self, name: str, level: str) -> BoolArray:
        """The nodes, by position, in the same domain of a network level as this one; without the label only itself.

        Raises KeyError for a node that is not the pool's.
        """
        codes = self.fitting.column(level).codes
        code = codes[self._position[name]]
        return codes == code if code != ABSENT else self.mask([name])

    def position(self, name: str) -> int:
        """A node's index in all arrays. Raises KeyError for a node that is not the pool's."""
        return self._position[name]

    def free(self, name: str) -> Milli:
        """What is free on a node, for each resource that the pool has. Raises KeyError for a foreign node."""
        return self._yard.free_at(self._position[name])

    def take(self, name: str, shape: Shape, count: int = 1) -> None:
        """Count pods of a shape as placed on a node. Raises KeyError for a node that is not the pool's."""
        self.take_at([self._position[name]], shape, [count])

    def give(self, name: str, shape: Shape, count: int = 1) -> None:
        """Count pods of a shape as gone from a node. Raises KeyError for a node that is not the pool's."""
        self._changed(_Change(shape, [self._position[name]], [-count]))
        self._newer()

    def take_all(self, placed: Iterable[tuple[str, Shape]]) -> None:
        """Count many pods as placed, given by node and shape: the quick way to fill a new room.

        Raises KeyError for a node that is not the pool's; the room is as it was then.
        """
        for shape, counts in self._counted(placed).items():
            self.take_at(list(counts), shape, list(counts.values()))

    def give_all(self, placed: Iterable[tuple[str, Shape]]) -> None:
        """Count many pods as gone, given by node and shape.

        Raises KeyError for a node that is not the pool's; the room is as it was then.
        """
        by_shape = self._counted(placed)
        for shape, counts in by_shape.items():
            self._changed(_Change(shape, list(counts), [-count for count in counts.values()]))
        if by_shape:
            self._newer()

    def _counted(self, placed: Iterable[tuple[str, Shape]]) -> Mapping[Shape, Mapping[int, int]]:
        """By shape how many pods there are at each position."""
        by_shape: dict[Shape, defaultdict[int, int]] = {}
        # Pods of one shape mostly share the object, and a shape is slow to hash.
        by_identity: dict[int, defaultdict[int, int]] = {}
        shapes: list[Shape] = []
        for name, shape in placed:
            counts = by_identity.get(id(shape))
            if counts is None:
                counts = by_identity[id(shape)] = by_shape.setdefault(shape, defaultdict(int))
                shapes.append(shape)  # as long as it is here its id is its own
            counts[self._position[name]] += 1
        return by_shape

    def take_at(self, positions: Sequence[int], shape: Shape, counts: Sequence[int]) -> None:
        """Count pods of a shape as placed on several nodes at once; each position is named once."""
        self._changed(_Change(shape, positions, counts))

    def give_counts(self, shape: Shape, counts: IntArray) -> None:
        """Count pods of a shape as gone: so many from each node by position. The quick way for many nodes."""
        positions = np.flatnonzero(counts)
        if not len(positions):
            return
        gone = -counts[positions]
        # A few are changed one by one, which is quicker with plain numbers.
        few = len(positions) <= FEW
        self._changed(_Change(shape, positions.tolist(), gone.tolist()) if few else _Change(shape, positions, gone))
        self._newer()

    def mark(self) -> Mark:
        """Where a trial begins."""
        return Mark(len(self._changes), self.version)

    def undo(self, mark: Mark) -> None:
        """Back to the mark, which stays good for further trials; costs what was changed since. Later marks are void."""
        while len(self._changes) > mark.changes:
            change = self._changes.pop()
            if isinstance(change, _Change):
                counts = change.counts
                back = -counts if isinstance(counts, np.ndarray) else [-count for count in counts]
                self._yard.change(change.shape, change.positions, back)
            else:
                self._misses.pop(change, None)
        self.version = mark.version

    def save(self) -> tuple[Mark, Saved]:
        """A state to go back to that is far away: much may be changed before."""
        return self.mark(), self._yard.save()

    def restore(self, saved: tuple[Mark, Saved]) -> None:
        """Back to what was saved; all marks since then are void."""
        mark, state = saved
        for change in self._changes[mark.changes :]:
            if not isinstance(change, _Change):
                self._misses.pop(change, None)
        del self._changes[mark.changes :]
        self._yard.restore(state)
        self.version = mark.version

    def settle(self) -> None:
        """Everything so far stays: all marks are void, and the memory of how to undo is freed."""
        self._changes.clear()

    def capacity(self, shape: Shape, among: Among = None) -> IntArray:
        """How many pods of the shape fit on each node, each node seen alone; 0 outside `among`."""
        capacity = self.view(shape).capacity.copy()
        if among is not None:
            capacity[~self.mask(among)] = 0
        return capacity

    def fits(self, name: str, shape: Shape) -> int:
        """How many pods of the shape fit on one node. Raises KeyError for a node that is not the pool's."""
        return int(self.view(shape).capacity[self._position[name]])

    def total(self, shape: Shape) -> int:
        """How many pods of the shape fit at all."""
        return self.view(shape).total

    def mask(self, among: Among) -> BoolArray:
        """The allowed nodes by position."""
        if isinstance(among, np.ndarray):
            return among
        if among is None:
            return np.ones(len(self.nodes), dtype=bool)
        mask = np.zeros(len(self.nodes), dtype=bool)
        mask[[self._position[name] for name in among if name in self._position]] = True
        return mask

    def view(self, shape: Shape) -> View:
        """What the nodes are worth to a shape at this moment; to be read before the next change, and not written to."""
        known = self._view_of.get(id(shape))
        if known is None:
            if len(self._view_of) >= _VIEWS:
                self._view_of.clear()
            # As long as the shape is here its id is its own.
            known = self._view_of[id(shape)] = shape, self._views.get(shape) or self._keep_view(shape)
        view = known[1]
        view.refresh()
        return view

    def _keep_view(self, shape: Shape) -> View:
        images = self.fitting.known_images(shape)
        alike = replace(shape, images=images) if images != shape.images else shape
        found = self._views.get(alike) or View(self._yard, alike)
        for key in (alike, shape):
            if len(self._views) >= _VIEWS and key not in self._views:
                del self._views[next(iter(self._views))]
            self._views[key] = found
        return found

    def missed(self, what: object) -> bool:
        """Whether this was found not to fit, and no room has appeared since."""
        return self._misses.get(what) == self.version

    def miss(self, what: object) -> None:
        """Remember that this does not fit; what was found out in a trial is forgotten with it."""
        if len(self._misses) >= _MISSES:
            self._misses.clear()
        self._misses[what] = self.version
        self._changes.append(what)

    def _changed(self, change: _Change) -> None:
        self._yard.change(change.shape, change.positions, change.counts)
        self._changes.append(change)

    def _newer(self) -> None:
        # Never a number that was in use before, even after an undo: what was remembered then was another state.
        self._latest += 1
        self.version = self._latest


def _along_network(node: Node, levels: Sequence[str]) -> tuple[tuple[tuple[bool, str], ...], str]:
    """Neighbours in the network stand together; nodes that do not have a level's label come last."""
    return tuple((level not in node.labels, node.labels.get(level, "")) for level in levels), node.name
