"""Replacement of plans inside guarantees that wait for slow terminations, where other victims terminate sooner."""

from __future__ import annotations

from collections.abc import Set

from vkgateway.scheduler.core.cycle_state import CycleState, late_pod_uids
from vkgateway.scheduler.core.phases.gang_placement import placement_in_guarantee
from vkgateway.scheduler.core.phases.plan_search import adopt_plan, find_candidate_plan
from vkgateway.scheduler.core.phases.planned_starts import release_plan
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import PreemptionPlan, have_peer_rules


def replan_slow_plans(state: CycleState) -> None:
    """Plan these gangs again: terminating pods may take longer than was known, and there may be other victims now."""
    plans = [(name, plan) for name, plan in sorted(state.plans.items()) if not plan.borrowed]
    late = {key: late_pod_uids(state.pool_states[key], state.now) for key in sorted({plan.pool for _, plan in plans})}
    for name, plan in plans:
        pending, pool_state, without = state.pending_gangs[name], state.pool_states[plan.pool], late[plan.pool]
        if without and not _fits_without(pool_state, pending, plan, without):
            _replace_plan(state, pool_state, pending, plan)


def _fits_without(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan, late: Set[str]) -> bool:
    there = set(
        plan.nodes.values() if not have_peer_rules(pending.min_members) else pool_state.node_resources.nodes.names
    )
    with pool_state.trial():
        pool_state.remove_pods(
            pod for uid, pod in pool_state.terminating_pods.items() if pod.node in there and uid not in late
        )
        return pool_state.fits_on_nodes(pending.min_members, plan.nodes)


def _replace_plan(state: CycleState, pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> None:
    with pool_state.trial() as trial:
        release_plan(pool_state, pending, plan)
        for pod in pending.min_members:
            pool_state.tenant_usage.add_usage(pending.tenant, pod.shape, -1)
        candidate = find_candidate_plan(
            state,
            pool_state,
            pending,
            pool_state.victims.preemption_candidates,
            placement=placement_in_guarantee(pool_state, pending, pending.min_members),
        )
        for pod in pending.min_members:
            pool_state.tenant_usage.add_usage(pending.tenant, pod.shape, 1)
        if candidate is not None and candidate.evicts:
            state.remove_plan(pending)
            adopt_plan(state, pool_state, pending, candidate)
            trial.commit()
