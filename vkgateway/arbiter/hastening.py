"""Plans inside guarantees that wait for pods which take long to end: others go in their stead, where any can."""

from __future__ import annotations

from collections.abc import Set

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Plan
from vkgateway.arbiter.late import late
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.plans import carry_out, find_room, inside_of, let_go
from vkgateway.arbiter.standing import Standing


def hasten(ledger: Ledger) -> None:
    """Make such plans anew: who ends may take longer than was known, and others may be there who can go."""
    for standing in ledger.standings.values() if ledger.plans else ():
        gangs = (standing.gangs[name] for name in standing.evictable.gangs())
        slow = {pod.uid for pod in late(standing.leaving.values(), gangs, since=ledger.now, now=ledger.now)}
        here = (each for each in sorted(ledger.plans.items()) if slow and each[1].pool == standing.pool.key)
        for name, plan in here:
            if not plan.borrowed and not _holds_without(standing, ledger.asks[name], plan, slow):
                _plan_anew(ledger, standing, ledger.asks[name], plan)


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
