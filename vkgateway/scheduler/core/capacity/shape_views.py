"""Capacity and rank of all nodes by shape, updated for touched nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from vkgateway.scheduler.core.capacity.free_vectors import FEW, SHARE, SPARE, SPARE_BITS, FreeCapacity
from vkgateway.scheduler.core.capacity.node_fit import BoolArray, IntArray
from vkgateway.scheduler.core.snapshot import Shape

PLENTY = 1 << 20
"""Upper bound of the pods that fit on a node, reached by pods without requests."""

NEVER = (1 << 63) - 1
"""Key of a node on which no pod fits."""

_MAX_VIEWS = 256

_SOFT_BITS, _IMAGE_BITS = 3, 4
"""Bits of a node's key for taints and for missing images."""


@dataclass(frozen=True, slots=True)
class DomainSums:
    """Sums of capacity over the nodes of each domain of a level; the last entry is for nodes without the label."""

    capacity: IntArray
    loose: IntArray
    """Number of pods that fit on nodes that are not whole."""
    units: IntArray
    """Free thousandths of the unit on feasible nodes."""


class ShapeView:
    """Capacity and rank of each node for one shape.

    `capacity` is the number of pods that fit on each node; the node with the smallest `key` is chosen first. Keys are
    distinct, except for nodes on which no pod fits: they are NEVER. The parts of a key, the most significant first:
    whether the node is avoided, whether a whole node is broken, untolerated soft taints, free units, free fraction of
    the other resources, missing images, position. The fewer units are free, the sooner a node is chosen: a pod does not
    break a node that could take a larger pod while a fuller node fits.
    """

    def __init__(self, free_capacity: FreeCapacity, shape: Shape) -> None:
        self._free_capacity = free_capacity
        self._shape = shape
        self._mask = free_capacity.nodes.filter.feasible_nodes(shape)
        requested = free_capacity.requested_lines(shape)
        self._asked = requested or []
        self._is_possible = requested is not None
        self._free = free_capacity.amounts_of(free_capacity.unit)
        self._breaks_whole_nodes = shape.amount_of(free_capacity.unit) > 0
        others = [name for name, _ in shape.requests if self._is_possible and name not in (free_capacity.unit, "pods")]
        self._others = [free_capacity.weighted_amounts(name) for name in others]
        self._whole = free_capacity.nodes.largest_units
        self._layout = _KeyLayout.for_pool(self._whole, free_capacity.size)
        nodes = free_capacity.nodes.filter
        self._fixed = self._layout.fixed_keys(nodes.taint_penalty(shape), nodes.missing_images(shape), nodes.avoided)
        self._seen_until = -1
        self._sums: dict[str, tuple[IntArray, DomainSums]] = {}
        self.capacity: IntArray = np.zeros(free_capacity.size, dtype=np.int64)
        self.key: IntArray = np.full(free_capacity.size, NEVER, dtype=np.int64)
        self.units: IntArray = np.zeros(free_capacity.size, dtype=np.int64)
        """Free thousandths of the unit on feasible nodes."""
        self.total = 0
        """Number of pods that fit on all nodes together."""

    def refresh(self) -> None:
        """Recompute the nodes that were touched since the last refresh."""
        log = self._free_capacity
        now = log.dropped + len(log.touched)
        if self._seen_until == now or not self._is_possible:
            return
        # A node may occur more than once in the log.
        touched = () if self._seen_until < log.dropped else dict.fromkeys(log.touched[self._seen_until - log.dropped :])
        if not touched or len(touched) * SHARE > log.size > FEW:
            self._refresh_all()
        elif len(touched) > FEW:
            self._refresh_some(np.array(list(touched), dtype=np.int64))
        else:
            for position in touched:
                self._refresh_one(position)
        self._seen_until = now

    def equal_nodes(self, position: int) -> IntArray:
        """Return the nodes that differ from this one only by position; the shape fits on this one."""
        return np.flatnonzero(self.key >> self._layout.images == self.worth_of(position))

    def worth_of(self, position: int) -> int:
        """Return the key of a node without its position."""
        return self.key.item(position) >> self._layout.images

    def count_fitting_nodes(self, positions: IntArray | None) -> int:
        """Return the number of these nodes on which a pod of the shape fits."""
        return int(np.count_nonzero(self.capacity if positions is None else self.capacity[positions]))

    def loose_capacity(self, at: IntArray | slice) -> IntArray:
        """Return how many pods fit on each of these nodes; 0 on whole nodes."""
        return np.where(self.units[at] >= self._whole, 0, self.capacity[at])

    def domain_sums(self, level: str) -> DomainSums:
        """Return the sums of the domains of a level, by the codes of `NodeFilter.label_column`; read-only."""
        found = self._sums.get(level)
        if found is None:
            column = self._free_capacity.nodes.filter.label_column(level)
            domain_count = len(column.values)
            parts = (
                sum_by_code(column.codes, values, domain_count)
                for values in (self.capacity, self.loose_capacity(slice(None)), self.units)
            )
            found = self._sums[level] = column.codes, DomainSums(*parts)
        return found[1]

    def _refresh_all(self) -> None:
        self.capacity, self.units, self.key = self._compute_worth(slice(None))
        self.total = int(self.capacity.sum())
        self._sums.clear()

    def _refresh_some(self, positions: IntArray) -> None:
        before = self.capacity[positions], self.loose_capacity(positions), self.units[positions]
        self.capacity[positions], self.units[positions], self.key[positions] = self._compute_worth(positions)
        after = self.capacity[positions], self.loose_capacity(positions), self.units[positions]
        self.total += int(after[0].sum() - before[0].sum())
        for codes, sums in self._sums.values():
            for column, old, new in zip((sums.capacity, sums.loose, sums.units), before, after, strict=True):
                np.add.at(column, codes[positions], new - old)

    def _compute_worth(self, at: IntArray | slice) -> tuple[IntArray, IntArray, IntArray]:
        """Return capacity, units and keys of these nodes."""
        mask, whole, layout = self._mask[at], self._whole, self._layout
        capacity = np.where(mask, PLENTY, 0)
        for free, amount in self._asked:
            np.minimum(capacity, free[at] // amount, out=capacity)
        np.maximum(capacity, 0, out=capacity)
        if self._free_capacity.zones is not None:
            self._free_capacity.zones.limit_capacities(capacity, self._shape, None if isinstance(at, slice) else at)
        units = np.clip(self._free[at], 0, whole)
        key = self._fixed[at] + ((units >> layout.coarse) << layout.units)
        if self._breaks_whole_nodes:
            key += (units >= whole).astype(np.int64) << layout.broken
        if self._others:
            spare = sum(free[at] * scale[at] for free, scale in self._others) / len(self._others)
            key += np.clip(spare, 0, SPARE).astype(np.int64) << layout.spare
        return capacity, np.where(mask, units, 0), np.where(capacity > 0, key, NEVER)

    def _refresh_one(self, position: int) -> None:
        """Recompute a single node, for which numpy would take ten times as long."""
        if not self._mask.item(position):
            return
        capacity = PLENTY
        for free, amount in self._asked:
            fits = free.item(position) // amount
            capacity = min(capacity, fits)
        capacity = max(capacity, 0)
        if self._free_capacity.zones is not None:
            capacity = self._free_capacity.zones.limit_capacity(capacity, self._shape, position)
        whole, layout = self._whole, self._layout
        units = max(0, min(self._free.item(position), whole))
        if self._sums:
            self._update_sums(position, capacity, units)
        self.total += capacity - self.capacity.item(position)
        self.capacity[position], self.units[position] = capacity, units
        if capacity == 0:
            self.key[position] = NEVER
            return
        key = self._fixed.item(position) + ((units >> layout.coarse) << layout.units)
        if self._breaks_whole_nodes and units >= whole:
            key += 1 << layout.broken
        if self._others:
            spare = 0.0
            for free, scale in self._others:
                spare += free.item(position) * scale.item(position)
            key += int(min(max(spare / len(self._others), 0), SPARE)) << layout.spare
        self.key[position] = key

    def _update_sums(self, position: int, capacity: int, units: int) -> None:
        """Apply a node's new capacity to the sums."""
        whole = self._whole
        old_capacity, old_units = self.capacity.item(position), self.units.item(position)
        for codes, sums in self._sums.values():
            # Nodes without the label have the code -1: the last entry of the sums.
            code = codes.item(position)
            sums.capacity[code] += capacity - old_capacity
            sums.loose[code] += (capacity if units < whole else 0) - (old_capacity if old_units < whole else 0)
            sums.units[code] += units - old_units


class ShapeViews:
    """Views of all nodes by shape."""

    def __init__(self, free_capacity: FreeCapacity) -> None:
        self._free_capacity = free_capacity
        self._views: dict[Shape, ShapeView] = {}
        self._views_by_id: dict[int, tuple[Shape, ShapeView]] = {}
        """Views by the identity of shapes: equal pods mostly share the shape, and its hash is slow."""

    def __getitem__(self, shape: Shape) -> ShapeView:
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
        images = self._free_capacity.nodes.filter.known_images(shape)
        view_shape = replace(shape, images=images) if images != shape.images else shape
        found = self._views.get(view_shape) or ShapeView(self._free_capacity, view_shape)
        for key in (view_shape, shape):
            if len(self._views) >= _MAX_VIEWS and key not in self._views:
                del self._views[next(iter(self._views))]
            self._views[key] = found
        return found


def sum_by_code(codes: IntArray, values: IntArray, count: int) -> IntArray:
    """Return the sum of the values for each of `count` codes, and last for nodes without a code."""
    found = np.zeros(count + 1, dtype=np.int64)
    np.add.at(found, codes, values)
    return found


class _KeyLayout(NamedTuple):
    """Layout of a key: the number of bits below each part."""

    images: int
    spare: int
    units: int
    soft: int
    broken: int
    avoided: int
    coarse: int
    """Number of low bits of the units that are dropped if there are too many."""

    @classmethod
    def for_pool(cls, whole: int, size: int) -> _KeyLayout:
        images = max(size - 1, 0).bit_length()
        spare = images + _IMAGE_BITS
        units = spare + SPARE_BITS
        coarse = max(0, units + whole.bit_length() + _SOFT_BITS + 2 - 63)
        soft = units + whole.bit_length() - coarse
        return cls(images, spare, units, soft, soft + _SOFT_BITS, soft + _SOFT_BITS + 1, coarse)

    def fixed_keys(self, penalties: IntArray, images: IntArray, avoided: BoolArray) -> IntArray:
        """Return the parts of the keys that do not depend on free amounts."""
        key = np.minimum(penalties, (1 << _SOFT_BITS) - 1) << self.soft
        key += np.minimum(images, (1 << _IMAGE_BITS) - 1) << self.images
        key += avoided.astype(np.int64) << self.avoided
        key += np.arange(len(key))
        return key
