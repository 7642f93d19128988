"""Cheapest victims for a gang: nodes and victims chosen together, in each candidate domain.

Finding the cheapest set is a set cover problem, which has no known fast solution. This search repeatedly takes the node
whose next pod costs least. Then it repeats with costs shared over the nodes found before: of a gang that frees capacity
on many nodes, only the nodes count that the placement uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import BoolArray, FloatArray, IntArray
from vkgateway.scheduler.core.preemption.node_costs import (
    FreedRows,
    Shortage,
    TieBreakers,
    VictimOptions,
    best_victim_options,
    cost_shares,
    count_fitting_pods,
    useful_amounts,
)

_MAX_DOMAINS = 8
"""Number of domains that are searched, the cheapest estimates first."""

_PRICE_ROUNDS = 2
"""Number of searches with costs shared over the nodes of the previous search."""

_MANY_ROWS = 2048
"""Number of rows above which only rows of the cheapest nodes are used after the first round."""

_EXTRA_NODES = 64
"""Number of nodes considered beyond twice those that suffice."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Number of pods of one shape, with the request of each by resource, and the allowed nodes."""

    request: IntArray
    count: int
    allowed_nodes: BoolArray


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Free amounts (resources by nodes), the domain of each node (-1: none), and the requested pods."""

    free_amounts: IntArray
    domain: IntArray
    groups: Sequence[PodGroup]
    """The largest pods first."""

    def feasible_domains(self, free: IntArray) -> IntArray:
        """Return the domains that fit each group by itself."""
        feasible = np.ones(int(self.domain.max(initial=-1)) + 1, dtype=bool)
        for group in self.groups:
            allowed = group.allowed_nodes & (self.domain >= 0)
            fit = count_fitting_pods(free[:, allowed], group.request)
            feasible &= np.bincount(self.domain[allowed], weights=fit, minlength=len(feasible)) >= group.count
        return np.flatnonzero(feasible)

    def bundled_spaces(self) -> Iterator[SearchSpace]:
        """Yield spaces that count 1, 2, 4, ... pods as one, for pods that must run together on few nodes."""
        most, size = max(group.count for group in self.groups), 1
        while size <= most:
            groups = [_bundle_group(group, min(size, group.count)) for group in self.groups]
            yield replace(self, groups=groups)
            size *= 2

    def widened_spaces(self, resource: int, most: int) -> Iterator[SearchSpace]:
        """Yield spaces that double a pod's request of one resource, up to a node's amount.

        They serve nodes on which a free amount alone does not suffice.
        """
        size = 2
        while any(0 < group.request[resource] * size // 2 < most for group in self.groups):
            yield replace(self, groups=[_widen_group(group, resource, size, most) for group in self.groups])
            size *= 2


def _widen_group(group: PodGroup, resource: int, size: int, most: int) -> PodGroup:
    request = group.request.copy()
    request[resource] = max(request[resource], min(request[resource] * size, most))
    return replace(group, request=request)


def _bundle_group(group: PodGroup, size: int) -> PodGroup:
    return replace(group, request=group.request * size, count=-(-group.count // size))


@dataclass(frozen=True, slots=True)
class PricedCandidates:
    """Candidates of a search: the rows that they free, their costs and tie breakers."""

    rows: FreedRows
    """Sorted by candidate."""
    cost: IntArray
    tie_breakers: TieBreakers
    dependents: Mapping[int, tuple[int, ...]]
    """Candidates that are evicted with this one."""

    def rows_of(self, candidate: int) -> FreedRows:
        """Return what one candidate frees."""
        start, end = self.rows.candidate.searchsorted((candidate, candidate + 1)).tolist()
        return self.rows.select_rows(slice(start, end))

    def limited_to_nodes(self, nodes: BoolArray) -> PricedCandidates:
        """Return only the candidates that free resources on one of these nodes, with all their rows."""
        candidate_numbers = np.zeros(len(self.cost), dtype=bool)
        candidate_numbers[self.rows.candidate[nodes[self.rows.node]]] = True
        return replace(self, rows=self.rows.filter_rows(candidate_numbers[self.rows.candidate]))


def propose_victim_sets(space: SearchSpace, candidates: PricedCandidates) -> Iterator[IntArray]:
    """Yield victim sets that free enough in one domain by counting, from the cheapest-looking domains."""
    domains = space.feasible_domains(free_after_eviction(space, candidates.rows))
    if len(domains) > _MAX_DOMAINS:
        domains = _sort_domains(space, candidates, domains)
    found = 0
    for domain in domains.tolist():
        sets = list(_find_sets_in_domain(space, candidates, space.domain == domain))
        yield from sets
        found += bool(sets)
        if found == _MAX_DOMAINS:
            break


def free_after_eviction(space: SearchSpace, rows: FreedRows) -> IntArray:
    """Return the free amounts if all candidates are evicted."""
    free = space.free_amounts.copy()
    for resource in range(len(free)):
        np.add.at(free[resource], rows.node, rows.freed[resource])
    return free


def _sort_domains(space: SearchSpace, candidates: PricedCandidates, domains: IntArray) -> IntArray:
    """Sort the domains by the cost of the largest pods there, with each node priced separately."""
    group = space.groups[0]
    allowed = group.allowed_nodes & np.isin(space.domain, domains)
    rows = candidates.rows.filter_rows(allowed[candidates.rows.node])
    fit = np.where(allowed, count_fitting_pods(space.free_amounts, group.request), 0)
    missing = group.count - np.bincount(space.domain[allowed], weights=fit[allowed], minlength=domains.max() + 1)
    price = np.zeros(len(missing))
    shortage = Shortage(space.free_amounts, group.request, group.count)
    useful = useful_amounts(rows, shortage)
    rows, useful = rows.filter_rows(useful > 0), useful[useful > 0]
    if len(rows.candidate):
        share = cost_shares(
            candidates.cost, rows, useful, _total_usefulness(rows, useful, len(candidates.cost)), group.count
        )
        options = best_victim_options(rows, share, useful, tie_breakers=candidates.tie_breakers, shortage=shortage)
        order = np.argsort(space.domain[options.node], kind="stable")
        domain, gain = space.domain[options.node][order], options.gained_pods[order]
        first = np.searchsorted(domain, domain)
        before = np.cumsum(gain) - gain
        taken = np.clip(missing[domain] - (before - before[first]), 0, gain)
        price += np.bincount(domain, weights=taken * options.cost_per_pod[order], minlength=len(price))
        missing -= np.bincount(domain, weights=taken, minlength=len(price))
    # Pods beyond one option per node cost more than those within.
    order = np.lexsort((domains, price[domains], np.maximum(missing[domains], 0)))
    return domains[order]


def _find_sets_in_domain(
    space: SearchSpace, candidates: PricedCandidates, domain_nodes: BoolArray
) -> Iterator[IntArray]:
    """Yield sets found with different cost shares; one set if every candidate is on a single node."""
    search = _DomainSearch(space, candidates, domain_nodes)
    found = search.find_victims(None)
    if found is None:
        return
    yield found
    if search.is_single_node:
        return
    near_nodes = candidates.limited_to_nodes(search.near_nodes)
    for _ in range(_PRICE_ROUNDS):
        wanted = np.zeros(len(domain_nodes), dtype=bool)
        wanted[candidates.rows.node[np.isin(candidates.rows.candidate, found)]] = True
        next_found = _DomainSearch(space, near_nodes, domain_nodes).find_victims(wanted & domain_nodes)
        if next_found is None or np.array_equal(next_found, found):
            break
        found = next_found
        yield found
    unshared = _DomainSearch(space, candidates, domain_nodes).find_victims(np.zeros(len(domain_nodes), dtype=bool))
    if unshared is not None:
        yield unshared


def _total_usefulness(rows: FreedRows, useful: FloatArray, candidate_numbers: int) -> FloatArray:
    """Return what each candidate frees in all its rows, in pods."""
    return np.bincount(rows.candidate, weights=useful, minlength=candidate_numbers).astype(np.float64)


class _DomainSearch:
    """Search within one domain."""

    def __init__(self, space: SearchSpace, candidates: PricedCandidates, domain_nodes: BoolArray) -> None:
        self._space, self._candidates, self._domain_nodes = space, candidates, domain_nodes
        self._free = space.free_amounts.copy()
        self._victims = np.zeros(len(candidates.cost), dtype=bool)
        self.is_single_node = True
        """Whether each closely examined candidate frees resources on one node only."""
        self.near_nodes = np.zeros(len(domain_nodes), dtype=bool)
        """Nodes that were examined closely."""

    def find_victims(self, wanted: BoolArray | None) -> IntArray | None:
        """Return the victims by number; `wanted`: nodes on which freed resources count (None: all)."""
        for group in self._space.groups:
            if not self._evict_for_group(group, wanted):
                return None
            self._place_group(group)
        return np.flatnonzero(self._victims)

    def _evict_for_group(self, group: PodGroup, wanted: BoolArray | None) -> bool:
        nodes = self._domain_nodes & group.allowed_nodes
        fit = np.where(nodes, count_fitting_pods(self._free, group.request), 0)
        missing_pods = group.count - int(fit.sum())
        if missing_pods <= 0:
            return True
        all_rows = self._remaining_rows(self._candidates.rows.filter_rows(nodes[self._candidates.rows.node]))
        useful = useful_amounts(all_rows, Shortage(self._free, group.request, missing_pods))
        reach = _total_usefulness(
            all_rows, useful if wanted is None else useful * wanted[all_rows.node], len(self._victims)
        )
        rows, narrowed = all_rows, False
        while missing_pods > 0:
            options = self._find_offers(rows, Shortage(self._free, group.request, missing_pods), reach)
            if options is None:
                if not narrowed:
                    return False
                rows, narrowed = self._remaining_rows(all_rows), False
                continue
            if not narrowed:
                rows, narrowed = self._narrow_rows(rows, options, missing_pods), True
            touched = self._take_offers(options, missing_pods)
            before = int(fit[touched].sum())
            fit[touched] = np.where(nodes[touched], count_fitting_pods(self._free[:, touched], group.request), 0)
            missing_pods -= int(fit[touched].sum()) - before
            rows = self._remaining_rows(rows)
        return True

    def _find_offers(self, rows: FreedRows, shortage: Shortage, reach: FloatArray) -> VictimOptions | None:
        useful = useful_amounts(rows, shortage)
        rows, useful = rows.filter_rows(useful > 0), useful[useful > 0]
        if not len(rows.candidate):
            return None
        share = cost_shares(self._candidates.cost, rows, useful, reach, shortage.missing_pods)
        options = best_victim_options(
            rows, share, useful, tie_breakers=self._candidates.tie_breakers, shortage=shortage
        )
        return options if len(options.node) else None

    def _narrow_rows(self, rows: FreedRows, options: VictimOptions, missing_pods: int) -> FreedRows:
        """Keep only rows of nodes that can be chosen: enough cheaper nodes come before the others."""
        near_nodes = np.zeros(len(self._domain_nodes), dtype=bool)
        if len(rows.candidate) > _MANY_ROWS:
            enough = int(np.searchsorted(np.cumsum(options.gained_pods), 2 * missing_pods)) + _EXTRA_NODES
            near_nodes[options.node[:enough]] = True
            rows = rows.filter_rows(near_nodes[rows.node])
        else:
            near_nodes[rows.node] = True
        self.near_nodes |= near_nodes
        rows_by_candidate = np.bincount(self._candidates.rows.candidate, minlength=len(self._victims))
        self.is_single_node &= not bool((rows_by_candidate[rows.candidate] > 1).any())
        return rows

    def _take_offers(self, options: VictimOptions, missing_pods: int) -> IntArray:
        """Take the options that stay the best whatever was taken before, at least one; return the touched nodes."""
        taken: list[int] = []
        limit = np.inf
        for index in range(len(options.node)):
            if index and (options.cost_per_pod[index] > limit or options.gained_pods[index] > missing_pods):
                break
            limit = min(limit, float(options.next_cost_per_pod[index]))
            missing_pods -= int(options.gained_pods[index])
            chosen = options.rows.candidate[options.first[index] : options.last[index] + 1].tolist()
            taken += chosen
            if missing_pods <= 0 or any(self._affects_others(candidate) for candidate in chosen):
                break
        return self._count_evicted(taken)

    def _affects_others(self, candidate: int) -> bool:
        return candidate in self._candidates.dependents or len(self._candidates.rows_of(candidate).candidate) > 1

    def _count_evicted(self, candidate_numbers: Sequence[int]) -> IntArray:
        """Count candidates and their dependents as evicted; return the touched nodes."""
        evicted = dict.fromkeys(
            each
            for candidate in candidate_numbers
            for each in (candidate, *self._candidates.dependents.get(candidate, ()))
        )
        touched = []
        for candidate in evicted:
            if not self._victims[candidate]:
                self._victims[candidate] = True
                rows = self._candidates.rows_of(candidate)
                self._free[:, rows.node] += rows.freed
                touched.append(rows.node)
        return np.unique(np.concatenate(touched))

    def _remaining_rows(self, rows: FreedRows) -> FreedRows:
        return rows.filter_rows(~self._victims[rows.candidate])

    def _place_group(self, group: PodGroup) -> None:
        """Place the group's pods where the fewest fit, for the groups after it."""
        fit = np.where(self._domain_nodes & group.allowed_nodes, count_fitting_pods(self._free, group.request), 0)
        order = np.argsort(np.where(fit > 0, fit, np.iinfo(np.int64).max), kind="stable")
        sums = np.cumsum(fit[order])
        counts = np.clip(group.count - (sums - fit[order]), 0, fit[order])
        self._free[:, order] -= counts * group.request[:, None]
