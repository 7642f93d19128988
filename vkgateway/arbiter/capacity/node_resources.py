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

from vkgateway.arbiter.capacity.free_vectors import FEW, FreeCapacity, SavedCapacity
from vkgateway.arbiter.capacity.node_fit import ABSENT, BoolArray, IntArray, NodeFilter
from vkgateway.arbiter.capacity.shape_views import ShapeView
from vkgateway.arbiter.snapshot import Node, Pool, Shape
from vkgateway.model.requests import MilliResources

AllowedNodes = Iterable[str] | BoolArray | None
"""Nodes that are allowed: names (others than the pool's are passed over), or a mask by position; None: all."""

_MAX_VIEWS = 256
_MAX_UNFIT = 4096


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


class NodeResources:
    """The free amounts of a pool's nodes, in thousandths.

    Whatever is taken is counted, even beyond what a node has and on nodes that are not usable: what runs, runs. It
    is `capacity_by_node` that never offers more than there is. Resources that no node of the pool has are not counted.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.nodes: tuple[Node, ...] = tuple(sorted(pool.nodes, key=lambda node: _network_order(node, pool.levels)))
        self.names: tuple[str, ...] = tuple(node.name for node in self.nodes)
        self.version = 0
        """Grows when room appears. What did not fit does not fit as long as the version stays the same."""
        self._positions = {name: index for index, name in enumerate(self.names)}
        self._free_capacity = FreeCapacity(self.nodes, pool.unit_resource)
        self._views: dict[Shape, ShapeView] = {}
        self._views_by_id: dict[int, tuple[Shape, ShapeView]] = {}
        """The same by the identity of shapes: pods of one shape mostly share the object, and it is slow to hash."""
        self._changes: list[_Change | object] = []
        self._last_version = 0
        self._known_unfit: dict[object, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def __len__(self) -> int:
        return len(self.nodes)

    def copy(self) -> NodeResources:
        """A second state of the same nodes, to be changed apart from this one. Marks are not carried over."""
        return self._with_capacity(self._free_capacity.copy())

    def with_ceiling(self, ceiling: IntArray) -> NodeResources:
        """A copy that offers no more of the pool's unit on each node than the ceiling, by position, in thousandths.

        Which nodes are full and which are whole is judged by what is free, not by the ceiling.
        """
        return self._with_capacity(self._free_capacity.copy(ceiling))

    def _with_capacity(self, yard: FreeCapacity) -> NodeResources:
        other = NodeResources.__new__(NodeResources)
        other.__dict__.update(self.__dict__)
        other._free_capacity = yard
        other._views, other._views_by_id, other._changes, other._known_unfit = {}, {}, [], {}
        return other

    @cached_property
    def pool_order(self) -> IntArray:
        """By position the index of the node among the pool's, as these were told."""
        index = {node.name: number for number, node in enumerate(self.pool.nodes)}
        return np.array([index[name] for name in self.names], dtype=np.int64)

    @property
    def node_filter(self) -> NodeFilter:
        """What labels and taints allow, by position."""
        return self._free_capacity.node_filter

    def free_amounts(self, resource: str) -> IntArray:
        """What is free of a resource on each node, by position: below zero where too much was taken.

        To be read before the next change, and not written to. Raises KeyError for a resource that no node has.
        """
        return self._free_capacity.free_amounts(resource)

    @property
    def largest_node_units(self) -> int:
        """Thousandths of the pool's unit on its largest usable node: a node with as much free is a whole one."""
        return self._free_capacity.whole

    @property
    def idle_units(self) -> int:
        """Thousandths of the unit that are free on usable nodes.

        On a node where plans take more than is free, nothing is idle.
        """
        return int(self._idle_by_node().sum())

    def take_idle_units(self) -> None:
        """Count all that is idle as taken."""
        idle = self._idle_by_node()
        for amount in np.unique(idle[idle > 0]).tolist():
            at = np.flatnonzero(idle == amount).tolist()
            self.add_pods_at(at, Shape.from_requests({self.pool.unit_resource: amount}), [1] * len(at))

    def _idle_by_node(self) -> IntArray:
        free = np.maximum(self.free_amounts(self.pool.unit_resource), 0)
        return np.where(self.node_filter.usable, free, 0)

    @property
    def has_zones(self) -> bool:
        """Whether NUMA zones limit what fits on any of the nodes."""
        return self._free_capacity.zones is not None

    def is_zoned(self, name: str) -> bool:
        """Whether they do on this one. Raises KeyError for a node that is not the pool's."""
        return self._free_capacity.zones is not None and self._positions[name] in self._free_capacity.zones

    def count_published(self, name: str, shape: Shape, count: int = 1) -> None:
        """So many more pods on a node are in what was published of its zones; below zero: fewer."""
        if self._free_capacity.zones is not None:
            self._free_capacity.zones.count_published(shape, self._positions[name], count)
            self._free_capacity.touch_node(self._positions[name])
            self._bump_version()

    def fits_zones(self, placed: Iterable[tuple[str, Shape]]) -> bool:
        """Whether the zones have places for these pods, by node and shape, which are placed already."""
        zones = self._free_capacity.zones
        return zones is None or zones.fits_placed([(self._positions[name], shape) for name, shape in placed])

    def nodes_in_domain(self, name: str, level: str) -> BoolArray:
        """The nodes, by position, in the same domain of a network level as this one; without the label only itself.

        Raises KeyError for a node that is not the pool's.
        """
        codes = self.node_filter.label_column(level).codes
        code = codes[self._positions[name]]
        return codes == code if code != ABSENT else self.node_mask([name])

    def position_of(self, name: str) -> int:
        """A node's index in all arrays. Raises KeyError for a node that is not the pool's."""
        return self._positions[name]

    def free_on_node(self, name: str) -> MilliResources:
        """What is free on a node, for each resource that the pool has. Raises KeyError for a foreign node."""
        return self._free_capacity.free_at(self._positions[name])

    def add_pods(self, name: str, shape: Shape, count: int = 1) -> None:
        """Count pods of a shape as placed on a node. Raises KeyError for a node that is not the pool's."""
        self.add_pods_at([self._positions[name]], shape, [count])

    def remove_pods(self, name: str, shape: Shape, count: int = 1) -> None:
        """Count pods of a shape as gone from a node. Raises KeyError for a node that is not the pool's."""
        self._apply_change(_Change(shape, [self._positions[name]], [-count]))
        self._bump_version()

    def add_many(self, placed: Iterable[tuple[str, Shape]]) -> None:
        """Count many pods as placed, given by node and shape: the quick way to fill a new room.

        Raises KeyError for a node that is not the pool's; the room is as it was then.
        """
        for shape, counts in self._counts_by_shape(placed).items():
            self.add_pods_at(list(counts), shape, list(counts.values()))

    def remove_many(self, placed: Iterable[tuple[str, Shape]]) -> None:
        """Count many pods as gone, given by node and shape.

        Raises KeyError for a node that is not the pool's; the room is as it was then.
        """
        by_shape = self._counts_by_shape(placed)
        for shape, counts in by_shape.items():
            self._apply_change(_Change(shape, list(counts), [-count for count in counts.values()]))
        if by_shape:
            self._bump_version()

    def _counts_by_shape(self, placed: Iterable[tuple[str, Shape]]) -> Mapping[Shape, Mapping[int, int]]:
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
            counts[self._positions[name]] += 1
        return by_shape

    def add_pods_at(self, positions: Sequence[int], shape: Shape, counts: Sequence[int]) -> None:
        """Count pods of a shape as placed on several nodes at once; each position is named once."""
        self._apply_change(_Change(shape, positions, counts))

    def remove_counts(self, shape: Shape, counts: IntArray) -> None:
        """Count pods of a shape as gone: so many from each node by position. The quick way for many nodes."""
        positions = np.flatnonzero(counts)
        if not len(positions):
            return
        gone = -counts[positions]
        # A few are changed one by one, which is quicker with plain numbers.
        few = len(positions) <= FEW
        self._apply_change(
            _Change(shape, positions.tolist(), gone.tolist()) if few else _Change(shape, positions, gone)
        )
        self._bump_version()

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
                self._free_capacity.change_pods(change.shape, change.positions, back)
            else:
                self._known_unfit.pop(change, None)
        self.version = mark.version

    def save(self) -> tuple[Mark, SavedCapacity]:
        """A state to go back to that is far away: much may be changed before."""
        return self.mark(), self._free_capacity.save()

    def restore(self, saved: tuple[Mark, SavedCapacity]) -> None:
        """Back to what was saved; all marks since then are void."""
        mark, state = saved
        for change in self._changes[mark.changes :]:
            if not isinstance(change, _Change):
                self._known_unfit.pop(change, None)
        del self._changes[mark.changes :]
        self._free_capacity.restore(state)
        self.version = mark.version

    def forget_marks(self) -> None:
        """Everything so far stays: all marks are void, and the memory of how to undo is freed."""
        self._changes.clear()

    def capacity_by_node(self, shape: Shape, among: AllowedNodes = None) -> IntArray:
        """How many pods of the shape fit on each node, each node seen alone; 0 outside `among`."""
        capacity = self.shape_view(shape).capacity.copy()
        if among is not None:
            capacity[~self.node_mask(among)] = 0
        return capacity

    def capacity_on_node(self, name: str, shape: Shape) -> int:
        """How many pods of the shape fit on one node. Raises KeyError for a node that is not the pool's."""
        return int(self.shape_view(shape).capacity[self._positions[name]])

    def total_capacity(self, shape: Shape) -> int:
        """How many pods of the shape fit at all."""
        return self.shape_view(shape).total

    def node_mask(self, among: AllowedNodes) -> BoolArray:
        """The allowed nodes by position."""
        if isinstance(among, np.ndarray):
            return among
        if among is None:
            return np.ones(len(self.nodes), dtype=bool)
        mask = np.zeros(len(self.nodes), dtype=bool)
        mask[[self._positions[name] for name in among if name in self._positions]] = True
        return mask

    def shape_view(self, shape: Shape) -> ShapeView:
        """What the nodes are worth to a shape at this moment; to be read before the next change, and not written to."""
        known = self._views_by_id.get(id(shape))
        if known is None:
            if len(self._views_by_id) >= _MAX_VIEWS:
                self._views_by_id.clear()
            # As long as the shape is here its id is its own.
            known = self._views_by_id[id(shape)] = shape, self._views.get(shape) or self._add_view(shape)
        view = known[1]
        view.refresh()
        return view

    def _add_view(self, shape: Shape) -> ShapeView:
        images = self.node_filter.known_images(shape)
        alike = replace(shape, images=images) if images != shape.images else shape
        found = self._views.get(alike) or ShapeView(self._free_capacity, alike)
        for key in (alike, shape):
            if len(self._views) >= _MAX_VIEWS and key not in self._views:
                del self._views[next(iter(self._views))]
            self._views[key] = found
        return found

    def is_known_unfit(self, what: object) -> bool:
        """Whether this was found not to fit, and no room has appeared since."""
        return self._known_unfit.get(what) == self.version

    def remember_unfit(self, what: object) -> None:
        """Remember that this does not fit; what was found out in a trial is forgotten with it."""
        if len(self._known_unfit) >= _MAX_UNFIT:
            self._known_unfit.clear()
        self._known_unfit[what] = self.version
        self._changes.append(what)

    def _apply_change(self, change: _Change) -> None:
        self._free_capacity.change_pods(change.shape, change.positions, change.counts)
        self._changes.append(change)

    def _bump_version(self) -> None:
        # Never a number that was in use before, even after an undo: what was remembered then was another state.
        self._last_version += 1
        self.version = self._last_version


def _network_order(node: Node, levels: Sequence[str]) -> tuple[tuple[tuple[bool, str], ...], str]:
    """Neighbours in the network stand together; nodes that do not have a level's label come last."""
    return tuple((level not in node.labels, node.labels.get(level, "")) for level in levels), node.name
