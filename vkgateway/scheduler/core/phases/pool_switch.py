"""Starts of planned guaranteed gangs in another pool, where they need no eviction."""

from __future__ import annotations

from collections.abc import Iterator

from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.phases.planned_starts import release_plan
from vkgateway.scheduler.core.phases.pool_choice import guaranteed_placements, start_in_best_pool
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang


def start_in_another_pool(state: CycleState) -> bool:
    """Start gangs with a guaranteed plan in other pools where they fit; return whether any starts. A borrowing gang
    switches pools in queue order (`start_in_other_pool`), since other gangs may come first there.
    """
    before = len(state.plans)
    for gang, plan in sorted(state.plans.items()):
        pending = state.pending_gangs[gang]
        if plan.borrowed or len(pending.allowed_pools) == 1 or pending.gang.part_info is not None:
            continue
        places = list(guaranteed_placements(_other_pools(state, pending), pending))
        if places:
            release_plan(state.pool_states[plan.pool], pending, plan)
            state.remove_plan(pending)
            start_in_best_pool(state, pending, places)
    return len(state.plans) < before


def _other_pools(state: CycleState, pending: PendingGang) -> Iterator[PoolState]:
    """Yield the other pools in which the tenant's guarantee may hold the gang."""
    for pool_state in state.usable_pools(pending):
        if pool_state.pool.key != state.plans[pending.gang.id].pool and pool_state.guarantee.may_use_guarantee(
            pending.gang, pending.min_members
        ):
            yield pool_state
