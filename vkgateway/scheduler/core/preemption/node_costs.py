"""Cost of freeing capacity on each node: the cheapest candidates for each pod that then fits, for all nodes together.

Amounts are in thousandths, costs in thousandths of a GPU-second. The cost of a candidate that frees resources on
several nodes is shared over them by what it frees there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import BoolArray, FloatArray, IntArray
from vkgateway.scheduler.core.capacity.shape_views import PLENTY

_MAX_EXACT_ROWS = 4096
"""Number of rows from which rows are sorted by cost alone, to a precision of 4e-9; fewer rows use the tie breakers,
too."""

_PRICE_SHIFT = 24
_PRICE_BITS = 63 - _PRICE_SHIFT


@dataclass(frozen=True, slots=True)
class FreedRows:
    """Amounts that candidates free: the candidate, the node and the amounts of each row (resources by rows)."""

    candidate: IntArray
    node: IntArray
    freed: IntArray

    def filter_rows(self, mask: BoolArray) -> FreedRows:
        """Return the rows of a mask."""
        if mask.all():
            return self
        return self.select_rows(np.flatnonzero(mask))

    def select_rows(self, indices: IntArray | slice) -> FreedRows:
        """Return the rows at these indices."""
        return FreedRows(self.candidate[indices], self.node[indices], self.freed[:, indices])


@dataclass(frozen=True, slots=True)
class TieBreakers:
    """Tie breakers by candidate: the smaller value is evicted first."""

    gang_order: IntArray
    """Order of tenant, priority and age."""
    rank: IntArray
    """Negative rank within a gang: high ranks are evicted first."""
    digest: IntArray


@dataclass(frozen=True, slots=True)
class VictimOptions:
    """Best option of each node, the lowest cost per pod first: rows `first` to `last` of `rows`."""

    rows: FreedRows
    node: IntArray
    first: IntArray
    last: IntArray
    gained_pods: IntArray
    """Number of additional pods that fit."""
    cost_per_pod: FloatArray
    """Cost per additional pod."""
    next_cost_per_pod: FloatArray
    """Lower bound of the cost per pod of the node's next option."""


