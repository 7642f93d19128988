"""The domains of a network level (racks, say): which could take a gang, in which order to try them, and which few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vkgateway.arbiter.capacity.node_fit import BoolArray, IntArray
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.capacity.shape_views import DomainSums, sum_by_code
from vkgateway.arbiter.snapshot import Shape


@dataclass(frozen=True, slots=True)
class PodDemand:
    """So many pods of a shape."""

    shape: Shape
    count: int


class TopologyDomains:
    """The domains of one level among some nodes, by what they offer to a gang at this moment.

    Nodes that do not have the level's label belong to no domain. To be asked before the next change of the room.
    """

    def __init__(
        self, room: NodeResources, demands: Sequence[PodDemand], level: str, positions: IntArray | None
    ) -> None:
        column = room.node_filter.label_column(level)
        self._node_resources = room
        self._demands = demands
        self._domain_count = len(column.values)
        self._codes = column.codes if positions is None else column.codes[positions]
        self._positions = positions
        views = [room.shape_view(demand.shape) for demand in demands]
        if positions is None:
            self._offers = [view.domain_sums(level) for view in views]
        else:
            self._offers = [
                DomainSums(
                    self._sum_by_domain(view.capacity[positions]),
                    self._sum_by_domain(view.loose_capacity(positions)),
                    self._sum_by_domain(view.units[positions]),
                )
                for view in views
            ]

    def nodes_in_domain(self, domain: int) -> IntArray:
        """The nodes of a domain."""
        return self._positions_where(self._codes == domain)

    def rank_by_fit(self) -> Iterator[int]:
        """The domains that may take the gang: fewest whole nodes broken into first, then least left over."""
        found = np.flatnonzero(self._has_capacity())
        if len(found) == 0:
            return
        broken, left = self._broken_nodes()[found], self._free_units()[found]
        fewest = np.flatnonzero(broken == broken.min())
        best = int(found[fewest[left[fewest].argmin()]])
        yield best
        # One is enough as a rule; only pods of several shapes may not fit together where each shape does.
        if len(found) > 1:
            offered = self._has_resources()
            order = found[np.lexsort((left, broken))]
            yield from order[(order != best) & offered[order]].tolist()

    def rank_by_capacity(self) -> Iterator[tuple[int, int]]:
        """How many pods fit at most in each domain, and which it is; the most promising first."""
        bounds = np.zeros(self._domain_count, dtype=np.int64)
        for fits, demand in self._capacity_by_demand():
            bounds += np.minimum(fits, demand.count)
        for domain in np.argsort(-bounds, kind="stable").tolist():
            yield int(bounds[domain]), domain

    def growing_unions(self, steps: int) -> Iterator[IntArray]:
        """Nodes of ever more domains, beginning with as few as could take the gang; all of them at last.

        After so many steps of one domain more the number is doubled.
        """
        order = self._domain_order()
        few = self._count_needed(order)
        if few > self._domain_count:
            return
        if len(self._demands) == 1:
            yield self._nodes_in_domains(self._with_tightest_last(order[:few]))
            return
        step = 0
        while few < self._domain_count:
            yield self._nodes_in_domains(order[:few])
            step += 1
            few += 1 if step <= steps else few
        yield self._positions_where(self._codes >= 0)

    def min_domains(self) -> int:
        """How many domains it takes at least; more than there are: all of them do not do."""
        return self._count_needed(self._domain_order())

    def _capacity_by_demand(self) -> Iterator[tuple[IntArray, PodDemand]]:
        """For each demand how many of its pods fit in each domain."""
        for offer, demand in zip(self._offers, self._demands, strict=True):
            yield offer.capacity[:-1], demand

    def _has_capacity(self) -> BoolArray:
        """Where there is room for each demand by itself: no proof that they fit together."""
        enough = np.ones(self._domain_count, dtype=bool)
        for fits, demand in self._capacity_by_demand():
            enough &= fits >= demand.count
        return enough

    def _has_resources(self) -> BoolArray:
        """Where there is as much of every resource as the gang asks for in all; no proof either."""
        offers = np.ones(self._domain_count, dtype=bool)
        usable = self._node_resources.node_filter.usable
        for resource in sorted({name for demand in self._demands for name, _ in demand.shape.requests}):
            asked = sum(demand.shape.amount_of(resource) * demand.count for demand in self._demands)
            free = np.where(usable, np.maximum(self._node_resources.free_amounts(resource), 0), 0)
            offered = self._sum_by_domain(free if self._positions is None else free[self._positions])
            offers &= offered[:-1] >= asked
        return offers

    def _domain_order(self) -> IntArray:
        """The domains, those first that take most of the gang."""
        return np.argsort(-self._domain_weights(), kind="stable")

    def _count_needed(self, order: IntArray) -> int:
        needed = 1
        for fits, demand in self._capacity_by_demand():
            reached = np.cumsum(fits[order])
            if len(reached) == 0 or reached[-1] < demand.count:
                return self._domain_count + 1
            needed = max(needed, int(np.searchsorted(reached, demand.count)) + 1)
        return needed

    def _with_tightest_last(self, chosen: IntArray) -> IntArray:
        """The last domain changed for the one that the rest fits into with the least left over."""
        fits = self._offers[0].capacity[:-1]
        rest = self._demands[0].count - fits[chosen[:-1]].sum()
        others = np.setdiff1d(np.arange(self._domain_count), chosen[:-1])
        others = others[fits[others] >= rest]
        return np.append(chosen[:-1], others[np.argmin(fits[others])])

    def _domain_weights(self) -> IntArray:
        """How much of the gang a domain could take, by units (by pods where none are asked for)."""
        sizes = [demand.shape.amount_of(self._node_resources.pool.unit_resource) for demand in self._demands]
        weights = np.zeros(self._domain_count, dtype=np.int64)
        for (fits, demand), size in zip(self._capacity_by_demand(), sizes, strict=True):
            weights += np.minimum(fits, demand.count) * (size if any(sizes) else 1)
        return weights

    def _free_units(self) -> IntArray:
        """What is free in units, of which all of the gang's will be taken; pods' places where it asks for no units."""
        first = self._offers[0]
        asks = any(demand.shape.amount_of(self._node_resources.pool.unit_resource) for demand in self._demands)
        return (first.units if asks else first.capacity)[:-1]

    def _broken_nodes(self) -> IntArray:
        """How many whole nodes at least would be broken into: those that the nodes in use cannot save."""
        missing = np.zeros(self._domain_count, dtype=np.int64)
        for offer, demand in zip(self._offers, self._demands, strict=True):
            size = demand.shape.amount_of(self._node_resources.pool.unit_resource)
            missing += np.maximum(demand.count - offer.loose[:-1], 0) * size
        return -(-missing // max(self._node_resources.largest_node_units, 1))

    def _nodes_in_domains(self, domains: IntArray) -> IntArray:
        chosen = np.zeros(self._domain_count + 1, dtype=bool)
        chosen[domains] = True
        return self._positions_where(chosen[self._codes])

    def _positions_where(self, mask: BoolArray) -> IntArray:
        found = np.flatnonzero(mask)
        return found if self._positions is None else self._positions[found]

    def _sum_by_domain(self, values: IntArray) -> IntArray:
        return sum_by_code(self._codes, values, self._domain_count)
