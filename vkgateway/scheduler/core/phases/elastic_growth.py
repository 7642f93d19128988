"""Growth of elastic gangs: surplus pods start in the rest of free capacity, one pod at a time in queue order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from vkgateway.scheduler.core.cycle_state import CycleState, pending_parts
from vkgateway.scheduler.core.gang_parts import narrow_to_gang
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.phases.backfill import find_backfill
from vkgateway.scheduler.core.phases.fair_shares import CurrentShares
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes, place_keeping_reserve
from vkgateway.scheduler.core.phases.limit_reservations import exceeds_reserved_limit
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.eviction_units import select_min_members
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.pending_table import PendingTable
from vkgateway.scheduler.core.queueing.queue_order import QueueOrder
from vkgateway.scheduler.core.snapshot import GUARANTEED, NOTIFIED, PLACED, Gang, Pod, PoolKey


def grow_gangs(state: CycleState) -> None:
    """Start surplus pods in free capacity, one pod of each gang in queue order, until none fits. No pod is evicted."""
    names = [name for name in state.surplus_gangs if name not in state.excluded_gangs]
    growing = [state.pending_gangs[name] for name in names if _can_grow(state, state.pending_gangs[name])]
    while growing:
        table = PendingTable(growing)
        queue = QueueOrder(table, np.arange(len(table)), CurrentShares(state, table), state.policy, state.now)
        growing, started = [], False
        while (pending := queue.next_gang(booked=started)) is not None:
            started = _start_next(state, pending)
            if started and len(pending.surplus) > 1:
                growing.append(replace(pending, surplus=pending.surplus[1:]))


def _can_grow(state: CycleState, pending: PendingGang) -> bool:
    """Return whether the gang's min members run and none of its pods is evicted."""
    parts = pending.gang.part_ids
    leaving = any(pod.state is NOTIFIED for name in parts for pod in state.gangs[name].pods)
    evicted = any(evict.gang in parts for evict in state.evicts)
    waits = any(part.gang.id not in state.started for part in pending_parts(state, pending.gang))
    return not leaving and not evicted and not waits


def _start_next(state: CycleState, pending: PendingGang) -> bool:
    if pending.gang.part_info is not None:
        pool_states = _pools_for_part(state, pending)
        # A pod that may go to several pools is a part of its own in the next cycle.
        return any(_start_next_in(state, each, pending, alone=len(pool_states) > 1) for each in pool_states)
    started = state.started.get(pending.gang.id)
    pool_state = started.pool_state if started is not None else next(state.usable_pools(pending), None)
    return pool_state is not None and _start_next_in(state, pool_state, pending)


def _pools_for_part(state: CycleState, pending: PendingGang) -> list[PoolState]:
    """Return the pools for the next pod of a part: those of the next cycle, when the pods that start now are placed."""
    pools_by_role: dict[str, set[PoolKey]] = {}
    for part in _parts_of(state, pending.gang):
        for pod in _placed_pods(state, part):
            if pod.pool is not None:
                pools_by_role.setdefault(pod.role, set()).add(pod.pool)
    keys = narrow_to_gang(pending.allowed_pools, pending.surplus[0].role, pools_by_role)
    clusters = {key[0] for found in pools_by_role.values() for key in found}
    return [each for each in state.usable_pools(pending) if each.pool.key in keys and each.pool.key[0] in clusters]


def _start_next_in(state: CycleState, pool_state: PoolState, pending: PendingGang, *, alone: bool = False) -> bool:
    """Start the next surplus pod in a pool, beside the pods that its gang has there, or `alone`."""
    pod = pending.surplus[0]
    if pool_state.tenant_usage.exceeded_limits(pending.tenant, [pod]) or exceeds_reserved_limit(
        state, pool_state, pending, [pod]
    ):
        return False
    parts = [] if alone else [(part, _placed_pods(state, part)) for part in _parts_of(state, pending.gang)]
    near = replace(pending, running=tuple(_pods_in(pool_state, (pods for _, pods in parts))))
    nodes = _take_guaranteed_nodes(pool_state, near, pod, parts)
    guaranteed = nodes is not None
    if nodes is None and pool_state.tenant_usage.may_borrow(pending.tenant, [pod]):
        nodes = _find_borrowed_nodes(state, pool_state, near, pod)
    if nodes is None:
        return False
    pool_state.add_pods([pod], nodes)
    state.start_pods(
        pending, pool_state, [pod], nodes, guaranteed=guaranteed, lent=pending.gang.elastic and not guaranteed
    )
    return True


def _find_borrowed_nodes(
    state: CycleState, pool_state: PoolState, pending: PendingGang, pod: Pod
) -> dict[str, str] | None:
    """Return free nodes. Surplus may use reserved nodes, since it is reclaimed first."""
    nodes = find_backfill(state, pool_state, pending, [pod])
    if nodes is None and pending.gang.elastic:
        with pool_state.trial():
            nodes = place_keeping_reserve(pool_state, pending, [pod])
    return nodes


def _parts_of(state: CycleState, gang: Gang) -> Iterator[Gang]:
    return (state.gangs[name] for name in gang.part_ids)


def _pods_in(pool_state: PoolState, parts: Iterable[Iterable[Pod]]) -> Iterator[Pod]:
    return (pod for pods in parts for pod in pods if pod.pool == pool_state.pool.key)


def _placed_pods(state: CycleState, part: Gang) -> list[Pod]:
    """Return the pods that run or start in this round, as they will be placed."""
    started = state.started.get(part.id)
    nodes = started.nodes if started is not None else {}
    found = []
    for pod in part.pods:
        if pod.uid in nodes:
            key = state.pool_by_pod[pod.uid]
            borrowed = not state.pool_states[key].guarantee.is_guaranteed(pod.uid)
            found.append(replace(pod, node=nodes[pod.uid], pool=key, borrowed=borrowed))
        elif pod.state is PLACED:
            found.append(pod)
    return found


def _take_guaranteed_nodes(
    pool_state: PoolState, pending: PendingGang, pod: Pod, parts: Iterable[tuple[Gang, list[Pod]]]
) -> dict[str, str] | None:
    """Return nodes inside the tenant's guarantee, and use it. While the gang's min members borrow, no surplus pod
    enters the guarantee: an eviction of the min members would evict guaranteed pods.
    """
    if pending.gang.band is not GUARANTEED or not pool_state.guarantee.may_use_guarantee(pending.gang, [pod]):
        return None
    core = _pods_in(pool_state, (select_min_members(part, pods) for part, pods in parts))
    if not all(pool_state.guarantee.is_guaranteed(one.uid) for one in core):
        return None
    among = allowed_nodes(pool_state, pending)
    placement = GuaranteedPlacement(pool_state.guarantees, pending.tenant, [pod], among=among)
    nodes = placement(pool_state.node_resources)
    if nodes is not None:
        placement.commit_placement(nodes, pool_state.pool.unit_resource)
    return nodes
