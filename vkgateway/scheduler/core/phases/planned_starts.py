"""Starts of gangs with a preemption plan, on its nodes or on others that are free now, and release of plans."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.phases.gang_placement import place_keeping_reserve, placement_in_guarantee
from vkgateway.scheduler.core.phases.idle_reserve import plan_leaves_reserve
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.gang_rank import priority_key
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import PreemptionPlan


def start_ready_plans(state: CycleState) -> None:
    """Start gangs whose plans need no more terminations; of plans on one node, the older ones first."""
    for key, pool_state in state.pool_states.items():
        plans = [(state.pending_gangs[name], plan) for name, plan in state.plans.items() if plan.pool == key]
        plans.sort(key=lambda each: (each[1].created, priority_key(each[0].gang)))
        for pending, plan in plans:
            remove_planned_pods(pool_state, pending, plan)
        for pending, plan in plans:
            pool_state.add_pods(pending.min_members, plan.nodes)
            ready = pending.gang.part_info is None and is_plan_free(pool_state, pending, plan)
            if ready and pool_state.tenant_usage.is_within_limit(pending.tenant, pending.min_members):
                state.start_planned(pending, pool_state, plan.nodes)


def start_on_other_nodes(state: CycleState) -> bool:
    """Start gangs with a plan on other nodes where they fit now; return whether any starts."""
    before = len(state.plans)
    for gang, plan in sorted(state.plans.items()):
        pending, pool_state = state.pending_gangs[gang], state.pool_states[plan.pool]
        if pending.gang.part_info is not None:
            continue
        with pool_state.trial() as trial:
            release_plan(pool_state, pending, plan)
            is_allowed = pool_state.tenant_usage.is_within_limit(pending.tenant, pending.min_members)
            nodes = find_other_nodes(pool_state, pending, plan) if is_allowed else None
            if nodes is not None:
                state.start_planned(pending, pool_state, nodes)
                trial.commit()
    return len(state.plans) < before


def find_other_nodes(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> Mapping[str, str] | None:
    """Return free nodes for a gang whose plan is released, inside the guarantee if the plan was, and take both."""
    if plan.borrowed:
        return place_keeping_reserve(pool_state, pending, pending.min_members)
    placement = placement_in_guarantee(pool_state, pending, pending.min_members)
    nodes = placement(pool_state.node_resources)
    if nodes is not None:
        placement.commit_placement(nodes, pool_state.pool.unit_resource)
        pool_state.add_pods(pending.min_members, nodes)
    return nodes


def release_plan(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> None:
    """Release the plan's nodes, and its use of the guarantee."""
    for pod in pending.min_members:
        pool_state.node_resources.remove_pods(plan.nodes[pod.uid], pod.shape)
        if not plan.borrowed:
            amount = pod.shape.amount_of(pool_state.pool.unit_resource)
            pool_state.guarantees.release(pending.tenant, plan.nodes[pod.uid], amount)


def remove_planned_pods(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> None:
    """Count the pods of the plan as not placed."""
    for pod in pending.min_members:
        pool_state.node_resources.remove_pods(plan.nodes[pod.uid], pod.shape)


def is_plan_free(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> bool:
    """Return whether the plan's nodes are free, and the pool's reserve is idle. Its pods count as placed already."""
    return pool_state.fits_on_nodes(pending.min_members, plan.nodes) and plan_leaves_reserve(pool_state, pending, plan)


def any_plan_lacks_reserve(state: CycleState) -> bool:
    """Return whether a start of this round used reserve units that a plan to borrow must leave idle."""
    return any(lacks_reserve(state, name) for name in state.plans)


def lacks_reserve(state: CycleState, gang: str) -> bool:
    """Return whether a gang has a plan to borrow that will not leave the reserve, whatever terminates before it."""
    plan = state.plans.get(gang)
    if plan is None or not plan.borrowed or not (pool_state := state.pool_states[plan.pool]).facts.idle_reserve:
        return False
    with pool_state.trial():
        pool_state.remove_pods(pool_state.terminating_pods.values())
        return not plan_leaves_reserve(pool_state, state.pending_gangs[gang], plan)
