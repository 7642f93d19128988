"""Pods on the nodes of a pool: what they leave free.

`NodeResources` holds one state. To test "what if all of these were evicted", remove the pods in a trial, or in a copy.
Queries go to its parts: `nodes` (what does not depend on pods), `free` and `views`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from vkgateway.scheduler.core.capacity.free_vectors import FreeCapacity
from vkgateway.scheduler.core.capacity.node_fit import BoolArray, IntArray
from vkgateway.scheduler.core.capacity.node_table import NodeTable
from vkgateway.scheduler.core.capacity.placed_peers import CountedNodes, PlacedPeers
from vkgateway.scheduler.core.capacity.shape_views import ShapeViews
from vkgateway.scheduler.core.journal import Journal, Trial
from vkgateway.scheduler.core.snapshot import Pool, Shape


class NodeResources:
    """Resources of a pool's nodes, with the pods on them.

    All pods count, even beyond a node's capacity and on unusable nodes: running pods keep running. Only `views` limit
    new pods to what is free. Resources that no node of the pool has are not counted.
    """

    def __init__(self, pool: Pool, journal: Journal | None = None) -> None:
        self.pool = pool
        self.journal = journal or Journal()
        self.nodes = NodeTable(pool)
        self.free = FreeCapacity(self.nodes)
        """Free amounts, to be read: the methods of this class change them."""
        self.views = ShapeViews(self.free)
        """Number of pods that fit, by shape."""
        self._peers = PlacedPeers(len(self.nodes), self.nodes.domains_of, self.nodes.other_peers())
        self.unfit = UnfitCache(self.journal)
        """Gangs that did not fit."""

    def copy(self) -> NodeResources:
        """Return an independent copy, with a journal of its own."""
        other = NodeResources.__new__(NodeResources)
        other.__dict__.update(self.__dict__)
        other.free = self.free.copy()
        other._peers = self._peers.copy()
        other.views, other.journal = ShapeViews(other.free), Journal()
        other.unfit = UnfitCache(other.journal)
        return other

    def add_pods(self, name: str, shape: Shape, count: int = 1) -> None:
        """Add pods of a shape to a node. Raises KeyError for a node outside the pool."""
        self.add_pods_at([self.nodes.positions[name]], shape, [count])

    def remove_pods(self, name: str, shape: Shape, count: int = 1) -> None:
        """Remove pods of a shape from a node. Raises KeyError for a node outside the pool."""
        self.remove_pods_at([self.nodes.positions[name]], shape, [count])

    def add_many(self, placed: Iterable[tuple[str, Shape]]) -> None:
        """Add many pods, given by node and shape: the fast way to fill new node resources.

        Raises KeyError for a node outside the pool, without a change.
        """
        for shape, counts in _counts_by_shape(placed, self.nodes.positions).items():
            self.add_pods_at(list(counts), shape, list(counts.values()))

    def remove_many(self, placed: Iterable[tuple[str, Shape]]) -> None:
        """Remove many pods, given by node and shape.

        Raises KeyError for a node outside the pool, without a change.
        """
        for shape, counts in _counts_by_shape(placed, self.nodes.positions).items():
            self.remove_pods_at(list(counts), shape, list(counts.values()))

    def add_pods_at(self, positions: Sequence[int] | IntArray, shape: Shape, counts: Sequence[int] | IntArray) -> None:
        """Add pods of a shape to several nodes; each position occurs once."""
        self._change_pods(shape, positions, counts)
        self.journal.record(self._change_back, shape, positions, counts)

    def remove_pods_at(
        self, positions: Sequence[int] | IntArray, shape: Shape, counts: Sequence[int] | IntArray
    ) -> None:
        """Remove pods of a shape from several nodes; each position occurs once."""
        self.add_pods_at(positions, shape, _negate(counts))
        self.unfit.note_freed()

    def count_published(self, name: str, shape: Shape, count: int = 1) -> None:
        """Count pods as included in the published zones of a node; a negative count removes them."""
        self.free.count_published(self.nodes.positions[name], shape, count)
        self.unfit.note_freed()

    def permitted_nodes(self, shape: Shape) -> BoolArray | None:
        """Return the mask of the nodes on which one more pod keeps all hard constraints about other pods, whatever is
        free there; None: the shape has none.
        """
        if shape.peers is None:
            return None
        node_filter = self.nodes.filter
        return self._peers.permitted_nodes(
            shape.peers, lambda: CountedNodes(node_filter.selected_nodes(shape), node_filter.feasible_nodes(shape))
        )

    def keep_peer_rules(self, placed: Iterable[tuple[str, Shape]]) -> bool:
        """Return whether placed pods, given by node and shape, keep their hard constraints about all other pods."""
        for name, shape in placed:
            if shape.peers is None:
                continue
            position = self.nodes.positions[name]
            self._peers.change_pods(shape.peers, [position], [-1])
            permitted = self.permitted_nodes(shape)
            self._peers.change_pods(shape.peers, [position], [1])
            if permitted is not None and not permitted.item(position):
                return False
        return True

    def _change_back(self, shape: Shape, positions: Sequence[int] | IntArray, counts: Sequence[int] | IntArray) -> None:
        self._change_pods(shape, positions, _negate(counts))

    def _change_pods(self, shape: Shape, positions: Sequence[int] | IntArray, counts: Sequence[int] | IntArray) -> None:
        self.free.change_pods(shape, positions, counts)
        if shape.peers is not None:
            self._peers.change_pods(shape.peers, positions, counts)

    def trial(self) -> Trial:
        """Return a trial of changes, here and wherever the journal is shared."""
        return self.journal.trial()


def take_idle_units(resources: NodeResources) -> None:
    """Count all idle units of a pool as used."""
    idle = resources.free.idle_by_node()
    for amount in np.unique(idle[idle > 0]).tolist():
        positions = np.flatnonzero(idle == amount).tolist()
        shape = Shape.from_requests({resources.pool.unit_resource: amount})
        resources.add_pods_at(positions, shape, [1] * len(positions))


def _negate(counts: Sequence[int] | IntArray) -> Sequence[int] | IntArray:
    return -counts if isinstance(counts, np.ndarray) else [-count for count in counts]


def _counts_by_shape(
    placed: Iterable[tuple[str, Shape]], positions: Mapping[str, int]
) -> Mapping[Shape, Mapping[int, int]]:
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
        counts[positions[name]] += 1
    return by_shape


_MAX_KEYS = 4096


class UnfitCache:
    """Keys of what did not fit. A key is valid until capacity is freed, or until its trial ends."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.version = 0
        """Grows when capacity is freed. What did not fit still does not fit while the version is unchanged."""
        self._last_version = 0
        self._version_by_key: dict[object, int] = {}

    def __contains__(self, key: object) -> bool:
        return self._version_by_key.get(key) == self.version

    def add(self, key: object) -> None:
        """Remember that this does not fit."""
        if len(self._version_by_key) >= _MAX_KEYS:
            self._version_by_key.clear()
        self._version_by_key[key] = self.version
        self._journal.record(self._version_by_key.pop, key, None)

    def note_freed(self) -> None:
        """Invalidate all keys, because capacity was freed."""
        # A version is never reused, not even after an undo: entries of that version describe another state.
        self._journal.record(self._set_version, self.version)
        self._last_version += 1
        self.version = self._last_version

    def _set_version(self, version: int) -> None:
        self.version = version
