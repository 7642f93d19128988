"""Preemption within a tenant: a gang takes the room, the limit and the cells of gangs of its tenant of a lower rank.

It takes nothing of others. Free room and room that others leave go by turn, so the first pass (`preempt`), which is
made before that turn, counts on the tenant's own lower work alone; the second one (`preempt_left`) on what is left
after it, too. The age of a gang, which raises its place in the queue, gives it no right to preempt; but while a gang
has waited for long, later ones of its rank preempt nothing, or it would never have its room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from vkgateway.arbiter.accounts import total_of
from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.bestpool import best, cost
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.evictable import Evictable
from vkgateway.arbiter.facts import GUARANTEED, LOW, PLACED, Gang, Pod, Shape
from vkgateway.arbiter.feasible import feasible, impossible
from vkgateway.arbiter.inside import hold_where_placed
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.line import comes_after
from vkgateway.arbiter.ownroom import own_victims
from vkgateway.arbiter.plans import Making, among, place_now
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.together import try_together, undecided_parts
from vkgateway.arbiter.victims import Choice, choose
from vkgateway.model.requests import Milli

_MANY = 32
"""For so many gangs in a cycle the second pass looks for victims: more would take too long."""


def preempt(ledger: Ledger, pools: Iterable[Standing], ask: Ask) -> bool:
    """Plan the start of a gang in the place of lower work of its tenant, if it cannot start in free room.

    Return whether that was done. Where the tenant has plans to borrow from the last cycle, which are kept later, this
    is left to the second pass: what leaves may be for them.
    """
    if any(not ledger.is_decided(each) for each in ledger.to_borrow.get(ask.tenant, ())):
        return False
    reached = list(pools)
    open_to = [standing for standing in reached if _has_lower(standing, ask)]
    if not open_to or any(_fits_free(standing, ask) for standing in reached) or _is_behind(ledger, ask):
        return False
    return _preempt_at_best(ledger, open_to, ask, strict=True)


def preempt_left(ledger: Ledger) -> None:
    """Do the same for gangs that are still waiting after all had their turn, with what room is left.

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
    return _preempt_at_best(ledger, possible, ask, strict=False)


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
    return [ask for ask in asks if ask.gang.preempts]


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


def _fits_free(standing: Standing, ask: Ask) -> bool:
    """Whether the gang could start in what is free, or promised to no one, when its turn comes."""
    if standing.beyond_limit(ask.tenant, ask.core):
        return False
    mark = standing.room.mark()
    standing.give(standing.leaving.values())
    nodes = place_now(standing, ask, ask.core)
    standing.room.undo(mark)
    return nodes is not None


def _preempt_at_best(ledger: Ledger, pools: Sequence[Standing], ask: Ask, *, strict: bool) -> bool:
    found = [
        (standing, making)
        for standing in pools
        if (making := _making(ledger, standing, ask, strict=strict)) is not None
    ]
    if not found:
        return False
    standing, making = best(found, lambda each: cost(each[0], ask, each[1], ledger.now))
    _carry_out(ledger, standing, ask, making)
    return True


def _making(ledger: Ledger, standing: Standing, ask: Ask, *, strict: bool) -> Making | None:
    """Who of the tenant's lower work goes, and where the gang is then; None: whoever goes, it does not fit.

    `strict`: nothing that is free is used, nor what others leave.
    """
    lower, slow = _lower(ledger, standing, ask), ledger.ends_late(standing)
    told = [
        (gang, pod)
        for gang, pod in ledger.told_for(ask.gang.id, standing)
        if gang.tenant == ask.tenant and pod.uid not in standing.leaving
    ]
    if not len(lower) and not told and ask.gang.part is None:
        return None
    coming = [pod for uid, pod in standing.leaving.items() if uid not in slow]
    coming = [pod for pod in coming if not strict or standing.leaving.tenant_of(pod.uid) == ask.tenant]
    coming += [pod for _, pod in told]
    own = _for_limit(ledger, standing, ask, lower, coming=coming, told=[pod for _, pod in told])
    if own is None:
        return None
    coming += _pods_of(standing, own)
    mark = standing.room.mark()
    _hide(ledger, standing, ask, strict=strict)
    choice = choose(
        standing.room,
        lower,
        ask.gang,
        ask.core,
        now=ledger.now,
        among=among(standing, ask),
        coming=coming,
        exempt={evict.gang for evict in own},
    )
    standing.room.undo(mark)
    if choice is None:
        return None
    return Making(choice, (*_needed(standing, ask, own, choice, told), *choice.evicts), told, None)


