"""Reservation of nodes for a gang that does not fit, at its earliest known start (EASY backfill)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vkgateway.scheduler.core.capacity.forecast import PoolForecast, Reservation
from vkgateway.scheduler.core.cycle_state import CycleState, late_pod_uids
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes
from vkgateway.scheduler.core.phases.idle_reserve import reserve_for
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.victim_search import choose_victims
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Pod, Shape


def find_reservation(state: CycleState, pool_state: PoolState, pending: PendingGang) -> Reservation | None:
    """Return a reservation at the earliest known start. Without a known start, only an aged gang reserves nodes."""
    gang = pending.gang
    reclaimable = tuple(
        pod
        for pod in pool_state.victims.reclaimable_for(gang).all_pods()
        if pod.node in pool_state.node_resources.nodes
    )
    with pool_state.trial():
        pool_state.remove_pods(reclaimable)
        leaves, allowed = reserve_for(pool_state, pending, pending.min_members), allowed_nodes(pool_state, pending)
        future = PoolForecast(pool_state.node_resources, pool_state.expected_ends, state.now, idle_reserve=leaves)
        start = future.earliest_start(pending.min_members, required_level=gang.required_level, among=allowed)
        places = None
        if start is not None:
            places = future.place_at(pending.min_members, start, required_level=gang.required_level, among=allowed)
    if places is not None:
        return _make_reservation(pool_state, pending, places, start, reclaimable)
    if not state.has_aged(gang):
        return None
    nodes = _nodes_after_eviction(state, pool_state, pending) or _nodes_after_eviction(
        state, pool_state, pending, also=_planned_borrowers(state, pool_state)
    )
    return _make_reservation(pool_state, pending, nodes, None, reclaimable) if nodes is not None else None


def _nodes_after_eviction(
    state: CycleState, pool_state: PoolState, pending: PendingGang, *, also: Iterable[tuple[str, Shape]] = ()
) -> Mapping[str, str] | None:
    """Return where the gang fits after the cheapest evictions, and after pods of shapes terminate on nodes (`also`)."""
    late = late_pod_uids(pool_state, state.now)
    with pool_state.trial():
        for node, shape in also:
            pool_state.node_resources.remove_pods(node, shape)
        choice = choose_victims(
            pool_state.node_resources,
            pool_state.victims.preemption_candidates,
            pending.gang,
            pending.min_members,
            now=state.now,
            excess=pool_state.tenant_usage.shares_by_tenant(),
            among=allowed_nodes(pool_state, pending),
            ending=[pod for uid, pod in pool_state.terminating_pods.items() if uid not in late],
            idle_reserve=reserve_for(pool_state, pending, pending.min_members),
        )
    return choice.nodes if choice is not None else None


def _planned_borrowers(state: CycleState, pool_state: PoolState) -> Iterator[tuple[str, Shape]]:
    """Yield nodes and shapes of the pods that borrowing gangs are planned to start: they end, too."""
    for name, plan in state.plans.items():
        if plan.pool == pool_state.pool.key and plan.borrowed:
            yield from ((plan.nodes[pod.uid], pod.shape) for pod in state.pending_gangs[name].min_members)


def _make_reservation(
    pool_state: PoolState,
    pending: PendingGang,
    nodes: Mapping[str, str],
    start: float | None,
    reclaimable: Iterable[Pod],
) -> Reservation:
    reservation = Reservation.for_gang(pending.gang, pending.min_members, nodes, start, ends=pool_state.expected_ends)
    for pod in reclaimable:
        end = pool_state.expected_ends.end_of(pod.uid)
        if start is None or end is None or end > start:
            reservation.count_as_freed(pod.node, pod.shape)
    return reservation
