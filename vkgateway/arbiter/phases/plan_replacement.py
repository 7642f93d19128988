"""Plans inside guarantees that wait for pods which take long to end: others go in their stead, where any can."""

from __future__ import annotations

from collections.abc import Set

from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.phases.preemption_plans import (
    adopt_plan,
    find_candidate_plan,
    placement_in_guarantee,
    release_plan,
)
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import PreemptionPlan


def replan_slow_plans(ledger: CycleState) -> None:
    """Make such plans anew: who ends may take longer than was known, and others may be there who can go."""
    plans = [(name, plan) for name, plan in sorted(ledger.plans.items()) if not plan.borrowed]
    slow = {key: ledger.late_pod_uids(ledger.pool_states[key]) for key in sorted({plan.pool for _, plan in plans})}
    for name, plan in plans:
        ask, standing, without = ledger.pending_gangs[name], ledger.pool_states[plan.pool], slow[plan.pool]
        if without and not _fits_without(standing, ask, plan, without):
            _replace_plan(ledger, standing, ask, plan)


def _fits_without(standing: PoolState, ask: PendingGang, plan: PreemptionPlan, slow: Set[str]) -> bool:
    there = set(plan.nodes.values())
    mark = standing.node_resources.mark()
    standing.remove_pods(pod for uid, pod in standing.terminating_pods.items() if pod.node in there and uid not in slow)
    found = standing.fits_on_nodes(ask.min_members, plan.nodes)
    standing.node_resources.undo(mark)
    return found


def _replace_plan(ledger: CycleState, standing: PoolState, ask: PendingGang, plan: PreemptionPlan) -> None:
    mark, held = standing.node_resources.mark(), standing.cells.mark()
    release_plan(standing, ask, plan)
    for pod in ask.min_members:
        standing.add_usage(ask.tenant, pod, -1)
    making = find_candidate_plan(
        ledger,
        standing,
        ask,
        standing.preemption_candidates,
        inside=placement_in_guarantee(standing, ask, ask.min_members),
    )
    for pod in ask.min_members:
        standing.add_usage(ask.tenant, pod)
    if making is None or not making.evicts:
        standing.node_resources.undo(mark)
        standing.cells.undo(held)
    else:
        ledger.remove_plan(ask)
        adopt_plan(ledger, standing, ask, making)
