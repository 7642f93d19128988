"""Whoever has a plan inside its guarantee starts at once in another pool if it can: nobody goes for it then."""

from __future__ import annotations

from collections.abc import Iterator

from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.phases.pool_choice import guaranteed_placements, start_in_best_pool
from vkgateway.arbiter.phases.preemption_plans import release_plan
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang


def start_in_another_pool(ledger: CycleState) -> bool:
    """Whether anybody does. Whoever borrows does so in its turn (`start_borrowed`): others may be ahead of it there."""
    before = len(ledger.plans)
    for gang, plan in sorted(ledger.plans.items()):
        ask = ledger.pending_gangs[gang]
        if plan.borrowed or len(ask.allowed_pools) == 1 or ask.gang.part_info is not None:
            continue
        places = list(guaranteed_placements(_other_pools(ledger, ask), ask))
        if places:
            release_plan(ledger.pool_states[plan.pool], ask, plan)
            ledger.remove_plan(ask)
            start_in_best_pool(ledger, ask, places)
    return len(ledger.plans) < before


def _other_pools(ledger: CycleState, ask: PendingGang) -> Iterator[PoolState]:
    """The other pools in which its tenant's guarantee may hold it."""
    for standing in ledger.usable_pools(ask):
        if standing.pool.key != ledger.plans[ask.gang.id].pool and standing.may_use_guarantee(
            ask.gang, ask.min_members
        ):
            yield standing
