"""Give back: of lots that make room together, each is tried again, the dearest first, and spared if it can be.

Where all pods are equal, whether they fit is a matter of counting: the search is then exact and touches little.
Otherwise every answer but a clear no comes from the placement itself, and all are tried until nobody more is spared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from vkgateway.arbiter.capacity.node_fit import BoolArray, IntArray
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.preemption.candidates import FloatArray
from vkgateway.arbiter.preemption.cheapest_sets import PricedCandidates, SearchSpace
from vkgateway.arbiter.preemption.eviction_units import PreemptionCandidate
from vkgateway.arbiter.preemption.node_costs import count_fitting_pods

NodesByPod = Mapping[str, str]
"""Pod uids to nodes."""


def sort_costliest_first(market: PricedCandidates, lots: Sequence[int] | IntArray) -> list[int]:
    """The order in which lots are tried again: the reverse of that in which equals would be called in."""
    found = np.asarray(lots, dtype=np.int64)
    ties = market.tie_breakers
    order = np.lexsort((ties.digest[found], ties.rank[found], ties.gang_order[found], market.cost[found]))
    return [int(lot) for lot in found[order][::-1]]


def reprieve_by_count(ground: SearchSpace, market: PricedCandidates, lots: IntArray) -> list[int]:
    """Who must go of the lots for the one group of equal pods. No one of those left could stay if the others go."""
    left = dict.fromkeys(sort_costliest_first(market, lots))
    core = _find_cores(market, left)
    count = _CapacityCount(ground, market, left)
    for lot in tuple(left):
        if core.get(lot) not in left and count.fits_if_reprieved(lot):
            count.count_reprieved(lot)
            del left[lot]
    return list(left)


class _CapacityCount:
    """How many pods of each group fit in each domain if certain lots go: the gang fits nowhere else."""

    def __init__(self, ground: SearchSpace, market: PricedCandidates, lots: Iterable[int]) -> None:
        self._space, self._candidates = ground, market
        self._free = ground.free_amounts.copy()
        for lot in lots:
            rows = market.rows_of(lot)
            self._free[:, rows.node] += rows.freed
        self._allowed = [group.allowed_nodes & (ground.domain >= 0) for group in ground.groups]
        self._capacity = [
            np.where(allowed, count_fitting_pods(self._free, group.request), 0)
            for group, allowed in zip(ground.groups, self._allowed, strict=True)
        ]
        number = int(ground.domain.max(initial=0)) + 1
        self._totals: list[FloatArray] = [
            np.bincount(ground.domain[allowed], weights=fit[allowed], minlength=number).astype(np.float64)
            for allowed, fit in zip(self._allowed, self._capacity, strict=True)
        ]

    def fits_if_reprieved(self, lot: int) -> bool:
        """Whether there is a domain with room for each group by itself if this lot stays."""
        may: BoolArray | None = None
        for group, (_, totals) in zip(self._space.groups, self._counts_if_reprieved(lot), strict=True):
            enough = totals >= group.count
            may = enough if may is None else may & enough
        return may is None or bool(may.any())

    def count_reprieved(self, lot: int) -> None:
        """This lot stays."""
        rows = self._candidates.rows_of(lot)
        for number, (fit, totals) in enumerate(self._counts_if_reprieved(lot)):
            self._capacity[number][rows.node] = fit
            self._totals[number] = totals
        self._free[:, rows.node] -= rows.freed

    def _counts_if_reprieved(self, lot: int) -> Iterator[tuple[IntArray, FloatArray]]:
        """For each group how many fit on the lot's nodes and in all domains."""
        rows = self._candidates.rows_of(lot)
        node, domain = rows.node, self._space.domain
        for group, allowed, fit, totals in zip(
            self._space.groups, self._allowed, self._capacity, self._totals, strict=True
        ):
            inside = allowed[node]
            fewer = np.where(inside, count_fitting_pods(self._free[:, node] - rows.freed, group.request), 0)
            without = totals.copy()
            np.add.at(without, domain[node][inside], (fewer - fit[node])[inside])
            yield fewer, without


def reprieve_by_trial(
    room: NodeResources,
    ground: SearchSpace,
    market: PricedCandidates,
    lots: Mapping[int, PreemptionCandidate],
    *,
    place: Callable[[], NodesByPod | None],
    nodes: NodesByPod,
    anywhere: bool = False,
) -> tuple[list[int], NodesByPod]:
    """Who must go of the lots, whose pods the room counts as gone already, and where the gang is then.

    `place` tries the placement and leaves the room as it is; `nodes` is what it says now. Afterwards the room counts
    only those as gone that must go. `anywhere`: lots may also be needed that free nothing on the gang's nodes.
    """
    left = dict.fromkeys(sort_costliest_first(market, tuple(lots)))
    core = _find_cores(market, left)
    used = set(nodes.values())
    for lot in tuple(left) if not anywhere else ():
        if core.get(lot) not in left and not any(pod.node in used for pod in lots[lot].pods):
            _take_back(room, lots[lot])
            del left[lot]
    count = _CapacityCount(ground, market, left)
    spared = True
    while spared:
        spared = False
        for lot in tuple(left):
            if core.get(lot) in left or not count.fits_if_reprieved(lot):
                continue
            mark = room.mark()
            _take_back(room, lots[lot])
            found = place()
            if found is None:
                room.undo(mark)
            else:
                nodes, spared = found, True
                count.count_reprieved(lot)
                del left[lot]
    return list(left), nodes


def _find_cores(market: PricedCandidates, lots: Iterable[int]) -> dict[int, int]:
    """For each lot that goes with the core of its gang, which that is: it cannot stay as long as the core goes."""
    return {companion: lot for lot in lots for companion in market.dependents.get(lot, ())}


def _take_back(room: NodeResources, lot: PreemptionCandidate) -> None:
    for pod in lot.pods:
        if pod.node in room:
            room.add_pods(pod.node, pod.shape)
