"""What it costs to make room on each node: the cheapest lots there, for each pod that they let in. All nodes at once.

Amounts are in thousandths, prices in thousandths of a GPU-second. The price of a lot that frees something on several
nodes is shared out over them by what it frees there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkgateway.arbiter.evictable import FloatArray
from vkgateway.arbiter.fitting import BoolArray, IntArray
from vkgateway.arbiter.views import PLENTY

_MANY = 4096
"""So many rows are sorted by price alone, to a precision of 4e-9; fewer also by what decides between equals."""

_PRICE_SHIFT = 24
_PRICE_BITS = 63 - _PRICE_SHIFT


@dataclass(frozen=True, slots=True)
class Rows:
    """What lots free on nodes: by row the lot, the node and the amounts (resources by rows)."""

    lot: IntArray
    node: IntArray
    freed: IntArray

    def only(self, which: BoolArray) -> Rows:
        """Some of the rows."""
        if which.all():
            return self
        return self.at(np.flatnonzero(which))

    def at(self, places: IntArray | slice) -> Rows:
        """The rows at these places."""
        return Rows(self.lot[places], self.node[places], self.freed[:, places])


@dataclass(frozen=True, slots=True)
class Ties:
    """What decides between equals, by lot: the smaller goes first."""

    standing: IntArray
    """Of tenant, priority and age."""
    rank: IntArray
    """Within a gang: high ranks go first, so this is below zero."""
    digest: IntArray


@dataclass(frozen=True, slots=True)
class Offers:
    """The best offer of each node, the cheapest for each pod first: rows `first` to `last` of `rows`."""

    rows: Rows
    node: IntArray
    first: IntArray
    last: IntArray
    gain: IntArray
    """How many pods more fit then."""
    ratio: FloatArray
    """Price for each of them."""
    following: FloatArray
    """The ratio of the node's next offer after this one, at the least."""


