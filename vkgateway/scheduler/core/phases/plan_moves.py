"""Plans of this round that move to other nodes, because later plans evict pods that make room for them, too."""

from __future__ import annotations

from collections.abc import Mapping, Set

from vkgateway.scheduler.core.capacity.slow_terminations import find_late_pods, termination_seconds
from vkgateway.scheduler.core.cycle_state import CycleState, late_pod_uids
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.guarantees.pool_guarantees import use_for_pods
from vkgateway.scheduler.core.phases.gang_placement import placement_in_guarantee
from vkgateway.scheduler.core.phases.plan_search import adopt_plan, find_candidate_plan
from vkgateway.scheduler.core.phases.planned_starts import find_other_nodes, release_plan
from vkgateway.scheduler.core.phases.reprieves import plan_holds
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import PodState, PreemptionPlan, have_peer_rules


def move_plans(state: CycleState) -> bool:
    """Keep new victims running whose gangs could start elsewhere without them; return whether there are any. A moved
    plan uses the capacity of all other terminating pods that no other plan needs.
    """
    evicts = [evict for evict in state.evicts if _is_new_evict(state, evict)]
    moved = [evict for evict in evicts if _move_plan(state, evict)]
    for evict in moved:
        state.evicts.remove(evict)
    return bool(moved)


def _is_new_evict(state: CycleState, evict: Evict) -> bool:
    if state.gangs[evict.gang].part_info is not None:
        return False  # It goes, or stays, with the gang's other parts.
    notified = {pod.uid for pod in state.gangs[evict.gang].pods if pod.state is PodState.NOTIFIED}
    return evict.makes_room_for in state.plans and notified.isdisjoint(evict.pods)


def _move_plan(state: CycleState, evict: Evict) -> bool:
    """Move the plan to nodes where it does not need this eviction; return whether that is possible."""
    plan = state.plans[evict.makes_room_for]
    pending, pool_state = state.pending_gangs[evict.makes_room_for], state.pool_states[plan.pool]
    if not _would_keep_running(pool_state, evict):
        return False
    with pool_state.trial() as trial:
        for uid in evict.pods:
            pool_state.terminating_pods.remove_pod(uid)
        release_plan(pool_state, pending, plan)
        late = find_late_pods(
            pool_state.terminating_pods.values(),
            termination_seconds([pool_state.gangs[evict.gang]]),
            since=state.now,
            now=state.now,
        )
        without = {pod.uid for pod in late}
        nodes = _find_future_nodes(pool_state, pending, plan, without=without)
        if nodes is not None:
            pool_state.add_pods(pending.min_members, nodes)
            if _other_plans_hold(state, pool_state, pending, without=without):
                trial.commit()
                state.move_plan(pending.gang.id, nodes, keeps_leaves=False)
                pool_state.revert_evict(evict)
                return True
    return False


def _other_plans_hold(state: CycleState, pool_state: PoolState, pending: PendingGang, *, without: Set[str]) -> bool:
    """Return whether all other plans hold after terminations, those of late pods (`without`) excepted."""
    with pool_state.trial():
        pool_state.remove_pods(pod for uid, pod in pool_state.terminating_pods.items() if uid not in without)
        others = ((name, plan) for name, plan in state.plans.items() if name != pending.gang.id)
        return all(
            plan_holds(pool_state, state.pending_gangs[name], plan)
            for name, plan in others
            if plan.pool == pool_state.pool.key
        )


def _would_keep_running(pool_state: PoolState, evict: Evict) -> bool:
    """Return whether the gang would run with these pods, given its other evicted pods."""
    gang, mine = pool_state.gangs[evict.gang], set(evict.pods)
    if not any(pod.uid in pool_state.terminating_pods and pod.uid not in mine for pod in gang.pods):
        return True
    there = (pod for pod in gang.pods if pod.state in _OCCUPYING and pool_state.gang_index.has_pod(pod))
    return has_min_members(
        gang, [pod for pod in there if pod.uid in mine or pod.uid not in pool_state.terminating_pods]
    )


_OCCUPYING = (PodState.PLACED, PodState.NOTIFIED)


def _find_future_nodes(
    pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan, *, without: Set[str]
) -> Mapping[str, str] | None:
    """Return nodes that are free after terminations, those of late pods (`without`) excepted. Guarantees are used; free
    capacity is unchanged.
    """
    if not pool_state.tenant_usage.is_within_limit(
        pending.tenant, pending.min_members, [pool_state.terminating_pods.usage_of(pending.tenant)]
    ):
        return None
    with pool_state.trial():
        pool_state.remove_pods(pod for uid, pod in pool_state.terminating_pods.items() if uid not in without)
        nodes = find_other_nodes(pool_state, pending, plan)
    if nodes is None or plan.borrowed:
        return nodes
    placed = [(pod, nodes[pod.uid]) for pod in pending.min_members]
    holds = use_for_pods(pool_state.guarantees, pending.tenant, pool_state.pool.unit_resource, placed)
    return nodes if holds else None


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
