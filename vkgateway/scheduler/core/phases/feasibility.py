"""Feasibility: whether a gang could ever start in a pool. Answers are cached by equivalence class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from vkgateway.scheduler.core.capacity.forecast import Reservation
from vkgateway.scheduler.core.capacity.placement import count_placeable, place_pods
from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import PLACED, Gang, Pod, have_peer_rules


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


def hide_reserved(
    state: CycleState,
    pool_state: PoolState,
    reservation: Reservation,
    candidates: PreemptionCandidates,
    coming: Iterable[Pod],
) -> None:
    """Take the capacity that a reservation needs: free, becoming free, and assumed to end before it starts. It must be
    undone. Candidates count as assumed where they borrow reserved nodes, are surplus, or end before.
    """
    reclaimable = {pod.uid for pod in pool_state.victims.reclaimable_for(state.gangs[reservation.gang]).all_pods()}
    leaves = {pod.uid: pod for pod in coming}
    freed = {
        pod.uid: pod for gang in gangs_with_candidates(pool_state, candidates) for pod in placed_pods(pool_state, gang)
    }
    freed = {
        uid: pod
        for uid, pod in freed.items()
        if uid in reclaimable or reservation.starts_after(pool_state.expected_ends, uid)
    }
    freed |= {uid: pod for uid, pod in leaves.items() if reservation.starts_after(pool_state.expected_ends, uid)}
    reservation.withhold_needed(
        pool_state.node_resources,
        freed_pods=[(pod.node, pod.shape) for pod in freed.values()],
        terminating_pods=[(pod.node, pod.shape) for uid, pod in leaves.items() if uid not in freed],
    )


def gangs_with_candidates(pool_state: PoolState, candidates: PreemptionCandidates) -> Iterator[Gang]:
    """Return the gangs that have candidates."""
    return (pool_state.gangs[name] for name in candidates.gang_ids())


def placed_pods(pool_state: PoolState, gang: Gang) -> Iterator[Pod]:
    """Return the running pods of a gang in a pool."""
    return (pod for pod in gang.pods if pod.state is PLACED and pool_state.gang_index.has_pod(pod))
