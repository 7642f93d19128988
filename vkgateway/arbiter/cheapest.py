"""Which lots make room for a gang at the least price: nodes and victims chosen together, in each domain in question.

To find the cheapest set of all is the problem of the set cover, which nobody solves quickly. This takes the node whose
next pod costs least, over and over, and does so anew with prices shared out over the nodes found before: of a gang
that frees room on many nodes, only those count that the placement wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vkgateway.arbiter.evictable import FloatArray
from vkgateway.arbiter.fitting import BoolArray, IntArray
from vkgateway.arbiter.offers import Offers, Rows, Ties, Want, best_offers, shares, slots, usefulness

_DOMAINS = 8
"""So many of the domains that look cheapest are worked out."""

_ROUNDS = 2
"""So often prices are shared out anew over the nodes that were found with those before."""

_NARROW = 2048
"""With more rows than this, only those of the cheapest nodes are looked at after the first time."""

_WIDE = 64
"""Nodes that are looked at beyond twice those that would do."""


@dataclass(frozen=True, slots=True)
class Group:
    """So many pods of one shape: what each asks for (by resource), and on which nodes it may run."""

    ask: IntArray
    count: int
    allowed: BoolArray


@dataclass(frozen=True, slots=True)
class Ground:
    """What is given: by position, what is free (resources by nodes), and the domain that each node is in (-1: none)."""

    free: IntArray
    domain: IntArray
    groups: Sequence[Group]
    """The largest pods first."""

    def could(self, free: IntArray) -> IntArray:
        """The domains that have room for each group by itself."""
        may = np.ones(int(self.domain.max(initial=-1)) + 1, dtype=bool)
        for group in self.groups:
            inside = group.allowed & (self.domain >= 0)
            fit = slots(free[:, inside], group.ask)
            may &= np.bincount(self.domain[inside], weights=fit, minlength=len(may)) >= group.count
        return np.flatnonzero(may)

    def coarser(self) -> Iterator[Ground]:
        """The same, with twice as many pods at once each time: for pods that must stand together on few nodes."""
        most, size = max(group.count for group in self.groups), 1
        while size <= most:
            groups = [_bundled(group, min(size, group.count)) for group in self.groups]
            yield replace(self, groups=groups)
            size *= 2

    def wider(self, line: int, most: int) -> Iterator[Ground]:
        """The same, with twice as much of one resource for each pod each time, up to what a node has of it: for nodes
        on which it is not enough that so much is free."""
        size = 2
        while any(0 < group.ask[line] * size // 2 < most for group in self.groups):
            yield replace(self, groups=[_widened(group, line, size, most) for group in self.groups])
            size *= 2


def _widened(group: Group, line: int, size: int, most: int) -> Group:
    ask = group.ask.copy()
    ask[line] = max(ask[line], min(ask[line] * size, most))
    return replace(group, ask=ask)


def _bundled(group: Group, size: int) -> Group:
    return replace(group, ask=group.ask * size, count=-(-group.count // size))


@dataclass(frozen=True, slots=True)
class Market:
    """What may be called in: rows of lots, and by lot the price and what decides between equals."""

    rows: Rows
    """In the order of the lots' numbers."""
    price: IntArray
    ties: Ties
    companions: Mapping[int, tuple[int, ...]]
    """Lots that go when this one goes."""

    def of_lot(self, lot: int) -> Rows:
        """What one lot frees."""
        start, end = self.rows.lot.searchsorted((lot, lot + 1)).tolist()
        return self.rows.at(slice(start, end))

    def touching(self, nodes: BoolArray) -> Market:
        """Only the lots that free something on one of these nodes, with all that they free."""
        lots = np.zeros(len(self.price), dtype=bool)
        lots[self.rows.lot[nodes[self.rows.node]]] = True
        return replace(self, rows=self.rows.only(lots[self.rows.lot]))


