"""What it costs to make room on each node: the cheapest lots there, for each pod that they let in. All nodes at once.

Amounts are in thousandths, prices in thousandths of a GPU-second. The price of a lot that frees something on several
nodes is shared out over them by what it frees there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkgateway.arbiter.capacity.node_fit import BoolArray, IntArray
from vkgateway.arbiter.capacity.shape_views import PLENTY
from vkgateway.arbiter.preemption.candidates import FloatArray

_MAX_EXACT_ROWS = 4096
"""So many rows are sorted by price alone, to a precision of 4e-9; fewer also by what decides between equals."""

_PRICE_SHIFT = 24
_PRICE_BITS = 63 - _PRICE_SHIFT


@dataclass(frozen=True, slots=True)
class FreedRows:
    """What lots free on nodes: by row the lot, the node and the amounts (resources by rows)."""

    candidate: IntArray
    node: IntArray
    freed: IntArray

    def filter_rows(self, which: BoolArray) -> FreedRows:
        """Some of the rows."""
        if which.all():
            return self
        return self.select_rows(np.flatnonzero(which))

    def select_rows(self, places: IntArray | slice) -> FreedRows:
        """The rows at these places."""
        return FreedRows(self.candidate[places], self.node[places], self.freed[:, places])


@dataclass(frozen=True, slots=True)
class TieBreakers:
    """What decides between equals, by lot: the smaller goes first."""

    gang_order: IntArray
    """Of tenant, priority and age."""
    rank: IntArray
    """Within a gang: high ranks go first, so this is below zero."""
    digest: IntArray


@dataclass(frozen=True, slots=True)
class VictimOptions:
    """The best offer of each node, the cheapest for each pod first: rows `first` to `last` of `rows`."""

    rows: FreedRows
    node: IntArray
    first: IntArray
    last: IntArray
    gained_pods: IntArray
    """How many pods more fit then."""
    cost_per_pod: FloatArray
    """Price for each of them."""
    next_cost_per_pod: FloatArray
    """The ratio of the node's next offer after this one, at the least."""


