"""Gangs in several pools: all parts of a gang start in the same cycle, or none does. A part that could start while
another part cannot keeps its nodes as a plan: other parts may wait for victims to terminate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product

from vkgateway.scheduler.core.cycle_state import CycleState, pending_parts
from vkgateway.scheduler.core.phases.planned_starts import (
    find_other_nodes,
    is_plan_free,
    lacks_reserve,
    release_plan,
)
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import PLACED, PreemptionPlan

_MAX_CHOICES = 16
"""Combinations of one pool for each part that are tried; more would take too long."""

PartAttempt = Callable[[Sequence[PoolState], PendingGang], bool]
"""Starts or plans a part in one of these pools. False: it fits in none, and nothing was done."""


def undecided_parts(state: CycleState, pending: PendingGang) -> list[PendingGang]:
    """Return the parts of a gang for which nothing has been decided in this cycle."""
    return [part for part in pending_parts(state, pending.gang) if not state.is_decided(part.gang.id)]


def place_parts(state: CycleState, parts: Sequence[PendingGang], attempt: PartAttempt) -> PendingGang | None:
    """Start or plan all parts of a gang. Return the first part for which that fails; then nothing is done."""
    # What may go to one pool only comes first: what may go to several takes what is left.
    order = sorted(parts, key=lambda part: (len(part.allowed_pools), part.gang.id))
    failed: PendingGang | None = order[0]
    for pools in _pool_choices(state, order) if _rest_keeps_running(state, order[0]) else ():
        with state.trial() as trial:
            with state.only_plans():
                failed = next((part for part in order if not attempt(pools[part.gang.id], part)), None)
            # A part inside the guarantee may use the reserve that an earlier part had to leave.
            failed = failed or next((part for part in order if lacks_reserve(state, part.gang.id)), None)
            if failed is None:
                trial.commit()
                start_ready_gang(state, order[0])
                return None
    return failed


def _pool_choices(state: CycleState, parts: Sequence[PendingGang]) -> Iterator[Mapping[str, Sequence[PoolState]]]:
    """Yield by part the pools to try: all of one compute cluster, then each choice of one pool for each part."""
    for cluster in _possible_clusters(state, parts):
        each = [[one for one in state.usable_pools(part) if one.pool.key[0] == cluster] for part in parts]
        yield {part.gang.id: pools for part, pools in zip(parts, each, strict=True)}
        if sum(len(pools) > 1 for pools in each) > 1:
            for chosen in islice(product(*each), _MAX_CHOICES):
                yield {part.gang.id: [one] for part, one in zip(parts, chosen, strict=True)}


def _possible_clusters(state: CycleState, parts: Sequence[PendingGang]) -> Iterator[str]:
    """Yield the compute clusters in which all parts may run, in the first part's order of preference."""
    decided = {plan.pool[0] for name in parts[0].gang.part_ids if (plan := state.plans.get(name)) is not None}
    each = [dict.fromkeys(pool_state.pool.key[0] for pool_state in state.usable_pools(part)) for part in parts]
    for cluster in each[0]:
        if all(cluster in others for others in each) and decided <= {cluster}:
            yield cluster


def _rest_keeps_running(state: CycleState, pending: PendingGang) -> bool:
    """Return whether the running pods of the gang keep running, as decided so far."""
    names = set(pending.gang.part_ids)
    if any(evict.whole and evict.gang in names for evict in state.evicts):
        return False
    for name in pending.gang.part_ids:
        part, waiting = state.gangs.get(name), state.pending_gangs.get(name)
        if part is None:
            return False
        stays = [pod for pod in part.pods if pod.state is PLACED]
        if not has_min_members(part, [*stays, *(waiting.min_members if waiting is not None else ())]):
            return False
    return True


def start_ready_gang(state: CycleState, pending: PendingGang) -> bool:
    """Start a gang whose parts all have plans, if their nodes are free; return whether it starts."""
    parts = [part for part in pending_parts(state, pending.gang) if part.gang.id not in state.started]
    if not parts or not all(_is_part_ready(state, part) for part in parts):
        return False
    for part in parts:
        plan = state.plans[part.gang.id]
        state.start_planned(part, state.pool_states[plan.pool], plan.nodes)
    # Its surplus, and gangs that wait behind it, may take more than was known while its parts were planned.
    state.note_freed_capacity()
    return True


def _is_part_ready(state: CycleState, part: PendingGang) -> bool:
    plan = state.plans.get(part.gang.id)
    if plan is None:
        return False
    pool_state = state.pool_states[plan.pool]
    return is_plan_free(pool_state, part, plan) and pool_state.tenant_usage.is_within_limit(
        part.tenant, part.min_members
    )


def start_ready_gangs(state: CycleState) -> bool:
    """Start the gangs whose parts' plans can all start, on their nodes or on others; return whether any does."""
    started = False
    for pending in _planned_gangs(state):
        started = start_ready_gang(state, pending) or _start_on_other_nodes(state, pending) or started
    return started


def _planned_gangs(state: CycleState) -> list[PendingGang]:
    """Return one part of each gang that has plans for its parts."""
    first: dict[str, PendingGang] = {}
    for name in sorted(state.plans) if state.part_ids else ():
        pending = state.pending_gangs[name]
        if pending.gang.part_info is not None:
            first.setdefault(pending.gang.whole_id, pending)
    return list(first.values())


def _start_on_other_nodes(state: CycleState, pending: PendingGang) -> bool:
    parts = pending_parts(state, pending.gang)
    if not all(part.gang.id in state.plans for part in parts):
        return False
    with state.trial() as trial:
        ready = all(_is_part_ready(state, part) or _move_plan(state, part) for part in parts)
        if ready and start_ready_gang(state, pending):
            trial.commit()
            return True
    return False


def _move_plan(state: CycleState, part: PendingGang) -> bool:
    """Plan a part for free nodes. False: it does not fit, and its plan is lost."""
    plan = state.plans[part.gang.id]
    pool_state = state.pool_states[plan.pool]
    release_plan(pool_state, part, plan)
    nodes = (
        find_other_nodes(pool_state, part, plan)
        if pool_state.tenant_usage.is_within_limit(part.tenant, part.min_members)
        else None
    )
    if nodes is None:
        return False
    state.move_plan(part.gang.id, nodes, keeps_leaves=True)
    return True


def drop_incomplete_plans(state: CycleState) -> bool:
    """Drop the plans of gangs of which another part has no plan any more; return whether there are any."""
    dropped = False
    for pending in _planned_gangs(state):
        parts = pending_parts(state, pending.gang)
        if all(state.is_decided(part.gang.id) for part in parts):
            continue
        for part in parts:
            plan: PreemptionPlan | None = state.plans.get(part.gang.id)
            if plan is not None:
                release_plan(state.pool_states[plan.pool], part, plan)
                state.remove_plan(part)
                state.note_freed_capacity()
                dropped = True
    return dropped
