"""Plans of this cycle that were made before others told more pods to go: they move to where nobody goes for them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.facts import Plan, PodState
from vkgateway.arbiter.late import late, takes
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.lots import suffices
from vkgateway.arbiter.plans import elsewhere, let_go
from vkgateway.arbiter.sparing import stands
from vkgateway.arbiter.standing import Standing

_MANY = 16
"""For the plans of so many gangs others' cells are bound anew: more would take too long."""


def move(ledger: Ledger) -> bool:
    """Have those stay who are to be told now, and whose gang could start elsewhere without them; whether there are any.

    Counted on are all others that leave, beside all other plans.
    """
    evicts = [evict for evict in ledger.evicts if _is_new(ledger, evict)]
    moved = [evict for evict in evicts if _move(ledger, evict)]
    if not moved:
        names = list(dict.fromkeys(evict.makes_room_for for evict in evicts))[:_MANY]
        others = {name for name in names if _others_are_bound_otherwise(ledger, name)}
        moved = [evict for evict in evicts if evict.makes_room_for in others and _move(ledger, evict, anew=True)]
    for evict in moved:
        ledger.evicts.remove(evict)
    return bool(moved)


def _others_are_bound_otherwise(ledger: Ledger, name: str) -> bool:
    """Whether the cells of whoever was given something in this cycle would be bound otherwise without this gang."""
    plan, ask = ledger.plans[name], ledger.asks[name]
    standing = ledger.standings[plan.pool]
    if plan.borrowed or not standing.within.moved.keys() - {name}:
        return False
    mark, held = standing.room.mark(), standing.cells.mark()
    let_go(standing, ask, plan)
    found = _bind_anew(ledger, standing)
    standing.room.undo(mark)
    standing.cells.undo(held)
    return found


def _bind_anew(ledger: Ledger, standing: Standing) -> bool:
    return standing.cells.bind_anew({ledger.gangs[name].tenant for name in standing.within.moved})


def _is_new(ledger: Ledger, evict: Evict) -> bool:
    if ledger.gangs[evict.gang].part is not None:
        return False  # It goes, or stays, with the gang's other parts.
    told = {pod.uid for pod in ledger.gangs[evict.gang].pods if pod.state is PodState.NOTIFIED}
    return evict.makes_room_for in ledger.plans and told.isdisjoint(evict.pods)


def _move(ledger: Ledger, evict: Evict, *, anew: bool = False) -> bool:
    """`anew`: with the cells of all others bound anew, as the next cycle would find them."""
    plan = ledger.plans[evict.makes_room_for]
    ask, standing = ledger.asks[evict.makes_room_for], ledger.standings[plan.pool]
    if not _would_run(standing, evict):
        return False
    stay = {uid: standing.leaving[uid] for uid in evict.pods if uid in standing.leaving}
    tenant = ledger.gangs[evict.gang].tenant
    for uid in stay:
        standing.leaving.drop(uid)
    mark, held = standing.room.mark(), standing.cells.mark()
    let_go(standing, ask, plan)
    if anew:
        _bind_anew(ledger, standing)
    slow = late(standing.leaving.values(), takes([standing.gangs[evict.gang]]), since=ledger.now, now=ledger.now)
    without = {pod.uid for pod in slow}
    nodes = _when_all_have_gone(standing, ask, plan, without=without)
    if nodes is not None:
        standing.take(ask.core, nodes)
    if nodes is None or not _others_stand(ledger, standing, ask, without=without):
        standing.room.undo(mark)
        standing.cells.undo(held)
        standing.leaving.add(tenant, stay.values())
        return False
    ledger.plans[ask.gang.id] = replace(plan, nodes=dict(nodes), leaves=None)
    standing.told_nothing(evict)
    return True


def _others_stand(ledger: Ledger, standing: Standing, ask: Ask, *, without: Set[str]) -> bool:
    """Whether all other plans hold when those have gone who leave, without some who end late: they may have counted on
    whoever is to stay."""
    mark = standing.room.mark()
    standing.give(pod for uid, pod in standing.leaving.items() if uid not in without)
    others = ((name, plan) for name, plan in ledger.plans.items() if name != ask.gang.id)
    found = all(stands(standing, ledger.asks[name], plan) for name, plan in others if plan.pool == standing.pool.key)
    standing.room.undo(mark)
    return found


def _would_run(standing: Standing, evict: Evict) -> bool:
    """Whether the gang would run with these pods: if it goes for others at the same time, they go with it."""
    gang, mine = standing.gangs[evict.gang], set(evict.pods)
    if not any(pod.uid in standing.leaving and pod.uid not in mine for pod in gang.pods):
        return True
    there = (pod for pod in gang.pods if pod.state in _THERE and standing.has(pod))
    return suffices(gang, [pod for pod in there if pod.uid in mine or pod.uid not in standing.leaving])


_THERE = (PodState.PLACED, PodState.NOTIFIED)


def _when_all_have_gone(standing: Standing, ask: Ask, plan: Plan, *, without: Set[str]) -> Mapping[str, str] | None:
    """A place that is free when those have gone who leave, without some who end late; its cells are held, its room is
    left as it was."""
    if not standing.within_limit(ask.tenant, ask.core, [standing.leaving.of(ask.tenant)]):
        return None
    mark = standing.room.mark()
    standing.give(pod for uid, pod in standing.leaving.items() if uid not in without)
    nodes = elsewhere(standing, ask, plan)
    standing.room.undo(mark)
    return nodes
