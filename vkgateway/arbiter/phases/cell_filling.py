"""Use of bound cells before a tenant's last unused cell of the largest size, which is left to large gangs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.phases.gang_placement import placement_in_guarantee
from vkgateway.arbiter.phases.plan_search import CandidatePlan, adopt_plan, find_candidate_plan
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
        rest = _last_cell_waste(pool_state, pending)
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


def _last_cell_waste(pool_state: PoolState, pending: PendingGang) -> float:
    """Return the units that the gang would leave over in the last unused cell; 0: it need not bind that one.

    It need not where a smaller unused cell holds it. It must where the bound cells have too little to spare.
    """
    cells, unit = pool_state.cells, pool_state.pool.unit_resource
    unused, largest = cells.unused_cells(pending.tenant), max(cells.levels, default=0)
    needed = sum(pod.shape.amount_of(unit) for pod in pending.min_members) / 1000
    if unused.get(largest, 0) != 1 or not 0 < needed < largest:
        return 0.0
    if any(needed <= size < largest for size in unused):
        return 0.0
    spare = sum(cells.spare_amount(pending.tenant, node) for node in cells.bound_cells(pending.tenant)) / 1000
    return largest - needed if spare >= needed else 0.0


def keeps_bound_cells(pool_state: PoolState, pending: PendingGang, nodes: Collection[str]) -> bool:
    """Return whether the gang was planned for cells in use on these nodes, to leave the last unused one alone."""
    return _last_cell_waste(pool_state, pending) > 0 and pool_state.cells.bound_cells(pending.tenant).keys() >= set(
        nodes
    )
