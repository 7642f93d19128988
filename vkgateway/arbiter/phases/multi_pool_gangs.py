"""Gangs in several pools: all parts of a gang start in the same cycle, or none does.

A part that could start while another cannot keeps its place as a plan: other parts may wait for victims to terminate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.phases.preemption_plans import find_other_nodes, is_plan_free, release_plan
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.preemption.eviction_units import has_min_members
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import PLACED, PreemptionPlan

_MAX_CHOICES = 16
"""Choices of one pool for each part of a gang that are tried: more would take too long."""

PartAttempt = Callable[[Sequence[PoolState], PendingGang], bool]
"""Starts or plans a part in one of these pools; False: it fits in none, and nothing was done."""


def undecided_parts(ledger: CycleState, ask: PendingGang) -> list[PendingGang]:
    """Return the parts of a gang for which nothing has been decided in this cycle."""
    return [part for part in ledger.pending_parts(ask.gang) if not ledger.is_decided(part)]


def place_parts(ledger: CycleState, parts: Sequence[PendingGang], attempt: PartAttempt) -> PendingGang | None:
    """Have all parts of a gang start or planned; return the first part for which that fails: then nothing is done."""
    # What may go to one pool only comes first: what may go to several takes what is left.
    order = sorted(parts, key=lambda part: (len(part.allowed_pools), part.gang.id))
    failed: PendingGang | None = order[0]
    for pools in _pool_choices(ledger, order) if _rest_keeps_running(ledger, order[0]) else ():
        before = ledger.take_checkpoint()
        with ledger.only_plans():
            failed = next((part for part in order if not attempt(pools[part.gang.id], part)), None)
        if failed is None:
            start_ready_gang(ledger, order[0])
            return None
        ledger.restore_checkpoint(before)
    return failed


def _pool_choices(ledger: CycleState, parts: Sequence[PendingGang]) -> Iterator[Mapping[str, Sequence[PoolState]]]:
    """Yield by part the pools to try: all of one compute cluster, then each choice of one pool for each part."""
    for cluster in _possible_clusters(ledger, parts):
        each = [[one for one in ledger.usable_pools(part) if one.pool.key[0] == cluster] for part in parts]
        yield {part.gang.id: pools for part, pools in zip(parts, each, strict=True)}
        if sum(len(pools) > 1 for pools in each) > 1:
            for chosen in islice(product(*each), _MAX_CHOICES):
                yield {part.gang.id: [one] for part, one in zip(parts, chosen, strict=True)}


def _possible_clusters(ledger: CycleState, parts: Sequence[PendingGang]) -> Iterator[str]:
    """Yield the compute clusters in which all the parts may run, the one that the first likes best first."""
    decided = {plan.pool[0] for name in parts[0].gang.part_ids if (plan := ledger.plans.get(name)) is not None}
    each = [dict.fromkeys(standing.pool.key[0] for standing in ledger.usable_pools(part)) for part in parts]
    for cluster in each[0]:
        if all(cluster in others for others in each) and decided <= {cluster}:
            yield cluster


def _rest_keeps_running(ledger: CycleState, ask: PendingGang) -> bool:
    """Return whether what runs of the gang goes on running, as far as is decided."""
    kin = set(ask.gang.part_ids)
    if any(evict.whole and evict.gang in kin for evict in ledger.evicts):
        return False
    for name in ask.gang.part_ids:
        part, needs = ledger.gangs.get(name), ledger.pending_gangs.get(name)
        if part is None:
            return False
        stays = [pod for pod in part.pods if pod.state is PLACED]
        if not has_min_members(part, [*stays, *(needs.min_members if needs is not None else ())]):
            return False
    return True


def start_ready_gang(ledger: CycleState, ask: PendingGang) -> bool:
    """Start the gang whose parts all have plans, if their room is free by now."""
    parts = [part for part in ledger.pending_parts(ask.gang) if part.gang.id not in ledger.started]
    if not parts or not all(_is_part_ready(ledger, part) for part in parts):
        return False
    for part in parts:
        plan = ledger.plans[part.gang.id]
        ledger.start_planned(part, ledger.pool_states[plan.pool], plan.nodes)
    # Its surplus, and gangs that wait behind it, may take more than was known while its parts were planned.
    ledger.has_freed_capacity = True
    return True


def _is_part_ready(ledger: CycleState, part: PendingGang) -> bool:
    plan = ledger.plans.get(part.gang.id)
    if plan is None:
        return False
    standing = ledger.pool_states[plan.pool]
    return is_plan_free(standing, part, plan) and standing.is_within_limit(part.tenant, part.min_members)


def start_ready_gangs(ledger: CycleState) -> bool:
    """Start the gangs whose parts' plans can all start, on their nodes or on others; return whether any does."""
    started = False
    for ask in _planned_gangs(ledger):
        started = start_ready_gang(ledger, ask) or _start_on_other_nodes(ledger, ask) or started
    return started


def _planned_gangs(ledger: CycleState) -> list[PendingGang]:
    """Return one part of each gang that has plans for its parts."""
    first: dict[str, PendingGang] = {}
    for name in sorted(ledger.plans) if ledger.part_ids else ():
        ask = ledger.pending_gangs[name]
        if ask.gang.part_info is not None:
            first.setdefault(ask.gang.whole_id, ask)
    return list(first.values())


def _start_on_other_nodes(ledger: CycleState, ask: PendingGang) -> bool:
    parts = ledger.pending_parts(ask.gang)
    if not all(part.gang.id in ledger.plans for part in parts):
        return False
    before = ledger.take_checkpoint()
    if all(_is_part_ready(ledger, part) or _move_plan(ledger, part) for part in parts) and start_ready_gang(
        ledger, ask
    ):
        return True
    ledger.restore_checkpoint(before)
    return False


def _move_plan(ledger: CycleState, part: PendingGang) -> bool:
    """Plan a part for what is free now; False: it does not fit, and its plan is lost."""
    plan = ledger.plans[part.gang.id]
    standing = ledger.pool_states[plan.pool]
    release_plan(standing, part, plan)
    nodes = find_other_nodes(standing, part, plan) if standing.is_within_limit(part.tenant, part.min_members) else None
    if nodes is None:
        return False
    ledger.plans[part.gang.id] = replace(plan, nodes=dict(nodes))
    return True


def drop_incomplete_plans(ledger: CycleState) -> bool:
    """Drop the plans of gangs of which another part has none any more; return whether there were any."""
    dropped = False
    for ask in _planned_gangs(ledger):
        parts = ledger.pending_parts(ask.gang)
        if all(ledger.is_decided(part) for part in parts):
            continue
        for part in parts:
            plan: PreemptionPlan | None = ledger.plans.get(part.gang.id)
            if plan is not None:
                release_plan(ledger.pool_states[plan.pool], part, plan)
                ledger.remove_plan(part)
                ledger.has_freed_capacity = dropped = True
    return dropped