def count_fitting_pods(free: IntArray, request: IntArray) -> IntArray:
    """Return how many pods with this request fit in each column of free amounts (resources by nodes)."""
    found: IntArray = np.full(free.shape[1], PLENTY, dtype=np.int64)
    for resource in _requested_resources(request):
        np.minimum(found, free[resource] // request[resource], out=found)
    return np.maximum(found, 0, out=found)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Required capacity: free amounts (resources by nodes), request of a pod, and number of pods that do not fit."""

    free: IntArray
    request: IntArray
    missing_pods: int


def useful_amounts(rows: FreedRows, shortage: Shortage) -> FloatArray:
    """Return how much each row frees of what its node lacks, in pods, up to the missing pods."""
    node, free, request = rows.node, shortage.free, shortage.request
    if len(node) < free.shape[1]:
        # With few rows only their nodes are computed.
        nodes, node = np.unique(node, return_inverse=True)
        free = free[:, nodes]
    after_eviction = free.copy()
    for resource in range(len(request)):
        np.add.at(after_eviction[resource], node, rows.freed[resource])
    target = np.minimum(
        count_fitting_pods(after_eviction, request), count_fitting_pods(free, request) + shortage.missing_pods
    )
    useful = np.zeros(len(node))
    for resource in _requested_resources(request):
        missing = np.maximum(target * request[resource] - free[resource], 0)
        np.maximum(useful, np.minimum(rows.freed[resource], missing[node]) / request[resource], out=useful)
    return useful


def cost_shares(cost: IntArray, rows: FreedRows, useful: FloatArray, reach: FloatArray, missing: int) -> IntArray:
    """Return each row's share of its candidate's cost.

    `reach` is what each candidate frees where it counts, in pods.
    """
    total = np.maximum(np.minimum(reach[rows.candidate], missing), useful)
    found: IntArray = np.rint(cost[rows.candidate] * (useful / total)).astype(np.int64)
    return found


def best_victim_options(
    rows: FreedRows, share: IntArray, useful: FloatArray, *, tie_breakers: TieBreakers, shortage: Shortage
) -> VictimOptions:
    """Return the options of all nodes on which the rows let another pod fit.

    Each row must be useful, and there must be at least one row.
    """
    order = _sort_rows(rows, share / useful, tie_breakers)
    sums = _RunningSums(rows.select_rows(order), share[order], shortage)
    last, gain, ratio, following = sums.cheapest_runs()
    alone, alone_gain, alone_ratio = sums.cheapest_singles()
    # A single candidate is better where cheaper ones are too small to be useful.
    single = alone_ratio < ratio
    first = np.where(single, alone, sums.first)
    last = np.where(single, alone, last)
    gain = np.where(single, alone_gain, gain)
    following = np.where(single, alone_ratio, following)
    ratio = np.where(single, alone_ratio, ratio)
    rows = sums.rows
    node = rows.node[sums.first]
    gang_order = np.minimum.reduceat(tie_breakers.gang_order[rows.candidate], sums.first)
    rank = np.minimum.reduceat(tie_breakers.rank[rows.candidate], sums.first)
    order_by_cost = np.lexsort((node, rank, gang_order, ratio))
    order_by_cost = order_by_cost[np.isfinite(ratio[order_by_cost])]
    return VictimOptions(
        rows,
        node[order_by_cost],
        first[order_by_cost],
        last[order_by_cost],
        gain[order_by_cost],
        ratio[order_by_cost],
        following[order_by_cost],
    )


class _RunningSums:
    """Sorted rows, with running sums for each node."""

    def __init__(self, rows: FreedRows, share: IntArray, shortage: Shortage) -> None:
        node = rows.node
        self.rows, self._cost_share, self._shortage = rows, share, shortage
        self.first = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
        self._group = np.repeat(np.arange(len(self.first)), np.diff(np.append(self.first, len(node))))
        self._row_index = np.arange(len(node))
        self._free = shortage.free[:, node]
        self._fitting_before = count_fitting_pods(shortage.free[:, node[self.first]], shortage.request)[self._group]

    def cheapest_runs(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """Return by node the last row of the cheapest run per pod, with its gain and its cost per pod.

        The last array is the cost per pod of what follows. Of equally cheap runs, the longest wins: it takes work from
        few nodes rather than from many.
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
        """Return by node the single row with the lowest cost per pod, its gain and its cost per pod."""
        gain = self._gained_pods(self.rows.freed)
        ratio = _cost_per_pod(self._cost_share, gain)
        best = np.minimum.reduceat(ratio, self.first)
        row_index = np.where(ratio == best[self._group], self._row_index, len(self._row_index))
        found = np.minimum.reduceat(row_index, self.first)
        return found, gain[found], best

    def _gained_pods(self, freed: IntArray) -> IntArray:
        gain: IntArray = np.minimum(
            count_fitting_pods(self._free + freed, self._shortage.request) - self._fitting_before,
            self._shortage.missing_pods,
        )
        return gain

    def _running_sums(self, amounts: IntArray) -> IntArray:
        """Return sums along each line that restart at each node; integer overflow cancels out."""
        total = np.cumsum(amounts, axis=1)
        before = total[:, self.first] - amounts[:, self.first]
        found: IntArray = total - before[:, self._group]
        return found


def _cost_per_pod(cost: IntArray, gain: IntArray) -> FloatArray:
    return np.where(gain > 0, cost / np.maximum(gain, 1), np.inf)


def _requested_resources(request: IntArray) -> list[int]:
    return [resource for resource, amount in enumerate(request.tolist()) if amount > 0]


def _sort_rows(rows: FreedRows, density: FloatArray, tie_breakers: TieBreakers) -> IntArray:
    """Return the rows by node, the lowest cost for their usefulness first."""
    candidate = rows.candidate
    found: IntArray
    if len(density) < _MAX_EXACT_ROWS:
        found = np.lexsort(
            (
                tie_breakers.digest[candidate],
                tie_breakers.rank[candidate],
                tie_breakers.gang_order[candidate],
                density,
                rows.node,
            )
        )
    else:
        key = (rows.node << _PRICE_BITS) | (density.view(np.int64) >> _PRICE_SHIFT)
        found = np.argsort(key, kind="stable")
    return found
