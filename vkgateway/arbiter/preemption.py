"""Preemption within a tenant: a gang takes the room, the limit and the cells of gangs of its tenant of a lower rank.

It takes nothing of other tenants. Free room goes by queue order, so preemption comes after all gangs had their turn.
Room that is promised to the gang with the reservation is not the victims' to leave: a gang that preempts outside its
guarantee must do without it, or end before the reservation starts. The age of a gang, which raises its place in the
queue, gives it no right to preempt; but while a gang has waited for long, later ones of its rank preempt nothing, or
it would never have its room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from vkgateway.arbiter.accounts import total_of
from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.bestpool import best, cost
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.enough import could_fit_without
from vkgateway.arbiter.evictable import Evictable
from vkgateway.arbiter.facts import GUARANTEED, LOW, PLACED, Gang, Pod
from vkgateway.arbiter.feasible import feasible, impossible
from vkgateway.arbiter.forecast import Reservation
from vkgateway.arbiter.inside import hold_where_placed
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.line import comes_after
from vkgateway.arbiter.ownroom import own_victims
from vkgateway.arbiter.plans import Making, among, pods_of
from vkgateway.arbiter.reserve import reserve_for
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.together import try_together, undecided_parts
from vkgateway.arbiter.victims import Choice, choose
from vkgateway.model.requests import Milli

_MANY = 32
"""Gangs for which a cycle searches victims at most: more would take too long."""


def preempt_left(ledger: Ledger) -> None:
    """Plan the starts of gangs that still wait after all had their turn, in the place of lower work of their tenants.

    A victim that is spared later in the cycle may go for another gang, so whatever is planned calls for another round.
    """
    for ask in _candidates(ledger)[:_MANY]:
        if not ledger.is_decided(ask) and not _is_behind(ledger, ask) and _preempt_with_the_rest(ledger, ask):
            ledger.freed = True
            for standing in ledger.standings.values():
                if standing.reservation is not None and standing.reservation.gang in ask.gang.kin:
                    standing.reservation = None


def _preempt_with_the_rest(ledger: Ledger, ask: Ask) -> bool:
    """Plan the start of a gang, or of all parts of one in several pools."""
    if ask.gang.part is None:
        pools = [standing for standing in ledger.pools(ask) if _has_lower(standing, ask)]
        return _preempt_in_any(ledger, pools, ask)
    parts = undecided_parts(ledger, ask)
    return try_together(ledger, parts, lambda pools, part: _preempt_in_any(ledger, pools, part)) is None


def _preempt_in_any(ledger: Ledger, pools: Iterable[Standing], ask: Ask) -> bool:
    possible = [standing for standing in pools if not impossible(standing, ask)]
    return _preempt_at_best(ledger, possible, ask)


def _candidates(ledger: Ledger) -> list[Ask]:
    """Gangs that wait and outrank something that runs, the first of each tenant's equals, in the order of rank."""
    needy = ledger.needy
    lowest = np.full((2, len(needy.tenants)), np.inf)
    for tenant, number in needy.tenants.items():
        for standing in ledger.standings.values():
            for is_low in (0, 1):
                found = standing.ranks.lowest(tenant, LOW if is_low else GUARANTEED)
                if found is not None:
                    lowest[is_low, number] = min(lowest[is_low, number], found)
    if not np.isfinite(lowest).any():
        return []
    lower_low, lower_guaranteed = lowest[1, needy.tenant], lowest[0, needy.tenant]
    outranks = np.where(
        needy.low,
        needy.priority > lower_low,
        np.isfinite(lower_low) | (needy.priority > lower_guaranteed),
    )
    left = np.flatnonzero(ledger.waiting() & outranks)
    order = left[np.lexsort((needy.created[left], -needy.priority[left], needy.low[left]))]
    _, firsts = np.unique(needy.alike[order], return_index=True)
    asks = (needy.asks[index] for index in order[np.sort(firsts)].tolist())
    return [ask for ask in asks if ask.gang.preempts and ask.gang.id not in ledger.barred]


def _has_lower(standing: Standing, ask: Ask) -> bool:
    return standing.ranks.has_lower(ask.gang, by_priority=standing.preempts(ask.tenant))