def slots(free: IntArray, ask: IntArray) -> IntArray:
    """How many pods that ask for so much fit in each column of free amounts (resources by nodes)."""
    found: IntArray = np.full(free.shape[1], PLENTY, dtype=np.int64)
    for resource in _asked(ask):
        np.minimum(found, free[resource] // ask[resource], out=found)
    return np.maximum(found, 0, out=found)


@dataclass(frozen=True, slots=True)
class Want:
    """What room is wanted: free amounts (resources by nodes), what a pod asks for, and how many do not fit yet."""

    free: IntArray
    ask: IntArray
    short: int


def usefulness(rows: Rows, want: Want) -> FloatArray:
    """What each row frees of what its node is short of, in pods: up to as many as are asked for."""
    node, free, ask = rows.node, want.free, want.ask
    if len(node) < free.shape[1]:
        # Few rows: only their nodes are looked at.
        nodes, node = np.unique(node, return_inverse=True)
        free = free[:, nodes]
    everything = free.copy()
    for resource in range(len(ask)):
        np.add.at(everything[resource], node, rows.freed[resource])
    target = np.minimum(slots(everything, ask), slots(free, ask) + want.short)
    useful = np.zeros(len(node))
    for resource in _asked(ask):
        short = np.maximum(target * ask[resource] - free[resource], 0)
        np.maximum(useful, np.minimum(rows.freed[resource], short[node]) / ask[resource], out=useful)
    return useful


def shares(price: IntArray, rows: Rows, useful: FloatArray, reach: FloatArray, short: int) -> IntArray:
    """The part of its lot's price that each row bears; `reach` is what each lot frees where it counts, in pods."""
    whole = np.maximum(np.minimum(reach[rows.lot], short), useful)
    found: IntArray = np.rint(price[rows.lot] * (useful / whole)).astype(np.int64)
    return found


def best_offers(rows: Rows, share: IntArray, useful: FloatArray, *, ties: Ties, want: Want) -> Offers:
    """The offers of all nodes on which the rows let in a pod more. Each row must be useful, and there must be one."""
    order = _sorted(rows, share / useful, ties)
    sums = _Sums(rows.at(order), share[order], want)
    last, gain, ratio, following = sums.runs()
    alone, alone_gain, alone_ratio = sums.singles()
    # One lot alone is better where those that are cheaper are too small to be of use.
    single = alone_ratio < ratio
    first = np.where(single, alone, sums.first)
    last = np.where(single, alone, last)
    gain = np.where(single, alone_gain, gain)
    following = np.where(single, alone_ratio, following)
    ratio = np.where(single, alone_ratio, ratio)
    rows = sums.rows
    node = rows.node[sums.first]
    standing = np.minimum.reduceat(ties.standing[rows.lot], sums.first)
    rank = np.minimum.reduceat(ties.rank[rows.lot], sums.first)
    turn = np.lexsort((node, rank, standing, ratio))
    turn = turn[np.isfinite(ratio[turn])]
    return Offers(rows, node[turn], first[turn], last[turn], gain[turn], ratio[turn], following[turn])


class _Sums:
    """Sorted rows, and what those of each node come to from its first row on."""

    def __init__(self, rows: Rows, share: IntArray, want: Want) -> None:
        node = rows.node
        self.rows, self._share, self._want = rows, share, want
        self.first = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
        self._group = np.repeat(np.arange(len(self.first)), np.diff(np.append(self.first, len(node))))
        self._place = np.arange(len(node))
        self._free = want.free[:, node]
        self._before = slots(want.free[:, node[self.first]], want.ask)[self._group]

    def runs(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """By node the last row of the run from the first that is cheapest for a pod, its gain, ratio, and what follows.

        Of equally cheap runs the longest: work is taken from few nodes rather than from many.
        """
        gain = self._gain(self._running(self.rows.freed))
        cost = self._running(self._share[None, :])[0]
        ratio = _ratio(cost, gain)
        best = np.minimum.reduceat(ratio, self.first)
        last = np.maximum.reduceat(np.where(ratio == best[self._group], self._place, -1), self.first)
        rest = _ratio(cost - cost[last][self._group], gain - gain[last][self._group])
        rest[self._place <= last[self._group]] = np.inf
        return last, gain[last], best, np.minimum.reduceat(rest, self.first)

    def singles(self) -> tuple[IntArray, IntArray, FloatArray]:
        """By node the row that alone is cheapest for a pod, its gain and ratio."""
        gain = self._gain(self.rows.freed)
        ratio = _ratio(self._share, gain)
        best = np.minimum.reduceat(ratio, self.first)
        where = np.where(ratio == best[self._group], self._place, len(self._place))
        found = np.minimum.reduceat(where, self.first)
        return found, gain[found], best

    def _gain(self, freed: IntArray) -> IntArray:
        gain: IntArray = np.minimum(slots(self._free + freed, self._want.ask) - self._before, self._want.short)
        return gain

    def _running(self, amounts: IntArray) -> IntArray:
        """Sums along each line that begin anew at each node; exact, for whole numbers wrap around and back."""
        total = np.cumsum(amounts, axis=1)
        before = total[:, self.first] - amounts[:, self.first]
        found: IntArray = total - before[:, self._group]
        return found


def _ratio(cost: IntArray, gain: IntArray) -> FloatArray:
    return np.where(gain > 0, cost / np.maximum(gain, 1), np.inf)


def _asked(ask: IntArray) -> list[int]:
    return [resource for resource, amount in enumerate(ask.tolist()) if amount > 0]


def _sorted(rows: Rows, density: FloatArray, ties: Ties) -> IntArray:
    """Rows by node, on each the cheapest for what it is worth first."""
    lot = rows.lot
    found: IntArray
    if len(density) < _MANY:
        found = np.lexsort((ties.digest[lot], ties.rank[lot], ties.standing[lot], density, rows.node))
    else:
        key = (rows.node << _PRICE_BITS) | (density.view(np.int64) >> _PRICE_SHIFT)
        found = np.argsort(key, kind="stable")
    return found
