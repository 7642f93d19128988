"""Cells in use are filled before a tenant binds its last one of a size, be it by eviction where that costs little."""

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
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang

_BLOCKED_SECONDS = 3600.0
"""Seconds for which a gang of unknown run time is taken to keep a cell bound, and a larger gang waiting."""


def fill_cell(ledger: CycleState, pools: Iterable[PoolState], ask: PendingGang) -> bool:
    """Start a gang in what is left of cells that are bound, or plan that; whether it was done.

    Only where it would otherwise bind the last unused cell of the largest size: a gang of that size would wait for as
    long as this one runs. What is evicted may lose no more than the idle rest of that cell is worth for this time.
    """
    for standing in pools:
        rest = last_cell_waste(standing, ask)
        if rest <= 0:
            continue
        inside = placement_in_guarantee(standing, ask, ask.min_members, filling=True)
        making = find_candidate_plan(ledger, standing, ask, standing.preemption_candidates, inside=inside)
        if making is not None and _lost_work(making) <= rest * (
            standing.expected_ends.expected_run_time(ask.gang) or _BLOCKED_SECONDS
        ):
            adopt_plan(ledger, standing, ask, making)
            return True
    return False


def _lost_work(making: CandidatePlan) -> float:
    return sum(evict.lost for evict in making.evicts)