def _is_behind(ledger: Ledger, ask: Ask) -> bool:
    """Whether the room of lower work is for another gang of its tenant, which has waited for long."""
    needy = ledger.needy
    own = needy.tenant == needy.tenants[ask.tenant]
    aged = needy.created <= min(ledger.now - ledger.policy.age_cap, ask.gang.created)
    return any(
        ahead.gang.preempts and comes_after(ask.gang, ahead.gang) and _would_take_room(ledger, ask, ahead)
        for ahead in needy.where(ledger.waiting() & own & aged)
    )


def _would_take_room(ledger: Ledger, ask: Ask, ahead: Ask) -> bool:
    """Whether another gang could start in a pool if all else were gone, but could not preempt this one there."""
    return any(
        standing.pool.key in ask.pools
        and not standing.may_preempt(ahead.gang, ask.gang)
        and feasible(standing, ahead)
        and not standing.missing_of_limit(ahead.tenant, ahead.core, [standing.used.get(ahead.tenant, {})])
        for standing in ledger.pools(ahead)
    )


def yields(ledger: Ledger, standing: Standing, ask: Ask) -> bool:
    """Whether a gang waits for one of its tenant that may preempt it, and that is planned to borrow in this pool.

    Such plans are kept later in the cycle. What their victims leave, cells included, is not for the victims'
    replacements.
    """
    return any(
        each.gang.plan is not None
        and each.gang.plan.pool == standing.pool.key
        and not ledger.is_decided(each)
        and standing.may_preempt(each.gang, ask.gang)
        for each in ledger.to_borrow.get(ask.tenant, ())
    )


def _preempt_at_best(ledger: Ledger, pools: Sequence[Standing], ask: Ask) -> bool:
    found = [(standing, making) for standing in pools if (making := _making(ledger, standing, ask)) is not None]
    if not found:
        return False
    standing, making = best(found, lambda each: cost(each[0], ask, each[1], ledger.now))
    _carry_out(ledger, standing, ask, making)
    return True


def _making(ledger: Ledger, standing: Standing, ask: Ask) -> Making | None:
    """Return the victims among the tenant's lower work, and where the gang is placed then; None: it does not fit.

    A guarantee waits neither for a reservation nor for the pool's reserve: that room is used where the gang is inside
    its guarantee in it.
    """
    if not could_fit_without(standing, ask, _could_leave(ledger, standing, ask)):
        return None
    lower = _lower(ledger, standing, ask)
    told = list(_notified(ledger, standing, ask))
    if not len(lower) and not told and ask.gang.part is None:
        return None
    promised, reserve = _promised(ledger, standing, ask, lower), reserve_for(standing, ask.core)
    making = _choose(ledger, standing, ask, lower, told, promised=promised, reserve=reserve)
    if making is not None or (promised is None and not reserve) or ask.gang.band is not GUARANTEED:
        return making
    making = _choose(ledger, standing, ask, lower, told, promised=None, reserve=0)
    return making if making is not None and _is_inside(standing, ask, making) else None


def _choose(
    ledger: Ledger,
    standing: Standing,
    ask: Ask,
    lower: Evictable,
    told: Sequence[tuple[Gang, Pod]],
    *,
    promised: Reservation | None,
    reserve: int,
) -> Making | None:
    """Search victims for the limit and for the room, without using what is `promised`; see `_choose_beside`."""
    mark, coming = standing.room.mark(), _coming(ledger, standing, told)
    if promised is not None:
        _hide(ledger, standing, promised, lower, coming)
    missing = standing.missing_of_limit(ask.tenant, ask.core, _gone(standing, ask, told))
    making = None
    for own in own_victims(standing, ask, missing, None, evictable=lower, coming=coming, now=ledger.now):
        found = _choose_beside(ledger, standing, ask, lower=lower, own=own, coming=coming, told=told, reserve=reserve)
        if found is not None:
            choice, leaves = found
            evicts = *_needed(standing, ask, own, choice, told), *choice.evicts
            making = Making(choice, evicts, told, None, leaves)
            break
    standing.room.undo(mark)
    return making