def _lower(ledger: Ledger, standing: Standing, ask: Ask) -> Evictable:
    """What the gang may preempt, pods inside their cells among it. What starts in this very cycle is left alone."""
    lower = Evictable(standing.pool.key, standing.pool.unit)
    for name in standing.ranks.of(ask.tenant):
        gang = standing.gangs[name]
        if standing.may_preempt(ask.gang, gang) and all(pod.since < ledger.now for pod in _placed(standing, gang)):
            lower.put(replace(gang, pods=tuple(replace(pod, borrowed=True) for pod in gang.pods)))
    return lower


def _placed(standing: Standing, gang: Gang) -> Iterator[Pod]:
    return (pod for pod in gang.pods if pod.state is PLACED and standing.has(pod))


def _for_limit(
    ledger: Ledger, standing: Standing, ask: Ask, lower: Evictable, *, coming: Sequence[Pod], told: Iterable[Pod]
) -> tuple[Evict, ...] | None:
    """Who goes so that the tenant keeps its limit; None: whoever goes, that does not suffice."""
    missing = standing.missing_of_limit(ask.tenant, ask.core, _gone(standing, ask, told))
    if not missing:
        return ()
    return own_victims(standing, ask, missing, None, evictable=lower, coming=coming, now=ledger.now)


def _gone(standing: Standing, ask: Ask, told: Iterable[Pod]) -> list[Milli]:
    return [standing.leaving.of(ask.tenant), total_of(told)]


def _needed(
    standing: Standing, ask: Ask, own: Sequence[Evict], choice: Choice, told: Iterable[tuple[Gang, Pod]]
) -> list[Evict]:
    """Those who were chosen for the limit and are still needed beside those who go for the room; the dearest stay."""
    left = list(own)
    for evict in sorted(own, key=lambda each: (-each.lost, each.gang)):
        if not {pod.uid for pod in _pods_of(standing, [evict])}.isdisjoint(choice.awaits):
            continue
        others = [each for each in left if each is not evict]
        gone = _gone(standing, ask, (pod for _, pod in told))
        if not standing.missing_of_limit(
            ask.tenant, ask.core, [*gone, total_of(_pods_of(standing, [*others, *choice.evicts]))]
        ):
            left = others
    return left


def _pods_of(standing: Standing, evicts: Iterable[Evict]) -> list[Pod]:
    return [
        pod
        for evict in evicts
        for uids in [set(evict.pods)]
        for pod in standing.gangs[evict.gang].pods
        if pod.uid in uids
    ]


def _hide(ledger: Ledger, standing: Standing, ask: Ask, *, strict: bool) -> None:
    """Take what the gang may not use of what is free; to be undone."""
    room, kept = standing.room, standing.reservation
    if strict:
        for name in room.names:
            free = {resource: amount for resource, amount in room.free(name).items() if amount > 0}
            room.take(name, Shape.of(free))
    elif kept is not None and kept.gang != ask.gang.id and not kept.lets(standing.ends, ask.gang, ledger.now):
        kept.narrow(room)


def _carry_out(ledger: Ledger, standing: Standing, ask: Ask, making: Making) -> None:
    """Plan the gang's start there: inside its guarantee where cells hold it, those of its victims included."""
    gang, nodes, tenant = ask.gang, making.choice.nodes, ask.tenant
    told = [pod for _, pod in making.told]
    standing.demote(tenant, [*told, *_pods_of(standing, making.evicts)])
    placed = [(pod, nodes[pod.uid]) for pod in ask.core]
    inside = (
        gang.band is GUARANTEED
        and standing.allows_inside(gang, ask.core)
        and hold_where_placed(standing.cells, tenant, standing.pool.unit, placed)
    )
    standing.take(ask.core, nodes)
    standing.leaving.add(tenant, told)
    ledger.plan(ask, standing, nodes, inside=inside, made=ledger.next_made(), evicts=making.evicts)
