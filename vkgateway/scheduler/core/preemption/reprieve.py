"""Reprieve: each victim of a sufficient set, the costliest first, is spared if the gang still fits.

If all pods are equal, counting decides whether they fit: the search is exact and cheap. Otherwise counting only rules
victims out, the placement decides, and all victims are tried until no more is spared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import BoolArray, FloatArray, IntArray
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.preemption.cheapest_sets import PricedCandidates, SearchSpace
from vkgateway.scheduler.core.preemption.eviction_units import PreemptionCandidate
from vkgateway.scheduler.core.preemption.node_costs import count_fitting_pods

NodesByPod = Mapping[str, str]
"""Node name by pod uid."""


def sort_costliest_first(candidates: PricedCandidates, victims: Sequence[int] | IntArray) -> list[int]:
    """Return the order in which victims are tried: the reverse of the order of eviction among equals."""
    found = np.asarray(victims, dtype=np.int64)
    tie_breakers = candidates.tie_breakers
    order = np.lexsort(
        (tie_breakers.digest[found], tie_breakers.rank[found], tie_breakers.gang_order[found], candidates.cost[found])
    )
    return [int(victim) for victim in found[order][::-1]]


def reprieve_by_count(space: SearchSpace, candidates: PricedCandidates, victims: IntArray) -> list[int]:
    """Return the victims that one group of equal pods needs.

    None of them can be spared while the others are evicted.
    """
    left = dict.fromkeys(sort_costliest_first(candidates, victims))
    min_members = _find_cores(candidates, left)
    count = _CapacityCount(space, candidates, left)
    for victim in tuple(left):
        if min_members.get(victim) not in left and count.fits_if_reprieved(victim):
            count.count_reprieved(victim)
            del left[victim]
    return list(left)


class _CapacityCount:
    """Number of pods of each group that fit in each domain if certain candidates are evicted."""

    def __init__(self, space: SearchSpace, candidates: PricedCandidates, victims: Iterable[int]) -> None:
        self._space, self._candidates = space, candidates
        self._free = space.free_amounts.copy()
        for victim in victims:
            rows = candidates.rows_of(victim)
            self._free[:, rows.node] += rows.freed
        self._allowed = [group.allowed_nodes & (space.domain >= 0) for group in space.groups]
        self._capacity = [
            np.where(allowed, count_fitting_pods(self._free, group.request), 0)
            for group, allowed in zip(space.groups, self._allowed, strict=True)
        ]
        domain_count = int(space.domain.max(initial=0)) + 1
        self._totals: list[FloatArray] = [
            np.bincount(space.domain[allowed], weights=fit[allowed], minlength=domain_count).astype(np.float64)
            for allowed, fit in zip(self._allowed, self._capacity, strict=True)
        ]

    def fits_if_reprieved(self, victim: int) -> bool:
        """Return whether a domain fits each group by itself if this candidate is spared."""
        feasible: BoolArray | None = None
        for group, (_, totals) in zip(self._space.groups, self._counts_if_reprieved(victim), strict=True):
            enough = totals >= group.count
            feasible = enough if feasible is None else feasible & enough
        return feasible is None or bool(feasible.any())

    def count_reprieved(self, victim: int) -> None:
        """Count this candidate as spared."""
        rows = self._candidates.rows_of(victim)
        for number, (fit, totals) in enumerate(self._counts_if_reprieved(victim)):
            self._capacity[number][rows.node] = fit
            self._totals[number] = totals
        self._free[:, rows.node] -= rows.freed

    def _counts_if_reprieved(self, victim: int) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yield for each group how many pods fit on the candidate's nodes, and in all domains."""
        rows = self._candidates.rows_of(victim)
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
    resources: NodeResources,
    space: SearchSpace,
    candidates: PricedCandidates,
    victims: Mapping[int, PreemptionCandidate],
    *,
    place: Callable[[], NodesByPod | None],
    nodes: NodesByPod,
    anywhere: bool = False,
) -> tuple[list[int], NodesByPod]:
    """Return the victims that the gang needs, and its nodes.

    The node resources count all victims as evicted at first, and only the returned ones afterwards. `place` tries the
    placement without changing the resources; `nodes` is its current result. `anywhere`: victims may also be needed that
    free nothing on the gang's nodes.
    """
    left = dict.fromkeys(sort_costliest_first(candidates, tuple(victims)))
    min_members = _find_cores(candidates, left)
    used = set(nodes.values())
    for victim in tuple(left) if not anywhere else ():
        if min_members.get(victim) not in left and not any(pod.node in used for pod in victims[victim].pods):
            _take_back(resources, victims[victim])
            del left[victim]
    count = _CapacityCount(space, candidates, left)
    spared = True
    while spared:
        spared = False
        for victim in tuple(left):
            if min_members.get(victim) in left or not count.fits_if_reprieved(victim):
                continue
            with resources.trial() as trial:
                _take_back(resources, victims[victim])
                found = place()
                if found is not None:
                    nodes, spared = found, True
                    count.count_reprieved(victim)
                    del left[victim]
                    trial.commit()
    return list(left), nodes


def _find_cores(candidates: PricedCandidates, victims: Iterable[int]) -> dict[int, int]:
    """Return the min-members candidate for each dependent: the dependent cannot be spared while those are evicted."""
    return {dependent: victim for victim in victims for dependent in candidates.dependents.get(victim, ())}


def _take_back(resources: NodeResources, victim: PreemptionCandidate) -> None:
    for pod in victim.pods:
        if pod.node in resources.nodes:
            resources.add_pods(pod.node, pod.shape)
