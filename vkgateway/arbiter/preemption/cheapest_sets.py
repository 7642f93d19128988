"""Which lots make room for a gang at the least price: nodes and victims chosen together, in each domain in question.

To find the cheapest set of all is the problem of the set cover, which nobody solves quickly. This takes the node whose
next pod costs least, over and over, and does so anew with prices shared out over the nodes found before: of a gang
that frees room on many nodes, only those count that the placement wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vkgateway.arbiter.capacity.node_fit import BoolArray, IntArray
from vkgateway.arbiter.preemption.candidates import FloatArray
from vkgateway.arbiter.preemption.node_costs import (
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
"""So many of the domains that look cheapest are worked out."""

_PRICE_ROUNDS = 2
"""So often prices are shared out anew over the nodes that were found with those before."""

_MANY_ROWS = 2048
"""With more rows than this, only those of the cheapest nodes are looked at after the first time."""

_EXTRA_NODES = 64
"""Nodes that are looked at beyond twice those that would do."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """So many pods of one shape: what each asks for (by resource), and on which nodes it may run."""

    request: IntArray
    count: int
    allowed_nodes: BoolArray


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What is given: by position, what is free (resources by nodes), and the domain that each node is in (-1: none)."""

    free_amounts: IntArray
    domain: IntArray
    groups: Sequence[PodGroup]
    """The largest pods first."""

    def feasible_domains(self, free: IntArray) -> IntArray:
        """The domains that have room for each group by itself."""
        may = np.ones(int(self.domain.max(initial=-1)) + 1, dtype=bool)
        for group in self.groups:
            inside = group.allowed_nodes & (self.domain >= 0)
            fit = count_fitting_pods(free[:, inside], group.request)
            may &= np.bincount(self.domain[inside], weights=fit, minlength=len(may)) >= group.count
        return np.flatnonzero(may)

    def bundled_spaces(self) -> Iterator[SearchSpace]:
        """The same, with twice as many pods at once each time: for pods that must stand together on few nodes."""
        most, size = max(group.count for group in self.groups), 1
        while size <= most:
            groups = [_bundle_group(group, min(size, group.count)) for group in self.groups]
            yield replace(self, groups=groups)
            size *= 2

    def widened_spaces(self, line: int, most: int) -> Iterator[SearchSpace]:
        """The same, with twice as much of one resource for each pod each time, up to what a node has of it: for nodes
        on which it is not enough that so much is free."""
        size = 2
        while any(0 < group.request[line] * size // 2 < most for group in self.groups):
            yield replace(self, groups=[_widen_group(group, line, size, most) for group in self.groups])
            size *= 2


def _widen_group(group: PodGroup, line: int, size: int, most: int) -> PodGroup:
    ask = group.request.copy()
    ask[line] = max(ask[line], min(ask[line] * size, most))
    return replace(group, request=ask)


def _bundle_group(group: PodGroup, size: int) -> PodGroup:
    return replace(group, request=group.request * size, count=-(-group.count // size))


@dataclass(frozen=True, slots=True)
class PricedCandidates:
    """What may be called in: rows of lots, and by lot the price and what decides between equals."""

    rows: FreedRows
    """In the order of the lots' numbers."""
    cost: IntArray
    tie_breakers: TieBreakers
    dependents: Mapping[int, tuple[int, ...]]
    """Lots that go when this one goes."""

    def rows_of(self, lot: int) -> FreedRows:
        """What one lot frees."""
        start, end = self.rows.candidate.searchsorted((lot, lot + 1)).tolist()
        return self.rows.select_rows(slice(start, end))

    def limited_to_nodes(self, nodes: BoolArray) -> PricedCandidates:
        """Only the lots that free something on one of these nodes, with all that they free."""
        lots = np.zeros(len(self.cost), dtype=bool)
        lots[self.rows.candidate[nodes[self.rows.node]]] = True
        return replace(self, rows=self.rows.filter_rows(lots[self.rows.candidate]))


def propose_victim_sets(ground: SearchSpace, market: PricedCandidates) -> Iterator[IntArray]:
    """Sets of lots whose going makes room in one domain, by counting; in the domains that look cheapest first."""
    domains = ground.feasible_domains(free_after_eviction(ground, market.rows))
    if len(domains) > _MAX_DOMAINS:
        domains = _sort_domains(ground, market, domains)
    found = 0
    for domain in domains.tolist():
        sets = list(_find_sets_in_domain(ground, market, ground.domain == domain))
        yield from sets
        found += bool(sets)
        if found == _MAX_DOMAINS:
            break


def free_after_eviction(ground: SearchSpace, rows: FreedRows) -> IntArray:
    """What would be free if all lots went."""
    free = ground.free_amounts.copy()
    for resource in range(len(free)):
        np.add.at(free[resource], rows.node, rows.freed[resource])
    return free


def _sort_domains(ground: SearchSpace, market: PricedCandidates, domains: IntArray) -> IntArray:
    """The domains in the order of what the largest pods would cost there, each node priced by itself."""
    group = ground.groups[0]
    inside = group.allowed_nodes & np.isin(ground.domain, domains)
    rows = market.rows.filter_rows(inside[market.rows.node])
    fit = np.where(inside, count_fitting_pods(ground.free_amounts, group.request), 0)
    missing = group.count - np.bincount(ground.domain[inside], weights=fit[inside], minlength=domains.max() + 1)
    price = np.zeros(len(missing))
    want = Shortage(ground.free_amounts, group.request, group.count)
    useful = useful_amounts(rows, want)
    rows, useful = rows.filter_rows(useful > 0), useful[useful > 0]
    if len(rows.candidate):
        share = cost_shares(market.cost, rows, useful, _total_usefulness(rows, useful, len(market.cost)), group.count)
        offers = best_victim_options(rows, share, useful, ties=market.tie_breakers, want=want)
        order = np.argsort(ground.domain[offers.node], kind="stable")
        domain, gain = ground.domain[offers.node][order], offers.gained_pods[order]
        first = np.searchsorted(domain, domain)
        before = np.cumsum(gain) - gain
        taken = np.clip(missing[domain] - (before - before[first]), 0, gain)
        price += np.bincount(domain, weights=taken * offers.cost_per_pod[order], minlength=len(price))
        missing -= np.bincount(domain, weights=taken, minlength=len(price))
    # What one offer a node does not yield costs more than what it does.
    order = np.lexsort((domains, price[domains], np.maximum(missing[domains], 0)))
    return domains[order]


def _find_sets_in_domain(ground: SearchSpace, market: PricedCandidates, inside: BoolArray) -> Iterator[IntArray]:
    """Sets found with prices shared out in different ways; one set where all lots are on one node each."""
    hunt = _DomainSearch(ground, market, inside)
    found = hunt.find_victims(None)
    if found is None:
        return
    yield found
    if hunt.is_single_node:
        return
    near = market.limited_to_nodes(hunt.near_nodes)
    for _ in range(_PRICE_ROUNDS):
        wanted = np.zeros(len(inside), dtype=bool)
        wanted[market.rows.node[np.isin(market.rows.candidate, found)]] = True
        again = _DomainSearch(ground, near, inside).find_victims(wanted & inside)
        if again is None or np.array_equal(again, found):
            break
        found = again
        yield found
    alone = _DomainSearch(ground, market, inside).find_victims(np.zeros(len(inside), dtype=bool))
    if alone is not None:
        yield alone


def _total_usefulness(rows: FreedRows, useful: FloatArray, lots: int) -> FloatArray:
    """What each lot frees in all its rows, in pods."""
    return np.bincount(rows.candidate, weights=useful, minlength=lots).astype(np.float64)


class _DomainSearch:
    """One search within one domain."""

    def __init__(self, ground: SearchSpace, market: PricedCandidates, inside: BoolArray) -> None:
        self._space, self._candidates, self._domain_nodes = ground, market, inside
        self._free = ground.free_amounts.copy()
        self._victims = np.zeros(len(market.cost), dtype=bool)
        self.is_single_node = True
        """Whether none of the lots looked at closely frees something on more than one node."""
        self.near_nodes = np.zeros(len(inside), dtype=bool)
        """The nodes that were looked at closely."""

    def find_victims(self, wanted: BoolArray | None) -> IntArray | None:
        """The lots, in the order of their numbers; `wanted`: on which nodes what a lot frees counts (None: on all)."""
        for group in self._space.groups:
            if not self._evict_for_group(group, wanted):
                return None
            self._place_group(group)
        return np.flatnonzero(self._victims)

    def _evict_for_group(self, group: PodGroup, wanted: BoolArray | None) -> bool:
        where = self._domain_nodes & group.allowed_nodes
        fit = np.where(where, count_fitting_pods(self._free, group.request), 0)
        short = group.count - int(fit.sum())
        if short <= 0:
            return True
        everything = self._remaining_rows(self._candidates.rows.filter_rows(where[self._candidates.rows.node]))
        useful = useful_amounts(everything, Shortage(self._free, group.request, short))
        reach = _total_usefulness(
            everything, useful if wanted is None else useful * wanted[everything.node], len(self._victims)
        )
        rows, narrowed = everything, False
        while short > 0:
            offers = self._find_offers(rows, Shortage(self._free, group.request, short), reach)
            if offers is None:
                if not narrowed:
                    return False
                rows, narrowed = self._remaining_rows(everything), False
                continue
            if not narrowed:
                rows, narrowed = self._narrow_rows(rows, offers, short), True
            touched = self._take_offers(offers, short)
            before = int(fit[touched].sum())
            fit[touched] = np.where(where[touched], count_fitting_pods(self._free[:, touched], group.request), 0)
            short -= int(fit[touched].sum()) - before
            rows = self._remaining_rows(rows)
        return True

    def _find_offers(self, rows: FreedRows, want: Shortage, reach: FloatArray) -> VictimOptions | None:
        useful = useful_amounts(rows, want)
        rows, useful = rows.filter_rows(useful > 0), useful[useful > 0]
        if not len(rows.candidate):
            return None
        share = cost_shares(self._candidates.cost, rows, useful, reach, want.missing_pods)
        offers = best_victim_options(rows, share, useful, ties=self._candidates.tie_breakers, want=want)
        return offers if len(offers.node) else None

    def _narrow_rows(self, rows: FreedRows, offers: VictimOptions, short: int) -> FreedRows:
        """Only rows of nodes that can come into question: there are enough cheaper ones before all others."""
        near = np.zeros(len(self._domain_nodes), dtype=bool)
        if len(rows.candidate) > _MANY_ROWS:
            enough = int(np.searchsorted(np.cumsum(offers.gained_pods), 2 * short)) + _EXTRA_NODES
            near[offers.node[:enough]] = True
            rows = rows.filter_rows(near[rows.node])
        else:
            near[rows.node] = True
        self.near_nodes |= near
        of_lot = np.bincount(self._candidates.rows.candidate, minlength=len(self._victims))
        self.is_single_node &= not bool((of_lot[rows.candidate] > 1).any())
        return rows

    def _take_offers(self, offers: VictimOptions, short: int) -> IntArray:
        """Take what stays the best offer whatever was taken before it, one at least; returns the nodes touched."""
        taken: list[int] = []
        limit = np.inf
        for index in range(len(offers.node)):
            if index and (offers.cost_per_pod[index] > limit or offers.gained_pods[index] > short):
                break
            limit = min(limit, float(offers.next_cost_per_pod[index]))
            short -= int(offers.gained_pods[index])
            chosen = offers.rows.candidate[offers.first[index] : offers.last[index] + 1].tolist()
            taken += chosen
            if short <= 0 or any(self._affects_others(lot) for lot in chosen):
                break
        return self._count_evicted(taken)

    def _affects_others(self, lot: int) -> bool:
        return lot in self._candidates.dependents or len(self._candidates.rows_of(lot).candidate) > 1

    def _count_evicted(self, lots: Sequence[int]) -> IntArray:
        """Count lots as gone, with those that go with them; returns the nodes touched."""
        gone = dict.fromkeys(each for lot in lots for each in (lot, *self._candidates.dependents.get(lot, ())))
        touched = []
        for lot in gone:
            if not self._victims[lot]:
                self._victims[lot] = True
                rows = self._candidates.rows_of(lot)
                self._free[:, rows.node] += rows.freed
                touched.append(rows.node)
        return np.unique(np.concatenate(touched))

    def _remaining_rows(self, rows: FreedRows) -> FreedRows:
        return rows.filter_rows(~self._victims[rows.candidate])

    def _place_group(self, group: PodGroup) -> None:
        """Put the group's pods where the fewest more would fit, for the groups after it."""
        fit = np.where(self._domain_nodes & group.allowed_nodes, count_fitting_pods(self._free, group.request), 0)
        order = np.argsort(np.where(fit > 0, fit, np.iinfo(np.int64).max), kind="stable")
        sums = np.cumsum(fit[order])
        counts = np.clip(group.count - (sums - fit[order]), 0, fit[order])
        self._free[:, order] -= counts * group.request[:, None]
