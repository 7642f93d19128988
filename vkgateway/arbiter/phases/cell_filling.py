"""Use of bound cells before a tenant's last unused cell of a size, by eviction where that loses little."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.phases.last_cell import last_cell_waste
from vkgateway.arbiter.phases.preemption_plans import (
    CandidatePlan,
    adopt_plan,
    find_candidate_plan,
    placement_in_guarantee,
)
from vkgateway.arbiter.pools.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang

_BLOCKED_SECONDS = 3600.0
"""Assumed run time of a gang without a known one, while it keeps a cell bound and a larger gang waiting."""


def fill_cell(state: CycleState, pools: Iterable[PoolState], pending: PendingGang) -> bool:
    """Start a gang in the rest of bound cells, or plan that; return whether either is possible. This applies only where
    the gang would otherwise bind the last unused cell of the largest size, and block a gang of that size. The
    victims may lose no more than the idle rest of that cell is worth during the gang's run time.
    """
    for pool_state in pools:
        rest = last_cell_waste(pool_state, pending)
        if rest <= 0:
            continue
        placement = placement_in_guarantee(pool_state, pending, pending.min_members, only_bound=True)
        candidate = find_candidate_plan(
            state, pool_state, pending, pool_state.victims.preemption_candidates, placement=placement
        )
        if candidate is not None and _lost_work(candidate) <= rest * (
            pool_state.expected_ends.expected_run_time(pending.gang) or _BLOCKED_SECONDS
        ):
            adopt_plan(state, pool_state, pending, candidate)
            return True
    return False


def _lost_work(candidate: CandidatePlan) -> float:
    return sum(evict.lost for evict in candidate.evicts)
