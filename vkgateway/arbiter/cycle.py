"""One cycle: everything at one moment in, all decisions out. The same input gives the same decisions."""

from __future__ import annotations

from vkgateway.arbiter.borrowed import start_borrowed
from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.elastic import grow
from vkgateway.arbiter.facts import PodState, Snapshot
from vkgateway.arbiter.guaranteed import start_guaranteed
from vkgateway.arbiter.holds import explain
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.outcome import carried_out, one_after_the_other
from vkgateway.arbiter.plans import keep_plans, start_elsewhere
from vkgateway.arbiter.sparing import spare

_ROUNDS = 4
"""Who may stay after all, or is inside its cells now, is found at a cycle's end and may change what others get; so
there is a second round then, and seldom a third."""


def decide(snapshot: Snapshot, now: float) -> Decisions:
    """Who starts where, who must go for whom, who may stay after all, and why everybody else waits.

    `now` is in seconds since the epoch. What was decided before is told by the snapshot alone: by the states of pods,
    and by the plans of the last cycle (`Gang.plan`), without which they are made anew.
    """
    told = frozenset(pod.uid for gang in snapshot.gangs for pod in gang.pods if pod.state is PodState.NOTIFIED)
    decisions = last = _round(snapshot, now)
    for _ in range(_ROUNDS - 1):
        if not (last.evicts or last.reprieves or last.promotes):
            break
        snapshot = carried_out(snapshot, last, now)
        last = _round(snapshot, now)
        decisions = one_after_the_other(decisions, last, told=told)
    return decisions


def _round(snapshot: Snapshot, now: float) -> Decisions:
    ledger = Ledger(snapshot, now)
    keep_plans(ledger, borrowed=False)
    for standing in ledger.standings.values():
        standing.promote()
    start_guaranteed(ledger)
    while start_elsewhere(ledger):
        start_guaranteed(ledger)
    spare(ledger)
    keep_plans(ledger, borrowed=True)
    start_elsewhere(ledger)
    turn = start_borrowed(ledger)
    spare(ledger)
    grow(ledger)
    return Decisions(
        admits=tuple(ledger.admits()),
        evicts=tuple(ledger.evicts),
        reprieves=tuple(ledger.reprieves()),
        promotes=tuple(ledger.promotes()),
        holds=tuple(explain(ledger, turn)),
        plans=dict(ledger.plans),
    )
