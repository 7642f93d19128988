"""One cycle: everything at one moment in, all decisions out. The same input gives the same decisions."""

from __future__ import annotations

from dataclasses import replace

from vkgateway.arbiter.cache import Cache
from vkgateway.arbiter.capacity.node_fit import IntArray
from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.decisions import Decisions, PendingReport
from vkgateway.arbiter.outcome import changed_gangs, find_broken_starts, merge_decisions, remove_starts, without_starts
from vkgateway.arbiter.phases.borrowing import is_overtaken, start_borrowing_gangs
from vkgateway.arbiter.phases.elastic_growth import grow_gangs
from vkgateway.arbiter.phases.guaranteed_starts import start_guaranteed_gangs
from vkgateway.arbiter.phases.multi_pool_gangs import drop_incomplete_plans, start_ready_gangs
from vkgateway.arbiter.phases.plan_moves import move_plans
from vkgateway.arbiter.phases.plan_replacement import replan_slow_plans
from vkgateway.arbiter.phases.pool_switch import start_in_another_pool
from vkgateway.arbiter.phases.preemption_plans import (
    any_plan_lacks_reserve,
    keep_plans,
    start_on_other_nodes,
    start_ready_plans,
)
from vkgateway.arbiter.phases.reprieves import reprieve_victims
from vkgateway.arbiter.phases.tenant_preemption import preempt_within_tenants
from vkgateway.arbiter.reasons.multi_pool_reasons import merge_part_reports
from vkgateway.arbiter.reasons.pending_reasons import explain_pending
from vkgateway.arbiter.snapshot import Snapshot
from vkgateway.arbiter.whole_gangs import merge_part_decisions

_MAX_ROUNDS = 8
"""Which victims may stay after all, or what is inside its cells now, is found at a cycle's end and may change what
other gangs get; so there is a second round then, and seldom more. Rounds that withdraw a start come on top: each bars a
gang for the rest of the cycle, so they end, too."""


def decide(snapshot: Snapshot, now: float, carry: Cache | None = None, *, foresee: bool = True) -> Decisions:
    """Who starts where, who must go for whom, who may stay after all, and why everybody else waits.

    `now` is in seconds since the epoch. What was decided before is told by the snapshot alone: by the states of pods,
    and by the plans of the last cycle (`Gang.plan`), without which they are made anew. `carry`, handed in again and
    again, only saves time. `foresee`: tell when gangs of the line start; nothing else depends on it.
    """
    carry = carry if carry is not None else Cache()
    try:
        return _run_cycle(snapshot, now, carry, foresee=foresee)
    except BaseException:
        carry.clear()
        raise


def _run_cycle(snapshot: Snapshot, now: float, carry: Cache, *, foresee: bool) -> Decisions:
    decisions: Decisions | None = None
    told: frozenset[str] = frozenset()
    admitted: dict[str, str] = {}
    carry.apply_snapshot(snapshot, now)
    barred: set[str] = set()
    left = _MAX_ROUNDS
    while True:
        for standing in carry.pool_states.values():
            standing.begin_cycle(now)
        ledger = CycleState(carry, snapshot.policy, now, barred)
        turn = _run_round(ledger)
        found = _collect_decisions(ledger)
        if decisions is None:
            told = ledger.notified_uids()
        withdrawn = admitted.keys() & {uid for evict in found.evicts for uid in evict.pods}
        if withdrawn and decisions is not None:
            # It was only about to start: for whoever needs its room it does not, nor does it try again in this cycle.
            _rewind_pools(carry)
            gangs = [carry.snapshot_gangs[name] for name in sorted({admitted.pop(uid) for uid in withdrawn})]
            barred.update(name for gang in gangs for name in gang.part_ids)
            carry.apply_changed_gangs(without_starts(gangs, withdrawn), now)
            decisions = remove_starts(decisions, withdrawn)
            continue
        left -= 1
        torn = find_broken_starts(found, decisions, admitted, carry.snapshot_gangs)
        if torn:
            found = remove_starts(found, torn)
        more = left > 0 and bool(torn or _is_unsettled(ledger, found, turn))
        changed = changed_gangs(found, carry.snapshot_gangs, carry.planned_gangs, now) if more else {}
        # A round that changes nothing would be followed by equal ones.
        unsettled = more and bool(torn or changed)
        if not unsettled:
            found = replace(found, holds=_explain_pending(ledger, turn, foresee=foresee))
        _rewind_pools(carry)
        admitted |= {uid: admit.gang for admit in found.admits for uid in admit.nodes}
        decisions = found if decisions is None else remove_starts(merge_decisions(decisions, found, told=told), torn)
        if not unsettled:
            break
        names = sorted({admitted.pop(uid) for uid in torn & admitted.keys()})
        waiting = without_starts((changed.get(name, carry.snapshot_gangs[name]) for name in names), torn)
        carry.apply_changed_gangs(changed | waiting, now)
    assert decisions is not None
    return merge_part_decisions(decisions, carry.parts)


