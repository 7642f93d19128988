"""Plans inside guarantees that wait for pods which take long to end: others go in their stead, where any can."""

from __future__ import annotations

from collections.abc import Set

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Plan
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.plans import carry_out, find_room, inside_of, let_go
from vkgateway.arbiter.standing import Standing


def hasten(ledger: Ledger) -> None:
    """Make such plans anew: who ends may take longer than was known, and others may be there who can go."""
    plans = [(name, plan) for name, plan in sorted(ledger.plans.items()) if not plan.borrowed]
    slow = {key: ledger.ends_late(ledger.standings[key]) for key in sorted({plan.pool for _, plan in plans})}
    for name, plan in plans:
        ask, standing, without = ledger.asks[name], ledger.standings[plan.pool], slow[plan.pool]
        if without and not _holds_without(standing, ask, plan, without):
            _plan_anew(ledger, standing, ask, plan)


def _holds_without(standing: Standing, ask: Ask, plan: Plan, slow: Set[str]) -> bool:
    there = set(plan.nodes.values())
    mark = standing.room.mark()
    standing.give(pod for uid, pod in standing.leaving.items() if pod.node in there and uid not in slow)
    found = standing.holds(ask.core, plan.nodes)
    standing.room.undo(mark)
    return found


def _plan_anew(ledger: Ledger, standing: Standing, ask: Ask, plan: Plan) -> None:
    mark, held = standing.room.mark(), standing.cells.mark()
    let_go(standing, ask, plan)
    for pod in ask.core:
        standing.count(ask.tenant, pod, -1)
    making = find_room(ledger, standing, ask, standing.evictable, inside=inside_of(standing, ask, ask.core))
    for pod in ask.core:
        standing.count(ask.tenant, pod)
    if making is None or not making.evicts:
        standing.room.undo(mark)
        standing.cells.undo(held)
    else:
        ledger.unplan(ask)
        carry_out(ledger, standing, ask, making)
