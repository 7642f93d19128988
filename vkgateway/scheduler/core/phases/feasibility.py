"""Feasibility: whether a gang could ever start in a pool. Answers are cached by equivalence class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vkgateway.scheduler.core.capacity.placement import count_placeable, place_pods
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Pod, have_peer_rules


def is_feasible(pool_state: PoolState, pending: PendingGang) -> bool:
    """Return whether the gang fits in the empty pool with all nodes usable."""
    return bool(_cached_answer("fits", pool_state, pending, _fits_empty))


def is_impossible(pool_state: PoolState, pending: PendingGang) -> bool:
    """Return whether the gang certainly fits nowhere, whatever is evicted: its pods are equal, and too many or too
    large. For unequal pods, the placement may succeed in a fuller pool where it fails in an emptier one.
    """
    return not pending.placed_pods and bool(_cached_answer("never", pool_state, pending, _check_impossible))


def count_placeable_empty(pool_state: PoolState, pending: PendingGang) -> int:
    """Return how many of the gang's min members fit in the empty pool."""
    return _cached_answer("most", pool_state, pending, _count_in_empty)


def _cached_answer(
    question: str, pool_state: PoolState, pending: PendingGang, found: Callable[[PoolState, PendingGang], int]
) -> int:
    if pending.placed_pods:
        return found(pool_state, pending)
    known = pool_state.facts.feasibility.get((question, pending.equivalence_class))
    if known is None:
        known = pool_state.facts.feasibility[question, pending.equivalence_class] = found(pool_state, pending)
    return known


def _check_impossible(pool_state: PoolState, pending: PendingGang) -> bool:
    first = pending.min_members[0].shape
    return all(pod.shape == first for pod in pending.min_members) and not is_feasible(pool_state, pending)


def _pods_in_empty_pool(pending: PendingGang) -> list[Pod]:
    """Return the gang's min members without constraints that pods in a fuller pool could satisfy."""
    pods = pending.min_members
    if not have_peer_rules(pods):
        return list(pods)
    peers = {pod.shape: pod.shape.peers and pod.shape.peers.without_company() for pod in pods}
    return [replace(pod, shape=replace(pod.shape, peers=peers[pod.shape])) for pod in pods]


def _fits_empty(pool_state: PoolState, pending: PendingGang) -> bool:
    resources, level = pool_state.facts.empty_resources, pending.gang.required_level
    with resources.trial():
        found = place_pods(
            resources, _pods_in_empty_pool(pending), required_level=level, among=allowed_nodes(pool_state, pending)
        )
    return found is not None


def _count_in_empty(pool_state: PoolState, pending: PendingGang) -> int:
    level = pending.gang.required_level
    return count_placeable(
        pool_state.facts.empty_resources,
        _pods_in_empty_pool(pending),
        required_level=level,
        among=allowed_nodes(pool_state, pending),
    )
