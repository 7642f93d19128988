"""Domains of a topology level (for example racks): which fit a gang, their order, and the fewest that do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import BoolArray, IntArray, LabelColumn
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.shape_views import DomainSums, sum_by_code
from vkgateway.scheduler.core.snapshot import Shape


@dataclass(frozen=True, slots=True)
class PodDemand:
    """Number of pods of one shape."""

    shape: Shape
    count: int


class _DomainNodes:
    """Some nodes of a pool by domain; `positions`: these nodes, None: all."""

    def __init__(self, column: LabelColumn, positions: IntArray | None) -> None:
        self.domain_count = len(column.values)
        self._codes = column.codes if positions is None else column.codes[positions]
        self._positions = positions

    def nodes_in(self, domain: int) -> IntArray:
        """Return the positions of a domain's nodes."""
        return self._positions_where(self._codes == domain)

    def nodes_in_any(self, domains: IntArray) -> IntArray:
        """Return the positions of the nodes in these domains."""
        chosen = np.zeros(self.domain_count + 1, dtype=bool)
        chosen[domains] = True
        return self._positions_where(chosen[self._codes])

    def labeled_nodes(self) -> IntArray:
        """Return the positions of the nodes in all domains."""
        return self._positions_where(self._codes >= 0)

    def _positions_where(self, mask: BoolArray) -> IntArray:
        found = np.flatnonzero(mask)
        return found if self._positions is None else self._positions[found]

    def sum_by_domain(self, values: IntArray) -> IntArray:
        """Return the sums of values of these nodes; the last entry is for nodes without the label."""
        return sum_by_code(self._codes, values, self.domain_count)


class TopologyDomains:
    """Domains of one level among some nodes, by their current capacity for a gang.

    Nodes without the level's label belong to no domain. Valid until the next change of the node resources.
    """

    def __init__(
        self, resources: NodeResources, demands: Sequence[PodDemand], level: str, positions: IntArray | None
    ) -> None:
        self._node_resources = resources
        self._demands = demands
        self._positions = positions
        self._nodes = _DomainNodes(resources.nodes.filter.label_column(level), positions)
        self._domain_count = self._nodes.domain_count
        views = [resources.views[demand.shape] for demand in demands]
        if positions is None:
            self._offers = [view.domain_sums(level) for view in views]
        else:
            self._offers = [
                DomainSums(
                    self._nodes.sum_by_domain(view.capacity[positions]),
                    self._nodes.sum_by_domain(view.loose_capacity(positions)),
                    self._nodes.sum_by_domain(view.units[positions]),
                )
                for view in views
            ]

    def rank_by_fit(self) -> Iterator[IntArray]:
        """Yield the nodes of each domain that may fit the gang: the fewest broken whole nodes first, then the least
        capacity.
        """
        found = np.flatnonzero(self._has_capacity())
        if len(found) == 0:
            return
        broken, left = self._broken_nodes()[found], self._free_units()[found]
        fewest = np.flatnonzero(broken == broken.min())
        best = int(found[fewest[left[fewest].argmin()]])
        yield self._nodes.nodes_in(best)
        # Usually the first domain fits; only pods of several shapes may not fit together where each shape does.
        if len(found) > 1:
            offered = self._has_resources()
            order = found[np.lexsort((left, broken))]
            for domain in order[(order != best) & offered[order]].tolist():
                yield self._nodes.nodes_in(domain)

    def rank_by_capacity(self) -> Iterator[tuple[int, IntArray]]:
        """Yield an upper bound of the pods that fit in each domain, and its nodes; the highest bound first."""
        bounds = np.zeros(self._domain_count, dtype=np.int64)
        for fits, demand in self._capacity_by_demand():
            bounds += np.minimum(fits, demand.count)
        for domain in np.argsort(-bounds, kind="stable").tolist():
            yield int(bounds[domain]), self._nodes.nodes_in(domain)

    def growing_unions(self, steps: int) -> Iterator[IntArray]:
        """Yield the nodes of growing sets of domains, from the fewest that could fit the gang to all.

        After `steps` sets that grow by one domain, the size doubles.
        """
        order = self._domain_order()
        count = self._count_needed(order)
        if count > self._domain_count:
            return
        if len(self._demands) == 1:
            yield self._nodes.nodes_in_any(self._with_tightest_last(order[:count]))
            return
        step = 0
        while count < self._domain_count:
            yield self._nodes.nodes_in_any(order[:count])
            step += 1
            count += 1 if step <= steps else count
        yield self._nodes.labeled_nodes()

    def min_domains(self) -> int:
        """Return the least number of domains that fit the gang; more than exist: all of them together do not fit it."""
        return self._count_needed(self._domain_order())

    def _capacity_by_demand(self) -> Iterator[tuple[IntArray, PodDemand]]:
        """Yield for each demand how many of its pods fit in each domain."""
        for offer, demand in zip(self._offers, self._demands, strict=True):
            yield offer.capacity[:-1], demand

    def _has_capacity(self) -> BoolArray:
        """Return the mask of domains that fit each demand by itself: necessary, not sufficient."""
        enough = np.ones(self._domain_count, dtype=bool)
        for fits, demand in self._capacity_by_demand():
            enough &= fits >= demand.count
        return enough

    def _has_resources(self) -> BoolArray:
        """Return the mask of domains with enough of each resource for the gang: necessary, not sufficient."""
        offers = np.ones(self._domain_count, dtype=bool)
        usable = self._node_resources.nodes.filter.usable
        for resource in sorted({name for demand in self._demands for name, _ in demand.shape.requests}):
            requested = sum(demand.shape.amount_of(resource) * demand.count for demand in self._demands)
            free = np.where(usable, np.maximum(self._node_resources.free.amounts_of(resource), 0), 0)
            offered = self._nodes.sum_by_domain(free if self._positions is None else free[self._positions])
            offers &= offered[:-1] >= requested
        return offers

    def _domain_order(self) -> IntArray:
        """Return the domains, those that take most of the gang first."""
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
        """Replace the last domain by the one that fits the rest with the least capacity left."""
        fits = self._offers[0].capacity[:-1]
        rest = self._demands[0].count - fits[chosen[:-1]].sum()
        others = np.setdiff1d(np.arange(self._domain_count), chosen[:-1])
        others = others[fits[others] >= rest]
        return np.append(chosen[:-1], others[np.argmin(fits[others])])

    def _domain_weights(self) -> IntArray:
        """Return how much of the gang each domain could take, in units (in pods where none are requested)."""
        sizes = [demand.shape.amount_of(self._node_resources.pool.unit_resource) for demand in self._demands]
        weights = np.zeros(self._domain_count, dtype=np.int64)
        for (fits, demand), size in zip(self._capacity_by_demand(), sizes, strict=True):
            weights += np.minimum(fits, demand.count) * (size if any(sizes) else 1)
        return weights

    def _free_units(self) -> IntArray:
        """Return the free units of each domain, or free pod places where the gang requests no units."""
        first = self._offers[0]
        has_units = any(demand.shape.amount_of(self._node_resources.pool.unit_resource) for demand in self._demands)
        return (first.units if has_units else first.capacity)[:-1]

    def _broken_nodes(self) -> IntArray:
        """Return the least number of whole nodes that the gang would break in each domain."""
        missing = np.zeros(self._domain_count, dtype=np.int64)
        for offer, demand in zip(self._offers, self._demands, strict=True):
            size = demand.shape.amount_of(self._node_resources.pool.unit_resource)
            missing += np.maximum(demand.count - offer.loose[:-1], 0) * size
        return -(-missing // max(self._node_resources.nodes.largest_units, 1))
