"""Capacity that a reservation counts on, and that victims of other gangs must not give away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vkgateway.scheduler.core.capacity.forecast import Reservation
from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.snapshot import PLACED, Gang, Pod


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
