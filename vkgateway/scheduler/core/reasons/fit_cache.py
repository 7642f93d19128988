"""Whether and how far the min members of pending gangs fit now, cached for equal requests."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from vkgateway.scheduler.core.capacity.placement import count_placeable
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes, place_keeping_reserve
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang

V = TypeVar("V")


class FitCache:
    """Number of pods that fit now, cached for equal requests. The node resources stay unchanged."""

    def __init__(self) -> None:
        self._fits_cache: dict[Hashable, bool] = {}
        self._count_cache: dict[Hashable, int] = {}

    def fits_now(self, pool_state: PoolState, pending_gang: PendingGang) -> bool:
        """Return whether the gang's min members fit."""
        return _cached_answer(self._fits_cache, pool_state, pending_gang, _fits_now)

    def count_placeable(self, pool_state: PoolState, pending_gang: PendingGang) -> int:
        """Return how many of the gang's min members fit."""
        return _cached_answer(self._count_cache, pool_state, pending_gang, count_placeable_now)


def _cached_answer(
    found: dict[Hashable, V],
    pool_state: PoolState,
    pending_gang: PendingGang,
    find: Callable[[PoolState, PendingGang], V],
) -> V:
    """Return the answer, cached for all min members of the same number of equal pods: for these, counting decides."""
    shape = pending_gang.min_members[0].shape
    if pending_gang.placed_pods or any(pod.shape != shape for pod in pending_gang.min_members):
        return find(pool_state, pending_gang)
    key = (
        pool_state.pool.key,
        shape,
        len(pending_gang.min_members),
        pending_gang.gang.required_level,
        pending_gang.gang.preferred_level,
    )
    if key not in found:
        found[key] = find(pool_state, pending_gang)
    return found[key]


def _fits_now(pool_state: PoolState, pending_gang: PendingGang) -> bool:
    with pool_state.trial():
        found = place_keeping_reserve(pool_state, pending_gang, pending_gang.min_members)
    return found is not None


def count_placeable_now(pool_state: PoolState, pending_gang: PendingGang) -> int:
    """Return how many of the gang's min members fit into free capacity."""
    level = pending_gang.gang.required_level
    return count_placeable(
        pool_state.node_resources,
        pending_gang.min_members,
        required_level=level,
        among=allowed_nodes(pool_state, pending_gang),
    )
