"""The domains of a network level (racks, say): which could take a gang, in which order to try them, and which few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vkgateway.arbiter.facts import Shape
from vkgateway.arbiter.fitting import BoolArray, IntArray
from vkgateway.arbiter.room import Room
from vkgateway.arbiter.views import Sums, sums


@dataclass(frozen=True, slots=True)
class Demand:
    """So many pods of a shape."""

    shape: Shape
    count: int


class Domains:
    """The domains of one level among some nodes, by what they offer to a gang at this moment.

    Nodes that do not have the level's label belong to no domain. To be asked before the next change of the room.
    """

    def __init__(self, room: Room, demands: Sequence[Demand], level: str, positions: IntArray | None) -> None:
        column = room.fitting.column(level)
        self._room = room
        self._demands = demands
        self._number = len(column.values)
        self._codes = column.codes if positions is None else column.codes[positions]
        self._positions = positions
        views = [room.view(demand.shape) for demand in demands]
        if positions is None:
            self._sums = [view.sums(level) for view in views]
        else:
            self._sums = [
                Sums(
                    self._sum(view.capacity[positions]),
                    self._sum(view.loose(positions)),
                    self._sum(view.units[positions]),
                )
                for view in views
            ]

    def positions(self, domain: int) -> IntArray:
        """The nodes of a domain."""
        return self._where(self._codes == domain)

    def by_fit(self) -> Iterator[int]:
        """The domains that may take the gang: fewest whole nodes broken into first, then least left over."""
        found = np.flatnonzero(self._enough())
        if len(found) == 0:
            return
        broken, left = self._broken()[found], self._left()[found]
        fewest = np.flatnonzero(broken == broken.min())
        best = int(found[fewest[left[fewest].argmin()]])
        yield best
        # One is enough as a rule; only pods of several shapes may not fit together where each shape does.
        if len(found) > 1:
            offered = self._offers_all()
            order = found[np.lexsort((left, broken))]
            yield from order[(order != best) & offered[order]].tolist()

    def by_promise(self) -> Iterator[tuple[int, int]]:
        """How many pods fit at most in each domain, and which it is; the most promising first."""
        bounds = np.zeros(self._number, dtype=np.int64)
        for fits, demand in self._fits():
            bounds += np.minimum(fits, demand.count)
        for domain in np.argsort(-bounds, kind="stable").tolist():
            yield int(bounds[domain]), domain

    def unions(self, steps: int) -> Iterator[IntArray]:
        """Nodes of ever more domains, beginning with as few as could take the gang; all of them at last.

        After so many steps of one domain more the number is doubled.
        """
        order = self._order()
        few = self._needed(order)
        if few > self._number:
            return
        if len(self._demands) == 1:
            yield self._of(self._tight(order[:few]))
            return
        step = 0
        while few < self._number:
            yield self._of(order[:few])
            step += 1
            few += 1 if step <= steps else few
        yield self._where(self._codes >= 0)

    def needed(self) -> int:
        """How many domains it takes at least; more than there are: all of them do not do."""
        return self._needed(self._order())

    def _fits(self) -> Iterator[tuple[IntArray, Demand]]:
        """For each demand how many of its pods fit in each domain."""
        for offer, demand in zip(self._sums, self._demands, strict=True):
            yield offer.capacity[:-1], demand

    def _enough(self) -> BoolArray:
        """Where there is room for each demand by itself: no proof that they fit together."""
        enough = np.ones(self._number, dtype=bool)
        for fits, demand in self._fits():
            enough &= fits >= demand.count
        return enough

    def _offers_all(self) -> BoolArray:
        """Where there is as much of every resource as the gang asks for in all; no proof either."""
        offers = np.ones(self._number, dtype=bool)
        usable = self._room.fitting.usable
        for resource in sorted({name for demand in self._demands for name, _ in demand.shape.requests}):
            asked = sum(demand.shape.amount(resource) * demand.count for demand in self._demands)
            free = np.where(usable, np.maximum(self._room.amount(resource), 0), 0)
            offered = self._sum(free if self._positions is None else free[self._positions])
            offers &= offered[:-1] >= asked
        return offers

    def _order(self) -> IntArray:
        """The domains, those first that take most of the gang."""
        return np.argsort(-self._weights(), kind="stable")

    def _needed(self, order: IntArray) -> int:
        needed = 1
        for fits, demand in self._fits():
            reached = np.cumsum(fits[order])
            if len(reached) == 0 or reached[-1] < demand.count:
                return self._number + 1
            needed = max(needed, int(np.searchsorted(reached, demand.count)) + 1)
        return needed

    def _tight(self, chosen: IntArray) -> IntArray:
        """The last domain changed for the one that the rest fits into with the least left over."""
        fits = self._sums[0].capacity[:-1]
        rest = self._demands[0].count - fits[chosen[:-1]].sum()
        others = np.setdiff1d(np.arange(self._number), chosen[:-1])
        others = others[fits[others] >= rest]
        return np.append(chosen[:-1], others[np.argmin(fits[others])])

    def _weights(self) -> IntArray:
        """How much of the gang a domain could take, by units (by pods where none are asked for)."""
        sizes = [demand.shape.amount(self._room.pool.unit) for demand in self._demands]
        weights = np.zeros(self._number, dtype=np.int64)
        for (fits, demand), size in zip(self._fits(), sizes, strict=True):
            weights += np.minimum(fits, demand.count) * (size if any(sizes) else 1)
        return weights

    def _left(self) -> IntArray:
        """What is free in units, of which all of the gang's will be taken; pods' places where it asks for no units."""
        first = self._sums[0]
        asks = any(demand.shape.amount(self._room.pool.unit) for demand in self._demands)
        return (first.units if asks else first.capacity)[:-1]

    def _broken(self) -> IntArray:
        """How many whole nodes at least would be broken into: those that the nodes in use cannot save."""
        missing = np.zeros(self._number, dtype=np.int64)
        for offer, demand in zip(self._sums, self._demands, strict=True):
            size = demand.shape.amount(self._room.pool.unit)
            missing += np.maximum(demand.count - offer.loose[:-1], 0) * size
        return -(-missing // max(self._room.whole, 1))

    def _of(self, domains: IntArray) -> IntArray:
        chosen = np.zeros(self._number + 1, dtype=bool)
        chosen[domains] = True
        return self._where(chosen[self._codes])

    def _where(self, mask: BoolArray) -> IntArray:
        found = np.flatnonzero(mask)
        return found if self._positions is None else self._positions[found]

    def _sum(self, values: IntArray) -> IntArray:
        return sums(self._codes, values, self._number)