def proposals(ground: Ground, market: Market) -> Iterator[IntArray]:
    """Sets of lots whose going makes room in one domain, by counting; in the domains that look cheapest first."""
    domains = ground.could(after(ground, market.rows))
    if len(domains) > _DOMAINS:
        domains = _promising(ground, market, domains)
    found = 0
    for domain in domains.tolist():
        sets = list(_in_domain(ground, market, ground.domain == domain))
        yield from sets
        found += bool(sets)
        if found == _DOMAINS:
            break


def after(ground: Ground, rows: Rows) -> IntArray:
    """What would be free if all lots went."""
    free = ground.free.copy()
    for resource in range(len(free)):
        np.add.at(free[resource], rows.node, rows.freed[resource])
    return free


def _promising(ground: Ground, market: Market, domains: IntArray) -> IntArray:
    """The domains in the order of what the largest pods would cost there, each node priced by itself."""
    group = ground.groups[0]
    inside = group.allowed & np.isin(ground.domain, domains)
    rows = market.rows.only(inside[market.rows.node])
    fit = np.where(inside, slots(ground.free, group.ask), 0)
    missing = group.count - np.bincount(ground.domain[inside], weights=fit[inside], minlength=domains.max() + 1)
    price = np.zeros(len(missing))
    want = Want(ground.free, group.ask, group.count)
    useful = usefulness(rows, want)
    rows, useful = rows.only(useful > 0), useful[useful > 0]
    if len(rows.lot):
        share = shares(market.price, rows, useful, _reach(rows, useful, len(market.price)), group.count)
        offers = best_offers(rows, share, useful, ties=market.ties, want=want)
        order = np.argsort(ground.domain[offers.node], kind="stable")
        domain, gain = ground.domain[offers.node][order], offers.gain[order]
        first = np.searchsorted(domain, domain)
        before = np.cumsum(gain) - gain
        taken = np.clip(missing[domain] - (before - before[first]), 0, gain)
        price += np.bincount(domain, weights=taken * offers.ratio[order], minlength=len(price))
        missing -= np.bincount(domain, weights=taken, minlength=len(price))
    # What one offer a node does not yield costs more than what it does.
    order = np.lexsort((domains, price[domains], np.maximum(missing[domains], 0)))
    return domains[order]


def _in_domain(ground: Ground, market: Market, inside: BoolArray) -> Iterator[IntArray]:
    """Sets found with prices shared out in different ways; one set where all lots are on one node each."""
    hunt = _Hunt(ground, market, inside)
    found = hunt.run(None)
    if found is None:
        return
    yield found
    if hunt.single:
        return
    near = market.touching(hunt.near)
    for _ in range(_ROUNDS):
        wanted = np.zeros(len(inside), dtype=bool)
        wanted[market.rows.node[np.isin(market.rows.lot, found)]] = True
        again = _Hunt(ground, near, inside).run(wanted & inside)
        if again is None or np.array_equal(again, found):
            break
        found = again
        yield found
    alone = _Hunt(ground, market, inside).run(np.zeros(len(inside), dtype=bool))
    if alone is not None:
        yield alone


def _reach(rows: Rows, useful: FloatArray, lots: int) -> FloatArray:
    """What each lot frees in all its rows, in pods."""
    return np.bincount(rows.lot, weights=useful, minlength=lots).astype(np.float64)


