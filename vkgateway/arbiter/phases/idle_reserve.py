"""The reserve of a pool: units that borrowing leaves idle, so that guaranteed work starts without an eviction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import GUARANTEED, Pod, PreemptionPlan


def reserve_for(standing: PoolState, pods: Iterable[Pod]) -> int:
    """Return the thousandths of the unit that these pods must leave idle if they borrow.

    Pods that ask for no unit need not leave any.
    """
    reserve = standing.reserve
    return reserve if reserve and any(pod.shape.amount_of(standing.pool.unit_resource) for pod in pods) else 0


def leaves_reserve(standing: PoolState, pods: Iterable[Pod]) -> bool:
    """Return whether the reserve stays idle. The room of these pods is taken already."""
    reserve = reserve_for(standing, pods)
    return not reserve or standing.node_resources.idle_units >= reserve


def plan_leaves_reserve(standing: PoolState, pods: Iterable[Pod], plan: PreemptionPlan) -> bool:
    """Return whether the reserve lets a plan for these pods start. The room of all plans is taken already."""
    reserve = reserve_for(standing, pods) if plan.borrowed else 0
    if plan.leaves is not None:
        reserve = min(reserve, plan.leaves)
    return not reserve or standing.node_resources.idle_units >= reserve


def with_idle_left(standing: PoolState, plan: PreemptionPlan) -> PreemptionPlan:
    """Return a plan that takes what its own tenant leaves (`PreemptionPlan.leaves`), with what is idle beside it if
    that is less.

    The room of all plans is taken already.
    """
    if plan.leaves is None or (left := min(plan.leaves, standing.node_resources.idle_units)) == plan.leaves:
        return plan
    return replace(plan, leaves=left)


def would_use_reserve(standing: PoolState, pods: Sequence[Pod]) -> bool:
    """Return whether these pods, were there room for them, would take of the reserve."""
    reserve = reserve_for(standing, pods)
    return reserve > 0 and standing.node_resources.idle_units - _requested_units(standing, pods) < reserve


def can_never_borrow(standing: PoolState, ask: PendingGang) -> bool:
    """Return whether the pool's nodes do not hold a gang beside the reserve, and its guarantee does not hold it."""
    reserve, units = reserve_for(standing, ask.min_members), _requested_units(standing, ask.min_members)
    total = sum(node.allocatable.get(standing.pool.unit_resource, 0) for node in standing.pool.nodes) if reserve else 0
    if not reserve or units + reserve <= total:
        return False
    quota = standing.quotas.get(ask.tenant)
    guarantee = quota.guarantee.get(standing.pool.unit_resource, 0) if quota is not None else 0
    return ask.gang.band is not GUARANTEED or units > guarantee


def _requested_units(standing: PoolState, pods: Iterable[Pod]) -> int:
    return sum(pod.shape.amount_of(standing.pool.unit_resource) for pod in pods)
