"""The domains of a network level (racks, say): which could take a gang, in which order to try them, and which few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vkgateway.arbiter.facts import Shape
from vkgateway.arbiter.fitting import BoolArray, IntArray
from vkgateway.arbiter.room import Room

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Demand:
    """So many pods of a shape."""

    shape: Shape
    count: int


class Domains:
    """The domains of one level among some nodes, by what they offer to a gang at this moment.

    Nodes that do not have the level's label belong to no domain.
    """

    def __init__(self, room: Room, demands: Sequence[Demand], level: str, positions: IntArray | None) -> None:
        column = room.fitting.column(level)
        self._positions = np.arange(len(room)) if positions is None else positions
        self._codes = column.codes[self._positions]
        self._positions = self._positions[self._codes >= 0]
        self._codes = self._codes[self._codes >= 0]
        self._number = len(column.values)
        self._room = room
        self._demands = demands
        self._fits = [self._sum(room.view(demand.shape).capacity[self._positions]) for demand in demands]
        """For each demand how many of its pods fit in each domain."""

    def positions(self, domain: int) -> IntArray:
        """The nodes of a domain."""
        inside: IntArray = self._positions[self._codes == domain]
        return inside

    def by_fit(self) -> Iterator[int]:
        """The domains that may take the gang: fewest whole nodes broken into first, then least left over."""
        found = np.flatnonzero(self._may_do())
        if len(found) > 1:
            found = found[np.lexsort((self._left()[found], self._broken()[found]))]
        yield from found.tolist()

    def by_promise(self) -> Iterator[tuple[int, int]]:
        """How many pods fit at most in each domain, and which it is; the most promising first."""
        bounds = self._bounds()
        for domain in np.argsort(-bounds, kind="stable").tolist():
            yield int(bounds[domain]), domain

    def unions(self, steps: int) -> Iterator[IntArray]:
        """Nodes of ever more domains, beginning with as few as could take the gang; all of them at last."""
        order = np.argsort(-self._weights(), kind="stable")
        few = self._enough(order)
        if few is None:
            return
        if len(self._demands) == 1:
            yield self._of(self._tight(order[:few]))
            return
        step = 0
        while few < self._number:
            yield self._of(order[:few])
            step += 1
            few += 1 if step <= steps else few
        yield self._positions

    def _may_do(self) -> BoolArray:
        """Where there is room for each demand by itself, and in sum for all: no proof that they fit together."""
        may = np.ones(self._number, dtype=bool)
        for fits, demand in zip(self._fits, self._demands, strict=True):
            may &= fits >= demand.count
        if len(self._demands) > 1:
            for resource in sorted({name for demand in self._demands for name, _ in demand.shape.requests}):
                asked = sum(demand.shape.amount(resource) * demand.count for demand in self._demands)
                # Sums of large amounts are not exact.
                may &= self._offered(resource) >= asked * (1 - 1e-9)
        return may

    def _offered(self, resource: str) -> FloatArray:
        free = np.where(self._room.fitting.usable, self._room.amount(resource), 0)
        return self._sum(np.maximum(free[self._positions], 0))

    def _enough(self, order: IntArray) -> int | None:
        """How many of the domains, in this order, have room for each demand by itself."""
        needed = 1
        for fits, demand in zip(self._fits, self._demands, strict=True):
            sums = np.cumsum(fits[order])
            if len(sums) == 0 or sums[-1] < demand.count:
                return None
            needed = max(needed, int(np.searchsorted(sums, demand.count)) + 1)
        return needed

    def _tight(self, chosen: IntArray) -> IntArray:
        """The last domain changed for the one that the rest fits into with the least left over."""
        fits, count = self._fits[0], self._demands[0].count
        rest = count - fits[chosen[:-1]].sum()
        others = np.setdiff1d(np.arange(self._number), chosen[:-1])
        others = others[fits[others] >= rest]
        return np.append(chosen[:-1], others[np.argmin(fits[others])])

    def _of(self, domains: IntArray) -> IntArray:
        chosen = np.zeros(self._number, dtype=bool)
        chosen[domains] = True
        return self._positions[chosen[self._codes]]

    def _bounds(self) -> FloatArray:
        """How many pods of the gang fit at most."""
        most = np.zeros(self._number)
        for fits, demand in zip(self._fits, self._demands, strict=True):
            most += np.minimum(fits, demand.count)
        return most

    def _weights(self) -> FloatArray:
        """How much of the gang a domain could take, by units (by pods where none are asked for)."""
        unit = self._room.pool.unit
        sizes = [demand.shape.amount(unit) for demand in self._demands]
        weights = np.zeros(self._number)
        for fits, demand, size in zip(self._fits, self._demands, sizes, strict=True):
            weights += np.minimum(fits, demand.count) * (size if any(sizes) else 1)
        return weights

    def _left(self) -> FloatArray:
        """What is free in units, of which all of the gang's will be taken; pods' places where it asks for no units."""
        if any(demand.shape.amount(self._room.pool.unit) for demand in self._demands):
            return self._offered(self._room.pool.unit)
        return self._fits[0]

    def _broken(self) -> FloatArray:
        """How many whole nodes at least would be broken into: those that the nodes in use cannot save."""
        unit, whole = self._room.pool.unit, self._room.whole
        full = self._room.amount(unit)[self._positions] >= whole
        missing = np.zeros(self._number)
        for demand in self._demands:
            size = demand.shape.amount(unit)
            in_use = np.where(full, 0, self._room.view(demand.shape).capacity[self._positions])
            missing += np.maximum(demand.count - self._sum(in_use), 0) * size
        return np.ceil(missing / max(whole, 1))

    def _sum(self, values: IntArray) -> FloatArray:
        return np.bincount(self._codes, weights=values, minlength=self._number).astype(np.float64)