def _explain_pending(ledger: CycleState, turn: IntArray, *, foresee: bool) -> tuple[PendingReport, ...]:
    return tuple(merge_part_reports(ledger, explain_pending(ledger, turn, forecast=foresee)))


def _rewind_pools(carry: Cache) -> None:
    for standing in carry.pool_states.values():
        standing.end_cycle()


def _is_unsettled(ledger: CycleState, found: Decisions, turn: IntArray) -> bool:
    """Whether another round may decide more."""
    if found.evicts or found.reprieves or found.promotes or ledger.planned_gangs() or ledger.has_freed_capacity:
        return True  # of those planned for before, some are so no more: what was kept for them is not free yet
    # Where nodes are missing, whose cells are reduced depends on what runs in them.
    inside = any(not admit.borrowed for admit in found.admits)
    if inside and any(standing.cells.guarantee_losses() for standing in ledger.pool_states.values()):
        return True
    return bool(found.admits) and (
        is_overtaken(ledger, turn) or _may_be_reclaimed(ledger, found) or any_plan_lacks_reserve(ledger)
    )


def _may_be_reclaimed(ledger: CycleState, found: Decisions) -> bool:
    """Whether a gang in several pools may need for a guarantee what starts now and borrows.

    While another of its parts borrows, it has its turn after those, and evicts nothing that is only about to start.
    """
    waits = {key for ask in ledger.guaranteed_gangs() if ask.gang.part_info is not None for key in ask.allowed_pools}
    return any(admit.borrowed and admit.pool in waits for admit in found.admits)


def _run_round(ledger: CycleState) -> IntArray:
    """All of the steps; returns the gangs that borrow, in their turn."""
    keep_plans(ledger, borrowed=False)
    start_guaranteed_gangs(ledger)
    while start_on_other_nodes(ledger) or start_in_another_pool(ledger):
        start_guaranteed_gangs(ledger)
    replan_slow_plans(ledger)
    reprieve_victims(ledger, unkept=ledger.planned_gangs())
    start_ready_plans(ledger)
    keep_plans(ledger, borrowed=True)
    drop_incomplete_plans(ledger)
    start_ready_gangs(ledger)
    start_on_other_nodes(ledger)
    turn = start_borrowing_gangs(ledger)
    preempt_within_tenants(ledger)
    reprieve_victims(ledger)
    while move_plans(ledger) or drop_incomplete_plans(ledger):
        reprieve_victims(ledger)
    start_ready_plans(ledger)
    start_ready_gangs(ledger)
    grow_gangs(ledger)
    return turn


def _collect_decisions(ledger: CycleState) -> Decisions:
    return Decisions(
        admits=tuple(ledger.merged_admits()),
        evicts=tuple(ledger.evicts),
        reprieves=tuple(ledger.find_reprieves()),
        promotes=tuple(ledger.find_promotes()),
        plans=dict(ledger.plans),
        losses=tuple(loss for standing in ledger.pool_states.values() for loss in standing.cells.guarantee_losses()),
    )
