"""One cycle: everything at one moment in, all decisions out. The same input gives the same decisions."""

from __future__ import annotations

from dataclasses import replace

from vkgateway.arbiter.borrowed import overtaken, start_borrowed
from vkgateway.arbiter.carry import Carry
from vkgateway.arbiter.decisions import Decisions, Hold
from vkgateway.arbiter.elastic import grow
from vkgateway.arbiter.facts import Snapshot
from vkgateway.arbiter.fitting import IntArray
from vkgateway.arbiter.guaranteed import start_guaranteed
from vkgateway.arbiter.hastening import hasten
from vkgateway.arbiter.holds import explain
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.moving import move
from vkgateway.arbiter.otherpool import start_in_another_pool
from vkgateway.arbiter.outcome import changed_by, not_started, one_after_the_other, torn_by, without
from vkgateway.arbiter.partholds import holds_of_whole_gangs
from vkgateway.arbiter.plans import any_plan_lacks_reserve, keep_plans, start_elsewhere, start_ready
from vkgateway.arbiter.preemption import preempt_left
from vkgateway.arbiter.sparing import spare
from vkgateway.arbiter.together import drop_incomplete, start_ready_together
from vkgateway.arbiter.wholes import whole_decisions

_ROUNDS = 8
"""Which victims may stay after all, or what is inside its cells now, is found at a cycle's end and may change what
other gangs get; so there is a second round then, and seldom more. Rounds that withdraw a start come on top: each bars a
gang for the rest of the cycle, so they end, too."""


def decide(snapshot: Snapshot, now: float, carry: Carry | None = None, *, foresee: bool = True) -> Decisions:
    """Who starts where, who must go for whom, who may stay after all, and why everybody else waits.

    `now` is in seconds since the epoch. What was decided before is told by the snapshot alone: by the states of pods,
    and by the plans of the last cycle (`Gang.plan`), without which they are made anew. `carry`, handed in again and
    again, only saves time. `foresee`: tell when gangs of the line start; nothing else depends on it.
    """
    carry = carry if carry is not None else Carry()
    try:
        return _decide(snapshot, now, carry, foresee=foresee)
    except BaseException:
        carry.clear()
        raise


def _decide(snapshot: Snapshot, now: float, carry: Carry, *, foresee: bool) -> Decisions:
    decisions: Decisions | None = None
    told: frozenset[str] = frozenset()
    admitted: dict[str, str] = {}
    carry.follow(snapshot, now)
    barred: set[str] = set()
    left = _ROUNDS
    while True:
        for standing in carry.standings.values():
            standing.begin(now)
        ledger = Ledger(carry, snapshot.policy, now, barred)
        turn = _round(ledger)
        found = _decided(ledger)
        if decisions is None:
            told = ledger.told_before()
        withdrawn = admitted.keys() & {uid for evict in found.evicts for uid in evict.pods}
        if withdrawn and decisions is not None:
            # It was only about to start: for whoever needs its room it does not, nor does it try again in this cycle.
            _rewind(carry)
            gangs = [carry.told[name] for name in sorted({admitted.pop(uid) for uid in withdrawn})]
            barred.update(name for gang in gangs for name in gang.kin)
            carry.go_on(not_started(gangs, withdrawn), now)
            decisions = without(decisions, withdrawn)
            continue
        left -= 1
        torn = torn_by(found, decisions, admitted, carry.told)
        if torn:
            found = without(found, torn)
        more = left > 0 and bool(torn or _unsettled(ledger, found, turn))
        changed = changed_by(found, carry.told, carry.planned, now) if more else {}
        # A round that changes nothing would be followed by equal ones.
        unsettled = more and bool(torn or changed)
        if not unsettled:
            found = replace(found, holds=_holds(ledger, turn, foresee=foresee))
        _rewind(carry)
        admitted |= {uid: admit.gang for admit in found.admits for uid in admit.nodes}
        decisions = found if decisions is None else without(one_after_the_other(decisions, found, told=told), torn)
        if not unsettled:
            break
        names = sorted({admitted.pop(uid) for uid in torn & admitted.keys()})
        waiting = not_started((changed.get(name, carry.told[name]) for name in names), torn)
        carry.go_on(changed | waiting, now)
    assert decisions is not None
    return whole_decisions(decisions, carry.parts)


def _holds(ledger: Ledger, turn: IntArray, *, foresee: bool) -> tuple[Hold, ...]:
    return tuple(holds_of_whole_gangs(ledger, explain(ledger, turn, foresee=foresee)))


def _rewind(carry: Carry) -> None:
    for standing in carry.standings.values():
        standing.rewind()


def _unsettled(ledger: Ledger, found: Decisions, turn: IntArray) -> bool:
    """Whether another round may decide more."""
    if found.evicts or found.reprieves or found.promotes or ledger.planned() or ledger.freed:
        return True  # of those planned for before, some are so no more: what was kept for them is not free yet
    # Where nodes are missing, whose cells are reduced depends on what runs in them.
    inside = any(not admit.borrowed for admit in found.admits)
    if inside and any(standing.cells.losses() for standing in ledger.standings.values()):
        return True
    return bool(found.admits) and (
        overtaken(ledger, turn) or _may_be_called_in(ledger, found) or any_plan_lacks_reserve(ledger)
    )


def _may_be_called_in(ledger: Ledger, found: Decisions) -> bool:
    """Whether a gang in several pools may need for a guarantee what starts now and borrows.

    While another of its parts borrows, it has its turn after those, and evicts nothing that is only about to start.
    """
    waits = {key for ask in ledger.guaranteed() if ask.gang.part is not None for key in ask.pools}
    return any(admit.borrowed and admit.pool in waits for admit in found.admits)


def _round(ledger: Ledger) -> IntArray:
    """All of the steps; returns the gangs that borrow, in their turn."""
    keep_plans(ledger, borrowed=False)
    start_guaranteed(ledger)
    while start_elsewhere(ledger) or start_in_another_pool(ledger):
        start_guaranteed(ledger)
    hasten(ledger)
    spare(ledger, unkept=ledger.planned())
    start_ready(ledger)
    keep_plans(ledger, borrowed=True)
    drop_incomplete(ledger)
    start_ready_together(ledger)
    start_elsewhere(ledger)
    turn = start_borrowed(ledger)
    preempt_left(ledger)
    spare(ledger)
    while move(ledger) or drop_incomplete(ledger):
        spare(ledger)
    start_ready(ledger)
    start_ready_together(ledger)
    grow(ledger)
    return turn


def _decided(ledger: Ledger) -> Decisions:
    return Decisions(
        admits=tuple(ledger.admits()),
        evicts=tuple(ledger.evicts),
        reprieves=tuple(ledger.reprieves()),
        promotes=tuple(ledger.promotes()),
        plans=dict(ledger.plans),
        losses=tuple(loss for standing in ledger.standings.values() for loss in standing.cells.losses()),
    )
