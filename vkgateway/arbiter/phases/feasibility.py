"""Whether a gang could ever start in a pool: asked of the pool as if it were empty, and kept by kind."""

from __future__ import annotations

from collections.abc import Callable

from vkgateway.arbiter.capacity.placement import count_placeable, place_pods
from vkgateway.arbiter.phases.preemption_plans import allowed_nodes
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang


def is_feasible(standing: PoolState, ask: PendingGang) -> bool:
    """Whether the gang fits into the pool if all else is gone and all nodes can be used."""
    return bool(_cached_answer("fits", standing, ask, _fits_empty))


def is_impossible(standing: PoolState, ask: PendingGang) -> bool:
    """Whether it is certain that the gang fits nowhere, whoever goes: its pods are equal, and too many or too large.

    Where they are not, the search for a place may find one in a fuller pool that it misses in an emptier one.
    """
    return not ask.placed_pods and bool(_cached_answer("never", standing, ask, _check_impossible))


def count_placeable_empty(standing: PoolState, ask: PendingGang) -> int:
    """How many of the gang's core would fit into the empty pool."""
    return _cached_answer("most", standing, ask, _count_in_empty)


def _cached_answer(
    what: str, standing: PoolState, ask: PendingGang, found: Callable[[PoolState, PendingGang], int]
) -> int:
    if ask.placed_pods:
        return found(standing, ask)
    known = standing.feasibility_cache.get((what, ask.equivalence_class))
    if known is None:
        known = standing.feasibility_cache[what, ask.equivalence_class] = found(standing, ask)
    return known


def _check_impossible(standing: PoolState, ask: PendingGang) -> bool:
    first = ask.min_members[0].shape
    return all(pod.shape == first for pod in ask.min_members) and not is_feasible(standing, ask)


def _fits_empty(standing: PoolState, ask: PendingGang) -> bool:
    room, level = standing.empty, ask.gang.required_level
    mark = room.mark()
    found = place_pods(room, ask.min_members, required_level=level, among=allowed_nodes(standing, ask))
    room.undo(mark)
    return found is not None


def _count_in_empty(standing: PoolState, ask: PendingGang) -> int:
    level = ask.gang.required_level
    return count_placeable(standing.empty, ask.min_members, required_level=level, among=allowed_nodes(standing, ask))
