"""The idle reserve of a pool: units that borrowing gangs leave idle, for guaranteed gangs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import GUARANTEED, Pod, PreemptionPlan


def reserve_for(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> int:
    """Return the thousandths of the unit that these pods of a gang must leave idle if they borrow. Pods that request no
    unit need not leave any, nor do pods that complete a running gang: without them the rest of it does no work.
    """
    reserve = pool_state.facts.idle_reserve
    if pending.gang.short and pods is pending.min_members:
        return 0
    return reserve if reserve and any(pod.shape.amount_of(pool_state.pool.unit_resource) for pod in pods) else 0


def leaves_reserve(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> bool:
    """Return whether these pods of a gang leave the reserve idle. They count as placed already."""
    reserve = reserve_for(pool_state, pending, pods)
    return not reserve or pool_state.node_resources.free.idle_units >= reserve


def plan_leaves_reserve(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> bool:
    """Return whether the reserve lets a gang's plan start. The pods of all plans count as placed already."""
    reserve = reserve_for(pool_state, pending, pending.min_members) if plan.borrowed else 0
    if plan.leaves is not None:
        reserve = min(reserve, plan.leaves)
    return not reserve or pool_state.node_resources.free.idle_units >= reserve


def with_idle_left(pool_state: PoolState, plan: PreemptionPlan) -> PreemptionPlan:
    """Return a plan with its `PreemptionPlan.leaves` reduced to what is idle. The pods of all plans count as placed
    already.
    """
    if plan.leaves is None or (left := min(plan.leaves, pool_state.node_resources.free.idle_units)) == plan.leaves:
        return plan
    return replace(plan, leaves=left)


def would_use_reserve(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> bool:
    """Return whether these pods of a gang, if they fitted, would use part of the reserve."""
    reserve = reserve_for(pool_state, pending, pods)
    return reserve > 0 and pool_state.node_resources.free.idle_units - _requested_units(pool_state, pods) < reserve


def can_never_borrow(pool_state: PoolState, pending: PendingGang) -> bool:
    """Return whether the pool cannot hold both the gang and the reserve, and the guarantee cannot hold the gang."""
    reserve, units = (
        reserve_for(pool_state, pending, pending.min_members),
        _requested_units(pool_state, pending.min_members),
    )
    total = (
        sum(node.allocatable.get(pool_state.pool.unit_resource, 0) for node in pool_state.pool.nodes) if reserve else 0
    )
    if not reserve or units + reserve <= total:
        return False
    quota = pool_state.tenant_usage.quotas.get(pending.tenant)
    guarantee = quota.guarantee.get(pool_state.pool.unit_resource, 0) if quota is not None else 0
    return pending.gang.band is not GUARANTEED or units > guarantee


def _requested_units(pool_state: PoolState, pods: Iterable[Pod]) -> int:
    return sum(pod.shape.amount_of(pool_state.pool.unit_resource) for pod in pods)
