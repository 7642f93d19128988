"""Free resources of a pool's nodes, the number of pods that fit, and trials that can be undone.

Nodes are in topology order: by the pool's levels, the widest first, then by name. A node's position is its index in
this order, and all arrays follow it. `NodeResources` holds one state. To test "what if all of these were evicted",
mark, remove the pods, query and undo, or work on a copy.
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
from vkgateway.arbiter.trial import Trial
from vkgateway.model.requests import MilliResources

AllowedNodes = Iterable[str] | BoolArray | None
"""Allowed nodes: names (those of other pools are ignored) or a mask by position; None: all."""

_MAX_VIEWS = 256
_MAX_UNFIT = 4096


class Mark(NamedTuple):
    """State that `undo` returns to."""

    changes: int
    version: int


@dataclass(slots=True)
class _Change:
    """Change of the number of pods of a shape on nodes; negative counts remove pods."""

    shape: Shape
    positions: Sequence[int] | IntArray
    counts: Sequence[int] | IntArray


class NodeResources:
    """Free amounts of a pool's nodes, in thousandths.

    All pods count, even beyond a node's capacity and on unusable nodes: running pods keep running. Only
    `capacity_by_node` and its relatives limit new pods to what is free. Resources that no node of the pool has are not
    counted.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.nodes: tuple[Node, ...] = tuple(sorted(pool.nodes, key=lambda node: _network_order(node, pool.levels)))
        self.names: tuple[str, ...] = tuple(node.name for node in self.nodes)
        self.version = 0
        """Grows when capacity is freed. A shape that did not fit still does not fit while the version is unchanged."""
        self._positions = {name: index for index, name in enumerate(self.names)}
        self._free_capacity = FreeCapacity(self.nodes, pool.unit_resource)
        self._views: dict[Shape, ShapeView] = {}
        self._views_by_id: dict[int, tuple[Shape, ShapeView]] = {}
        """Views by the identity of shapes: equal pods mostly share the shape, and its hash is slow."""
        self._changes: list[_Change | object] = []
        self._last_version = 0
        self._known_unfit: dict[object, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def __len__(self) -> int:
        return len(self.nodes)

    def copy(self) -> NodeResources:
        """Return an independent copy without marks."""
        return self._with_capacity(self._free_capacity.copy())

    def with_ceiling(self, ceiling: IntArray) -> NodeResources:
        """Return a copy whose nodes offer at most the ceiling of the pool's unit, by position, in thousandths.

        Free amounts, not the ceiling, decide which nodes are full and which are whole.
        """
        return self._with_capacity(self._free_capacity.copy(ceiling))

    def _with_capacity(self, free_capacity: FreeCapacity) -> NodeResources:
        other = NodeResources.__new__(NodeResources)
        other.__dict__.update(self.__dict__)
        other._free_capacity = free_capacity
        other._views, other._views_by_id, other._changes, other._known_unfit = {}, {}, [], {}
        return other

    @cached_property
    def pool_order(self) -> IntArray:
        """Index of each node in the pool's own order, by position."""
        index = {node.name: number for number, node in enumerate(self.pool.nodes)}
        return np.array([index[name] for name in self.names], dtype=np.int64)

    @property
    def node_filter(self) -> NodeFilter:
        """Feasibility of nodes by labels and taints."""
        return self._free_capacity.node_filter

    def free_amounts(self, resource: str) -> IntArray:
        """Return the free amount of a resource on each node, by position; negative where it is overcommitted.

        The array is read-only and valid until the next change. Raises KeyError for a resource that no node has.
        """
        return self._free_capacity.free_amounts(resource)

    @property
    def largest_node_units(self) -> int:
        """Thousandths of the pool's unit on its largest usable node: a node with this amount free is whole."""
        return self._free_capacity.whole

    @property
    def idle_units(self) -> int:
        """Thousandths of the unit that are free on usable nodes.

        A node that plans overcommit has no idle units.
        """
        return int(self._idle_by_node().sum())

    def take_idle_units(self) -> None:
        """Count all idle units as used."""
        idle = self._idle_by_node()
        for amount in np.unique(idle[idle > 0]).tolist():
            positions = np.flatnonzero(idle == amount).tolist()
            self.add_pods_at(positions, Shape.from_requests({self.pool.unit_resource: amount}), [1] * len(positions))

    def _idle_by_node(self) -> IntArray:
        free = np.maximum(self.free_amounts(self.pool.unit_resource), 0)
        return np.where(self.node_filter.usable, free, 0)

    @property
    def has_zones(self) -> bool:
        """Whether NUMA zones limit the pods on any node."""
        return self._free_capacity.zones is not None

    def is_zoned(self, name: str) -> bool:
        """Return whether NUMA zones limit the pods on this node. Raises KeyError for a node outside the pool."""
        return self._free_capacity.zones is not None and self._positions[name] in self._free_capacity.zones

    def count_published(self, name: str, shape: Shape, count: int = 1) -> None:
        """Count pods as included in the published zones of a node; a negative count removes them."""
        if self._free_capacity.zones is not None:
            self._free_capacity.zones.count_published(shape, self._positions[name], count)
            self._free_capacity.touch_node(self._positions[name])
            self._bump_version()

    def fits_zones(self, placed: Iterable[tuple[str, Shape]]) -> bool:
        """Return whether the zones hold these placed pods, given by node and shape."""
        zones = self._free_capacity.zones
        return zones is None or zones.fits_placed([(self._positions[name], shape) for name, shape in placed])

    def nodes_in_domain(self, name: str, level: str) -> BoolArray:
        """Return the mask of nodes in the node's domain of a topology level; without the label, only the node itself.

        Raises KeyError for a node outside the pool.
        """
        codes = self.node_filter.label_column(level).codes
        code = codes[self._positions[name]]
        return codes == code if code != ABSENT else self.node_mask([name])

    def position_of(self, name: str) -> int:
        """Return a node's index in all arrays. Raises KeyError for a node outside the pool."""
        return self._positions[name]

    def free_on_node(self, name: str) -> MilliResources:
        """Return the free amounts on a node by resource. Raises KeyError for a node outside the pool."""
        return self._free_capacity.free_at(self._positions[name])

    def add_pods(self, name: str, shape: Shape, count: int = 1) -> None:
        """Add pods of a shape to a node. Raises KeyError for a node outside the pool."""
        self.add_pods_at([self._positions[name]], shape, [count])

    def remove_pods(self, name: str, shape: Shape, count: int = 1) -> None:
        """Remove pods of a shape from a node. Raises KeyError for a node outside the pool."""
        self._apply_change(_Change(shape, [self._positions[name]], [-count]))
        self._bump_version()

    def add_many(self, placed: Iterable[tuple[str, Shape]]) -> None:
        """Add many pods, given by node and shape: the fast way to fill new node resources.

        Raises KeyError for a node outside the pool, without a change.
        """
        for shape, counts in self._counts_by_shape(placed).items():
            self.add_pods_at(list(counts), shape, list(counts.values()))

    def remove_many(self, placed: Iterable[tuple[str, Shape]]) -> None:
        """Remove many pods, given by node and shape.

        Raises KeyError for a node outside the pool, without a change.
        """
        by_shape = self._counts_by_shape(placed)
        for shape, counts in by_shape.items():
            self._apply_change(_Change(shape, list(counts), [-count for count in counts.values()]))
        if by_shape:
            self._bump_version()

    def _counts_by_shape(self, placed: Iterable[tuple[str, Shape]]) -> Mapping[Shape, Mapping[int, int]]:
        """Return the number of pods by shape and position."""
        by_shape: dict[Shape, defaultdict[int, int]] = {}
        # Equal pods mostly share the shape, and its hash is slow.
        by_identity: dict[int, defaultdict[int, int]] = {}
        shapes: list[Shape] = []
        for name, shape in placed:
            counts = by_identity.get(id(shape))
            if counts is None:
                counts = by_identity[id(shape)] = by_shape.setdefault(shape, defaultdict(int))
                shapes.append(shape)  # the reference keeps the shape alive, so its id stays unique
            counts[self._positions[name]] += 1
        return by_shape

    def add_pods_at(self, positions: Sequence[int], shape: Shape, counts: Sequence[int]) -> None:
        """Add pods of a shape to several nodes; each position occurs once."""
        self._apply_change(_Change(shape, positions, counts))

    def remove_counts(self, shape: Shape, counts: IntArray) -> None:
        """Remove pods of a shape, with the count by position: the fast way for many nodes."""
        positions = np.flatnonzero(counts)
        if not len(positions):
            return
        negated = -counts[positions]
        # For few nodes plain integers are quicker than numpy.
        few = len(positions) <= FEW
        self._apply_change(
            _Change(shape, positions.tolist(), negated.tolist()) if few else _Change(shape, positions, negated)
        )
        self._bump_version()

    def mark(self) -> Mark:
        """Return a mark at which a trial begins."""
        return Mark(len(self._changes), self.version)

    def undo(self, mark: Mark) -> None:
        """Undo all changes since the mark, which stays valid; later marks become invalid.

        Cost: the number of changes.
        """
        while len(self._changes) > mark.changes:
            change = self._changes.pop()
            if isinstance(change, _Change):
                counts = change.counts
                negated = -counts if isinstance(counts, np.ndarray) else [-count for count in counts]
                self._free_capacity.change_pods(change.shape, change.positions, negated)
            else:
                self._known_unfit.pop(change, None)
        self.version = mark.version

    def trial(self) -> Trial:
        """Return a trial: changes in its `with` block are undone unless the block commits them."""
        return Trial(self)

    def save(self) -> tuple[Mark, SavedCapacity]:
        """Return the state for a `restore` after many changes."""
        return self.mark(), self._free_capacity.save()

    def restore(self, saved: tuple[Mark, SavedCapacity]) -> None:
        """Restore a saved state; marks set after it become invalid."""
        mark, state = saved
        for change in self._changes[mark.changes :]:
            if not isinstance(change, _Change):
                self._known_unfit.pop(change, None)
        del self._changes[mark.changes :]
        self._free_capacity.restore(state)
        self.version = mark.version

    def forget_marks(self) -> None:
        """Keep all changes so far: all marks become invalid, and the undo log is freed."""
        self._changes.clear()

    def capacity_by_node(self, shape: Shape, among: AllowedNodes = None) -> IntArray:
        """Return how many pods of the shape fit on each node separately; 0 outside `among`."""
        capacity = self.shape_view(shape).capacity.copy()
        if among is not None:
            capacity[~self.node_mask(among)] = 0
        return capacity

    def capacity_on_node(self, name: str, shape: Shape) -> int:
        """Return how many pods of the shape fit on one node. Raises KeyError for a node outside the pool."""
        return int(self.shape_view(shape).capacity[self._positions[name]])

    def total_capacity(self, shape: Shape) -> int:
        """Return how many pods of the shape fit on all nodes together."""
        return self.shape_view(shape).total

    def node_mask(self, among: AllowedNodes) -> BoolArray:
        """Return the mask of the allowed nodes."""
        if isinstance(among, np.ndarray):
            return among
        if among is None:
            return np.ones(len(self.nodes), dtype=bool)
        mask = np.zeros(len(self.nodes), dtype=bool)
        mask[[self._positions[name] for name in among if name in self._positions]] = True
        return mask

    def shape_view(self, shape: Shape) -> ShapeView:
        """Return the capacity and rank of all nodes for a shape; read-only, valid until the next change."""
        entry = self._views_by_id.get(id(shape))
        if entry is None:
            if len(self._views_by_id) >= _MAX_VIEWS:
                self._views_by_id.clear()
            # The stored reference keeps the shape alive, so its id stays unique.
            entry = self._views_by_id[id(shape)] = shape, self._views.get(shape) or self._add_view(shape)
        view = entry[1]
        view.refresh()
        return view

    def _add_view(self, shape: Shape) -> ShapeView:
        images = self.node_filter.known_images(shape)
        view_shape = replace(shape, images=images) if images != shape.images else shape
        found = self._views.get(view_shape) or ShapeView(self._free_capacity, view_shape)
        for key in (view_shape, shape):
            if len(self._views) >= _MAX_VIEWS and key not in self._views:
                del self._views[next(iter(self._views))]
            self._views[key] = found
        return found

    def is_known_unfit(self, key: object) -> bool:
        """Return whether this was found not to fit and no capacity was freed since."""
        return self._known_unfit.get(key) == self.version

    def remember_unfit(self, key: object) -> None:
        """Remember that this does not fit; `undo` of a trial drops what the trial remembered."""
        if len(self._known_unfit) >= _MAX_UNFIT:
            self._known_unfit.clear()
        self._known_unfit[key] = self.version
        self._changes.append(key)

    def _apply_change(self, change: _Change) -> None:
        self._free_capacity.change_pods(change.shape, change.positions, change.counts)
        self._changes.append(change)

    def _bump_version(self) -> None:
        # A version is never reused, not even after an undo: entries of that version describe another state.
        self._last_version += 1
        self.version = self._last_version


def _network_order(node: Node, levels: Sequence[str]) -> tuple[tuple[tuple[bool, str], ...], str]:
    """Return the sort key of the topology order; nodes without a level's label come last."""
    return tuple((level not in node.labels, node.labels.get(level, "")) for level in levels), node.name
