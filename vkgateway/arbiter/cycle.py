"""One cycle: everything at one moment in, all decisions out. The same input gives the same decisions."""

from __future__ import annotations

from vkgateway.arbiter.borrowed import start_borrowed
from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.elastic import grow
from vkgateway.arbiter.facts import Snapshot
from vkgateway.arbiter.guaranteed import start_guaranteed
from vkgateway.arbiter.holds import explain
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.plans import keep_plans, spare, start_elsewhere


def decide(snapshot: Snapshot, now: float) -> Decisions:
    """Who starts where, who must go for whom, who may stay after all, and why everybody else waits.

    `now` is in seconds since the epoch. What was decided before is told by the snapshot alone: by the states of pods,
    and by the plans of the last cycle (`Gang.plan`), without which they are made anew.
    """
    ledger = Ledger(snapshot, now)
    keep_plans(ledger)
    for standing in ledger.standings.values():
        standing.promote()
    start_guaranteed(ledger)
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