def _choose_beside(
    ledger: Ledger,
    standing: Standing,
    ask: Ask,
    *,
    lower: Evictable,
    own: Sequence[Evict],
    coming: Sequence[Pod],
    told: Sequence[tuple[Gang, Pod]],
    reserve: int,
) -> tuple[Choice, int | None] | None:
    """Return the victims for the room, and what the gang's plan leaves idle (`Plan.leaves`).

    If it takes more than its victims leave, the reserve (thousandths of the unit) must be idle beside it. `own`:
    victims for the limit.
    """
    victims = pods_of(standing, own)
    mark = standing.room.mark()
    for only_own in (False, True) if reserve else (False,):
        if only_own:
            standing.room.take_idle()
        choice = choose(
            standing.room,
            lower,
            ask.gang,
            ask.core,
            now=ledger.now,
            among=among(standing, ask),
            coming=[*coming, *victims],
            exempt={evict.gang for evict in own},
        )
        standing.room.undo(mark)
        if choice is None:
            return None
        before, after = _idle(standing, ask, choice, [*victims, *(pod for _, pod in told)]) if reserve else (0, 0)
        if after >= min(reserve, before):
            return choice, min(reserve, before) if reserve and after >= before else None
    return None


def _idle(standing: Standing, ask: Ask, choice: Choice, mine: Iterable[Pod]) -> tuple[int, int]:
    """Return what is idle, in thousandths, when all have gone who leave: without the gang and its victims, and with it.

    `mine`: pods of its tenant that may leave for it, besides those of the choice. Unless it uses their room, they stay.
    """
    mark = standing.room.mark()
    standing.give(standing.leaving.values())
    before = standing.room.idle
    standing.give(pod for pod in mine if pod.uid in choice.awaits and pod.uid not in standing.leaving)
    standing.give(pods_of(standing, choice.evicts))
    standing.take(ask.core, choice.nodes)
    after = standing.room.idle
    standing.room.undo(mark)
    return before, after


def _coming(ledger: Ledger, standing: Standing, told: Iterable[tuple[Gang, Pod]]) -> list[Pod]:
    """Return the pods that leave in time, for whatever reason, and those that were notified for the gang before."""
    slow = ledger.ends_late(standing)
    return [pod for uid, pod in standing.leaving.items() if uid not in slow] + [pod for _, pod in told]


def _notified(ledger: Ledger, standing: Standing, ask: Ask) -> Iterator[tuple[Gang, Pod]]:
    """Yield pods that were notified for the gang, or may be preempted by it, and that no other gang counts on."""
    for gang, pod in ledger.told(standing):
        mine = gang.tenant == ask.tenant and pod.uid not in standing.leaving
        if mine and (pod.evicted_for == ask.gang.whole or standing.may_preempt(ask.gang, gang)):
            yield gang, pod


def _promised(ledger: Ledger, standing: Standing, ask: Ask, lower: Evictable) -> Reservation | None:
    """Return the reservation of another gang, unless this one ends before it starts."""
    kept = standing.reservation
    if kept is None or kept.gang in ask.gang.kin:
        return None
    begins = ledger.now + max((gang.notice + gang.grace for gang in _gangs_of(standing, lower)), default=0.0)
    return None if ask.gang.part is None and kept.lets(standing.ends, ask.gang, begins) else kept


def _gangs_of(standing: Standing, lower: Evictable) -> Iterator[Gang]:
    return (standing.gangs[name] for name in lower.gangs())


def _hide(ledger: Ledger, standing: Standing, kept: Reservation, lower: Evictable, coming: Iterable[Pod]) -> None:
    """Take the room that a reservation needs: what is free, what becomes free, and what its start counts on as gone.

    To be undone. What `lower` leaves is counted on where it borrows the reserved place, is surplus, or ends before.
    """
    lent = {pod.uid for pod in standing.callable_for(ledger.gangs[kept.gang].whole).pods()}
    leaves = {pod.uid: pod for pod in coming}
    counted = {pod.uid: pod for gang in _gangs_of(standing, lower) for pod in _placed(standing, gang)}
    counted = {uid: pod for uid, pod in counted.items() if uid in lent or kept.starts_after(standing.ends, uid)}
    counted |= {uid: pod for uid, pod in leaves.items() if kept.starts_after(standing.ends, uid)}
    kept.narrow(
        standing.room,
        counted=[(pod.node, pod.shape) for pod in counted.values()],
        coming=[(pod.node, pod.shape) for uid, pod in leaves.items() if uid not in counted],
    )