def count_fitting_pods(free: IntArray, ask: IntArray) -> IntArray:
    """How many pods that ask for so much fit in each column of free amounts (resources by nodes)."""
    found: IntArray = np.full(free.shape[1], PLENTY, dtype=np.int64)
    for resource in _requested_resources(ask):
        np.minimum(found, free[resource] // ask[resource], out=found)
    return np.maximum(found, 0, out=found)


@dataclass(frozen=True, slots=True)
class Shortage:
    """What room is wanted: free amounts (resources by nodes), what a pod asks for, and how many do not fit yet."""

    free: IntArray
    request: IntArray
    missing_pods: int


def useful_amounts(rows: FreedRows, want: Shortage) -> FloatArray:
    """What each row frees of what its node is short of, in pods: up to as many as are asked for."""
    node, free, ask = rows.node, want.free, want.request
    if len(node) < free.shape[1]:
        # Few rows: only their nodes are looked at.
        nodes, node = np.unique(node, return_inverse=True)
        free = free[:, nodes]
    everything = free.copy()
    for resource in range(len(ask)):
        np.add.at(everything[resource], node, rows.freed[resource])
    target = np.minimum(count_fitting_pods(everything, ask), count_fitting_pods(free, ask) + want.missing_pods)
    useful = np.zeros(len(node))
    for resource in _requested_resources(ask):
        short = np.maximum(target * ask[resource] - free[resource], 0)
        np.maximum(useful, np.minimum(rows.freed[resource], short[node]) / ask[resource], out=useful)
    return useful


def cost_shares(price: IntArray, rows: FreedRows, useful: FloatArray, reach: FloatArray, short: int) -> IntArray:
    """The part of its lot's price that each row bears; `reach` is what each lot frees where it counts, in pods."""
    whole = np.maximum(np.minimum(reach[rows.candidate], short), useful)
    found: IntArray = np.rint(price[rows.candidate] * (useful / whole)).astype(np.int64)
    return found


def best_victim_options(
    rows: FreedRows, share: IntArray, useful: FloatArray, *, ties: TieBreakers, want: Shortage
) -> VictimOptions:
    """The offers of all nodes on which the rows let in a pod more. Each row must be useful, and there must be one."""
    order = _sort_rows(rows, share / useful, ties)
    sums = _RunningSums(rows.select_rows(order), share[order], want)
    last, gain, ratio, following = sums.cheapest_runs()
    alone, alone_gain, alone_ratio = sums.cheapest_singles()
    # One lot alone is better where those that are cheaper are too small to be of use.
    single = alone_ratio < ratio
    first = np.where(single, alone, sums.first)
    last = np.where(single, alone, last)
    gain = np.where(single, alone_gain, gain)
    following = np.where(single, alone_ratio, following)
    ratio = np.where(single, alone_ratio, ratio)
    rows = sums.rows
    node = rows.node[sums.first]
    standing = np.minimum.reduceat(ties.gang_order[rows.candidate], sums.first)
    rank = np.minimum.reduceat(ties.rank[rows.candidate], sums.first)
    turn = np.lexsort((node, rank, standing, ratio))
    turn = turn[np.isfinite(ratio[turn])]
    return VictimOptions(rows, node[turn], first[turn], last[turn], gain[turn], ratio[turn], following[turn])


class _RunningSums:
    """Sorted rows, and what those of each node come to from its first row on."""

    def __init__(self, rows: FreedRows, share: IntArray, want: Shortage) -> None:
        node = rows.node
        self.rows, self._cost_share, self._shortage = rows, share, want
        self.first = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
        self._group = np.repeat(np.arange(len(self.first)), np.diff(np.append(self.first, len(node))))
        self._row_index = np.arange(len(node))
        self._free = want.free[:, node]
        self._fitting_before = count_fitting_pods(want.free[:, node[self.first]], want.request)[self._group]

    def cheapest_runs(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """By node the last row of the run from the first that is cheapest for a pod, its gain, ratio, and what follows.

        Of equally cheap runs the longest: work is taken from few nodes rather than from many.
        """
        gain = self._gained_pods(self._running_sums(self.rows.freed))
        cost = self._running_sums(self._cost_share[None, :])[0]
        ratio = _cost_per_pod(cost, gain)
        best = np.minimum.reduceat(ratio, self.first)
        last = np.maximum.reduceat(np.where(ratio == best[self._group], self._row_index, -1), self.first)
        rest = _cost_per_pod(cost - cost[last][self._group], gain - gain[last][self._group])
        rest[self._row_index <= last[self._group]] = np.inf
        return last, gain[last], best, np.minimum.reduceat(rest, self.first)

    def cheapest_singles(self) -> tuple[IntArray, IntArray, FloatArray]:
        """By node the row that alone is cheapest for a pod, its gain and ratio."""
        gain = self._gained_pods(self.rows.freed)
        ratio = _cost_per_pod(self._cost_share, gain)
        best = np.minimum.reduceat(ratio, self.first)
        where = np.where(ratio == best[self._group], self._row_index, len(self._row_index))
        found = np.minimum.reduceat(where, self.first)
        return found, gain[found], best

    def _gained_pods(self, freed: IntArray) -> IntArray:
        gain: IntArray = np.minimum(
            count_fitting_pods(self._free + freed, self._shortage.request) - self._fitting_before,
            self._shortage.missing_pods,
        )
        return gain

    def _running_sums(self, amounts: IntArray) -> IntArray:
        """Sums along each line that begin anew at each node; exact, for whole numbers wrap around and back."""
        total = np.cumsum(amounts, axis=1)
        before = total[:, self.first] - amounts[:, self.first]
        found: IntArray = total - before[:, self._group]
        return found


def _cost_per_pod(cost: IntArray, gain: IntArray) -> FloatArray:
    return np.where(gain > 0, cost / np.maximum(gain, 1), np.inf)


def _requested_resources(ask: IntArray) -> list[int]:
    return [resource for resource, amount in enumerate(ask.tolist()) if amount > 0]


def _sort_rows(rows: FreedRows, density: FloatArray, ties: TieBreakers) -> IntArray:
    """Rows by node, on each the cheapest for what it is worth first."""
    lot = rows.candidate
    found: IntArray
    if len(density) < _MAX_EXACT_ROWS:
        found = np.lexsort((ties.digest[lot], ties.rank[lot], ties.gang_order[lot], density, rows.node))
    else:
        key = (rows.node << _PRICE_BITS) | (density.view(np.int64) >> _PRICE_SHIFT)
        found = np.argsort(key, kind="stable")
    return found