class _Hunt:
    """One search within one domain."""

    def __init__(self, ground: Ground, market: Market, inside: BoolArray) -> None:
        self._ground, self._market, self._inside = ground, market, inside
        self._free = ground.free.copy()
        self._chosen = np.zeros(len(market.price), dtype=bool)
        self.single = True
        """Whether none of the lots looked at closely frees something on more than one node."""
        self.near = np.zeros(len(inside), dtype=bool)
        """The nodes that were looked at closely."""

    def run(self, wanted: BoolArray | None) -> IntArray | None:
        """The lots, in the order of their numbers; `wanted`: on which nodes what a lot frees counts (None: on all)."""
        for group in self._ground.groups:
            if not self._make_room(group, wanted):
                return None
            self._occupy(group)
        return np.flatnonzero(self._chosen)

    def _make_room(self, group: Group, wanted: BoolArray | None) -> bool:
        where = self._inside & group.allowed
        fit = np.where(where, slots(self._free, group.ask), 0)
        short = group.count - int(fit.sum())
        if short <= 0:
            return True
        everything = self._left(self._market.rows.only(where[self._market.rows.node]))
        useful = usefulness(everything, Want(self._free, group.ask, short))
        reach = _reach(everything, useful if wanted is None else useful * wanted[everything.node], len(self._chosen))
        rows, narrowed = everything, False
        while short > 0:
            offers = self._offers(rows, Want(self._free, group.ask, short), reach)
            if offers is None:
                if not narrowed:
                    return False
                rows, narrowed = self._left(everything), False
                continue
            if not narrowed:
                rows, narrowed = self._narrow(rows, offers, short), True
            touched = self._take(offers, short)
            before = int(fit[touched].sum())
            fit[touched] = np.where(where[touched], slots(self._free[:, touched], group.ask), 0)
            short -= int(fit[touched].sum()) - before
            rows = self._left(rows)
        return True

    def _offers(self, rows: Rows, want: Want, reach: FloatArray) -> Offers | None:
        useful = usefulness(rows, want)
        rows, useful = rows.only(useful > 0), useful[useful > 0]
        if not len(rows.lot):
            return None
        share = shares(self._market.price, rows, useful, reach, want.short)
        offers = best_offers(rows, share, useful, ties=self._market.ties, want=want)
        return offers if len(offers.node) else None

    def _narrow(self, rows: Rows, offers: Offers, short: int) -> Rows:
        """Only rows of nodes that can come into question: there are enough cheaper ones before all others."""
        near = np.zeros(len(self._inside), dtype=bool)
        if len(rows.lot) > _NARROW:
            enough = int(np.searchsorted(np.cumsum(offers.gain), 2 * short)) + _WIDE
            near[offers.node[:enough]] = True
            rows = rows.only(near[rows.node])
        else:
            near[rows.node] = True
        self.near |= near
        of_lot = np.bincount(self._market.rows.lot, minlength=len(self._chosen))
        self.single &= not bool((of_lot[rows.lot] > 1).any())
        return rows

    def _take(self, offers: Offers, short: int) -> IntArray:
        """Take what stays the best offer whatever was taken before it, one at least; returns the nodes touched."""
        taken: list[int] = []
        limit = np.inf
        for index in range(len(offers.node)):
            if index and (offers.ratio[index] > limit or offers.gain[index] > short):
                break
            limit = min(limit, float(offers.following[index]))
            short -= int(offers.gain[index])
            chosen = offers.rows.lot[offers.first[index] : offers.last[index] + 1].tolist()
            taken += chosen
            if short <= 0 or any(self._concerns_others(lot) for lot in chosen):
                break
        return self._give(taken)

    def _concerns_others(self, lot: int) -> bool:
        return lot in self._market.companions or len(self._market.of_lot(lot).lot) > 1

    def _give(self, lots: Sequence[int]) -> IntArray:
        """Count lots as gone, with those that go with them; returns the nodes touched."""
        gone = dict.fromkeys(each for lot in lots for each in (lot, *self._market.companions.get(lot, ())))
        touched = []
        for lot in gone:
            if not self._chosen[lot]:
                self._chosen[lot] = True
                rows = self._market.of_lot(lot)
                self._free[:, rows.node] += rows.freed
                touched.append(rows.node)
        return np.unique(np.concatenate(touched))

    def _left(self, rows: Rows) -> Rows:
        return rows.only(~self._chosen[rows.lot])

    def _occupy(self, group: Group) -> None:
        """Put the group's pods where the fewest more would fit, for the groups after it."""
        fit = np.where(self._inside & group.allowed, slots(self._free, group.ask), 0)
        order = np.argsort(np.where(fit > 0, fit, np.iinfo(np.int64).max), kind="stable")
        sums = np.cumsum(fit[order])
        counts = np.clip(group.count - (sums - fit[order]), 0, fit[order])
        self._free[:, order] -= counts * group.ask[:, None]
