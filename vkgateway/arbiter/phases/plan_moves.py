"""Plans of this cycle that were made before others told more pods to go: they move to where nobody goes for them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from vkgateway.arbiter.capacity.slow_terminations import find_late_pods, termination_seconds
from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.phases.preemption_plans import find_other_nodes, release_plan
from vkgateway.arbiter.phases.reprieves import plan_holds
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.preemption.eviction_units import has_min_members
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import PodState, PreemptionPlan

_MAX_REBOUND_GANGS = 16
"""For the plans of so many gangs others' cells are bound anew: more would take too long."""


def move_plans(ledger: CycleState) -> bool:
    """Have those stay who are to be told now, and whose gang could start elsewhere without them; whether there are any.

    Counted on are all others that leave, beside all other plans.
    """
    evicts = [evict for evict in ledger.evicts if _is_new_evict(ledger, evict)]
    moved = [evict for evict in evicts if _move_plan(ledger, evict)]
    if not moved:
        names = list(dict.fromkeys(evict.makes_room_for for evict in evicts))[:_MAX_REBOUND_GANGS]
        others = {name for name in names if _changes_other_cells(ledger, name)}
        moved = [evict for evict in evicts if evict.makes_room_for in others and _move_plan(ledger, evict, anew=True)]
    for evict in moved:
        ledger.evicts.remove(evict)
    return bool(moved)


def _changes_other_cells(ledger: CycleState, name: str) -> bool:
    """Whether the cells of whoever was given something in this cycle would be bound otherwise without this gang."""
    plan, ask = ledger.plans[name], ledger.pending_gangs[name]
    standing = ledger.pool_states[plan.pool]
    if plan.borrowed or not standing.guarantee_usage.entered_gangs.keys() - {name}:
        return False
    mark, held = standing.node_resources.mark(), standing.cells.mark()
    release_plan(standing, ask, plan)
    found = _rebind_cells(ledger, standing)
    standing.node_resources.undo(mark)
    standing.cells.undo(held)
    return found


def _rebind_cells(ledger: CycleState, standing: PoolState) -> bool:
    return standing.cells.rebind_tenants({ledger.gangs[name].tenant for name in standing.guarantee_usage.entered_gangs})


def _is_new_evict(ledger: CycleState, evict: Evict) -> bool:
    if ledger.gangs[evict.gang].part_info is not None:
        return False  # It goes, or stays, with the gang's other parts.
    told = {pod.uid for pod in ledger.gangs[evict.gang].pods if pod.state is PodState.NOTIFIED}
    return evict.makes_room_for in ledger.plans and told.isdisjoint(evict.pods)


def _move_plan(ledger: CycleState, evict: Evict, *, anew: bool = False) -> bool:
    """`anew`: with the cells of all others bound anew, as the next cycle would find them."""
    plan = ledger.plans[evict.makes_room_for]
    ask, standing = ledger.pending_gangs[evict.makes_room_for], ledger.pool_states[plan.pool]
    if not _would_keep_running(standing, evict):
        return False
    stay = {uid: standing.terminating_pods[uid] for uid in evict.pods if uid in standing.terminating_pods}
    tenant = ledger.gangs[evict.gang].tenant
    for uid in stay:
        standing.terminating_pods.remove_pod(uid)
    mark, held = standing.node_resources.mark(), standing.cells.mark()
    release_plan(standing, ask, plan)
    if anew:
        _rebind_cells(ledger, standing)
    slow = find_late_pods(
        standing.terminating_pods.values(),
        termination_seconds([standing.gangs[evict.gang]]),
        since=ledger.now,
        now=ledger.now,
    )
    without = {pod.uid for pod in slow}
    nodes = _find_future_nodes(standing, ask, plan, without=without)
    if nodes is not None:
        standing.add_pods(ask.min_members, nodes)
    if nodes is None or not _other_plans_hold(ledger, standing, ask, without=without):
        standing.node_resources.undo(mark)
        standing.cells.undo(held)
        standing.terminating_pods.add_pods(tenant, stay.values())
        return False
    ledger.plans[ask.gang.id] = replace(plan, nodes=dict(nodes), leaves=None)
    standing.revert_victims(evict)
    return True


def _other_plans_hold(ledger: CycleState, standing: PoolState, ask: PendingGang, *, without: Set[str]) -> bool:
    """Whether all other plans hold when those have gone who leave, without some who end late: they may have counted on
    whoever is to stay."""
    mark = standing.node_resources.mark()
    standing.remove_pods(pod for uid, pod in standing.terminating_pods.items() if uid not in without)
    others = ((name, plan) for name, plan in ledger.plans.items() if name != ask.gang.id)
    found = all(
        plan_holds(standing, ledger.pending_gangs[name], plan)
        for name, plan in others
        if plan.pool == standing.pool.key
    )
    standing.node_resources.undo(mark)
    return found


def _would_keep_running(standing: PoolState, evict: Evict) -> bool:
    """Whether the gang would run with these pods: if it goes for others at the same time, they go with it."""
    gang, mine = standing.gangs[evict.gang], set(evict.pods)
    if not any(pod.uid in standing.terminating_pods and pod.uid not in mine for pod in gang.pods):
        return True
    there = (pod for pod in gang.pods if pod.state in _OCCUPYING and standing.has_pod(pod))
    return has_min_members(gang, [pod for pod in there if pod.uid in mine or pod.uid not in standing.terminating_pods])


_OCCUPYING = (PodState.PLACED, PodState.NOTIFIED)


def _find_future_nodes(
    standing: PoolState, ask: PendingGang, plan: PreemptionPlan, *, without: Set[str]
) -> Mapping[str, str] | None:
    """A place that is free when those have gone who leave, without some who end late; its cells are held, its room is
    left as it was."""
    if not standing.is_within_limit(ask.tenant, ask.min_members, [standing.terminating_pods.usage_of(ask.tenant)]):
        return None
    mark = standing.node_resources.mark()
    standing.remove_pods(pod for uid, pod in standing.terminating_pods.items() if uid not in without)
    nodes = find_other_nodes(standing, ask, plan)
    standing.node_resources.undo(mark)
    return nodes