def _lower(ledger: Ledger, standing: Standing, ask: Ask) -> Evictable:
    """What the gang may preempt, pods inside their cells among it. What starts in this very cycle is left alone."""
    lower = Evictable(standing.pool.key, standing.pool.unit)
    for name in standing.ranks.of(ask.tenant):
        gang = standing.gangs[name]
        if standing.may_preempt(ask.gang, gang) and all(pod.since < ledger.now for pod in _placed(standing, gang)):
            lower.put(replace(gang, pods=tuple(replace(pod, borrowed=True) for pod in gang.pods)))
    return lower


def _could_leave(ledger: Ledger, standing: Standing, ask: Ask) -> Iterator[Pod]:
    """Yield all pods whose room the gang might use: what it may preempt, and whatever leaves; some of them twice."""
    for name in standing.ranks.of(ask.tenant):
        if standing.may_preempt(ask.gang, gang := standing.gangs[name]):
            yield from (pod for pod in gang.pods if standing.has(pod))
    yield from standing.leaving.values()
    yield from (pod for _, pod in _notified(ledger, standing, ask))


def _placed(standing: Standing, gang: Gang) -> Iterator[Pod]:
    return (pod for pod in gang.pods if pod.state is PLACED and standing.has(pod))


def _gone(standing: Standing, ask: Ask, told: Iterable[tuple[Gang, Pod]]) -> list[Milli]:
    return [standing.leaving.of(ask.tenant), total_of(pod for _, pod in told)]


def _needed(
    standing: Standing, ask: Ask, own: Sequence[Evict], choice: Choice, told: Sequence[tuple[Gang, Pod]]
) -> list[Evict]:
    """Return the victims for the limit that are needed beside those for the room; the dearest stay."""
    left = list(own)
    for evict in sorted(own, key=lambda each: (-each.lost, each.gang)):
        if not {pod.uid for pod in pods_of(standing, [evict])}.isdisjoint(choice.awaits):
            continue
        others = [each for each in left if each is not evict]
        leaves = total_of(pods_of(standing, [*others, *choice.evicts]))
        if not standing.missing_of_limit(ask.tenant, ask.core, [*_gone(standing, ask, told), leaves]):
            left = others
    return left


def _carry_out(ledger: Ledger, standing: Standing, ask: Ask, making: Making) -> None:
    """Plan the gang's start there: inside its guarantee where cells hold it, those of its victims included."""
    inside = _hold_cells(standing, ask, making)
    standing.take(ask.core, making.choice.nodes)
    standing.leaving.add(ask.tenant, [pod for _, pod in making.told])
    ledger.plan(
        ask,
        standing,
        making.choice.nodes,
        inside=inside,
        made=ledger.next_made(),
        evicts=making.evicts,
        leaves=None if inside else making.leaves,
    )


def _is_inside(standing: Standing, ask: Ask, making: Making) -> bool:
    """Return whether the gang would be inside its guarantee; the pool is left as it was."""
    before = standing.checkpoint()
    inside = _hold_cells(standing, ask, making)
    standing.go_back(before)
    return inside


def _hold_cells(standing: Standing, ask: Ask, making: Making) -> bool:
    """Release the victims' cells, and hold the gang's where it would be placed; return whether cells hold it."""
    placed = [(pod, making.choice.nodes[pod.uid]) for pod in ask.core]
    standing.demote(ask.tenant, [*(pod for _, pod in making.told), *pods_of(standing, making.evicts)])
    return (
        ask.gang.band is GUARANTEED
        and standing.allows_inside(ask.gang, ask.core)
        and hold_where_placed(standing.cells, ask.tenant, standing.pool.unit, placed)
    )
