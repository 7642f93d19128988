"""Who was told to go, or is to be told now, and may stay: without them all plans hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, groupby

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.facts import Gang, Plan, Pod, PodState
from vkgateway.arbiter.late import late, takes
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.lots import suffices
from vkgateway.arbiter.notice import notified_at
from vkgateway.arbiter.plans import is_called_in, let_go
from vkgateway.arbiter.reserve import plan_leaves_reserve, reserve_for
from vkgateway.arbiter.standing import Standing


@dataclass(frozen=True, slots=True)
class _Unit:
    """Pods of one gang that go or stay together."""

    gang: str
    tenant: str
    pods: tuple[Pod, ...]
    told: float
    """When they were told (seconds since the epoch)."""
    whole: str = ""
    """The gang in several pools that they are a part of; empty: they are of a gang in one."""
    is_core: bool = False
    """That gang does not run without them: all its other pods go with them."""


_Planned = tuple[Ask, Plan]

_MOMENT = 1e-3
"""Seconds that do not count."""


def spare(ledger: Ledger, *, unkept: Sequence[Ask] = ()) -> None:
    """Of all who were told to go, or are to be told now, those stay without whom all plans hold; the dearest first.

    Of equals first those who go for somebody without a plan so far: who borrows has its turn later, and counts on them.
    `unkept`: gangs whose plans are kept later. Where one of another tenant is to start, a victim of preemption within a
    tenant goes: that takes nothing of other tenants.
    """
    lost = {evict.gang: evict.lost for evict in ledger.evicts}

    def turn(unit: _Unit) -> tuple[float, bool, str, int, str]:
        first, planned = unit.pods[0], any(ledger.has_plan(pod.evicted_for) for pod in unit.pods)
        return -lost.get(unit.gang, 0.0), planned, unit.gang, first.rank, first.uid

    if ledger.parts:
        _go_together(ledger)
    found: list[_Looked] = []
    for standing in ledger.standings.values():
        plans = [
            (ledger.asks[gang], plan) for gang, plan in sorted(ledger.plans.items()) if plan.pool == standing.pool.key
        ]
        plans.sort(key=lambda each: each[1].made)
        units = [unit for gang in ledger.leaving_gangs(standing) for unit in _units(standing, gang)]
        units.sort(key=turn)
        plans = _not_for_themselves(ledger, standing, plans, units)
        going: list[_Unit] = []
        others: list[_Unit] = []
        for unit in units:
            (going if _is_preempted_beside(ledger, standing, unit, unkept) else others).append(unit)
        needed = [*going, *_needed(standing, plans, others, ledger.now)]
        _leave_only(standing, units, needed)
        found.append(_Looked(standing, plans, units, needed))
    _keep_together(found, ledger.now)
    evicts = [left for evict in ledger.evicts if (left := _left(ledger, evict)) is not None]
    new = {uid for evict in evicts for uid in evict.pods}
    ledger.evicts[:] = [*evicts, *_told_for_others(ledger, new)]


def _is_preempted_beside(ledger: Ledger, standing: Standing, unit: _Unit, unkept: Sequence[Ask]) -> bool:
    """Return whether a planned gang preempts it on nodes where a gang of another tenant has a plan to start."""
    victors = {pod.evicted_for for pod in unit.pods if unkept and ledger.has_plan(pod.evicted_for)}
    if not any(standing.may_preempt(ledger.any_part(name), standing.gangs[unit.gang]) for name in victors):
        return False
    plans = (ask.gang.plan for ask in unkept if ask.tenant != unit.tenant)
    there = (plan.nodes.values() for plan in plans if plan is not None and plan.pool == standing.pool.key)
    return not {pod.node for pod in unit.pods}.isdisjoint(chain.from_iterable(there))


@dataclass(slots=True)
class _Looked:
    """What was found about one pool."""

    standing: Standing
    plans: list[_Planned]
    units: list[_Unit]
    needed: list[_Unit]


def _leave_only(standing: Standing, units: Iterable[_Unit], needed: Iterable[_Unit]) -> None:
    going = {pod.uid for unit in needed for pod in unit.pods}
    for unit in units:
        for pod in unit.pods:
            if pod.uid in going:
                standing.leaving.add(unit.tenant, [pod])
            else:
                standing.leaving.drop(pod.uid)


def _go_together(ledger: Ledger) -> None:
    """Count on the parts of a gang that were told to go with a part that is counted on."""
    going = {
        gang.whole
        for standing in ledger.standings.values()
        for gang in ledger.leaving_gangs(standing)
        for unit in _units(standing, gang)
        if unit.is_core
    }
    for standing in ledger.standings.values():
        for gang, pod in ledger.told(standing):
            if gang.part is not None and gang.whole in going and pod.uid not in standing.leaving:
                standing.leaving.add(gang.tenant, [pod])


def _keep_together(found: Sequence[_Looked], now: float) -> None:
    """Have all parts of a gang go of which one is needed, and look again who can stay beside them."""
    going: set[str] = set()
    while True:
        going |= {unit.whole for each in found for unit in each.needed if unit.is_core}
        again = False
        for each in found:
            forced = [unit for unit in each.units if unit.whole in going]
            if all(unit in each.needed for unit in forced):
                continue
            again = True
            others = [unit for unit in each.units if unit.whole not in going]
            for unit in each.units:
                each.standing.leaving.add(unit.tenant, unit.pods)
            each.needed = [*forced, *_needed(each.standing, each.plans, others, now)]
            _leave_only(each.standing, each.units, each.needed)
        if not again:
            return


def _not_for_themselves(
    ledger: Ledger, standing: Standing, plans: list[_Planned], units: Sequence[_Unit]
) -> list[_Planned]:
    """The plans that are left once gangs stay that were told to go, and would go for none but their own plans."""
    told = {unit.gang for unit in units}
    for ask, plan in plans:
        if ask.gang.id not in told:
            continue
        others = [each for each in plans if each[0] is not ask]
        mark, held = standing.room.mark(), standing.cells.mark()
        let_go(standing, ask, plan)
        if any(unit.gang == ask.gang.id for unit in _needed(standing, others, units, ledger.now)):
            standing.room.undo(mark)
            standing.cells.undo(held)
        else:
            ledger.unplan(ask)
            ledger.freed = True
            plans = others
    return plans


def _units(standing: Standing, gang: Gang) -> Iterator[_Unit]:
    """What of the gang leaves by our word: pod by pod where it runs without them; else all of them together."""
    told = [pod for pod in gang.pods if pod.state is PodState.NOTIFIED and pod.pool == standing.pool.key]
    if not any(pod.uid in standing.leaving for pod in told):
        return
    left = [pod for pod in gang.pods if pod.state is PodState.PLACED]
    whole = gang.whole if gang.part is not None else ""
    if (left or not gang.minimum) and suffices(gang, left):
        for pod in told:
            if pod.uid in standing.leaving:
                yield _Unit(gang.id, gang.tenant, (pod,), notified_at(gang, [pod]), whole)
    else:
        yield _Unit(gang.id, gang.tenant, tuple(told), notified_at(gang, told), whole, is_core=bool(whole))


def _needed(standing: Standing, plans: Sequence[_Planned], units: Sequence[_Unit], now: float) -> list[_Unit]:
    """Those without whose leaving the plans do not hold, whose room is taken already; tried in this order.

    The oldest plans come first, with those who had been told by then: a plan that was made later, and whoever goes for
    it later, keeps none of them waiting.
    """
    mark = standing.room.mark()
    ours = {pod.uid for unit in units for pod in unit.pods}
    others = [pod for uid, pod in standing.leaving.items() if uid not in ours]
    seconds = takes(standing.gangs[unit.gang] for unit in units)
    standing.give(others)
    for ask, plan in plans:
        standing.give(replace(pod, node=plan.nodes[pod.uid]) for pod in ask.core)
    for unit in units:
        _stays(standing, unit)
    needed: dict[int, _Unit] = {}
    earlier: list[_Planned] = []
    for _, group in groupby(plans, key=lambda each: round(each[1].made / _MOMENT)):
        for ask, plan in (new := list(group)):
            standing.take(ask.core, plan.nodes)
        earlier += new
        made = new[-1][1].made
        known = [unit for unit in units if id(unit) not in needed and unit.told <= made + _MOMENT]
        for unit in known:
            _goes(standing, unit)
        if not all(stands(standing, *each) for each in earlier):
            if len(earlier) < len(plans):
                # As things are now, it takes who was told later: all that there is will be tried in the end.
                for unit in known:
                    _comes_back(standing, unit)
                continue
            later = [unit for unit in units if id(unit) not in needed and unit.told > made + _MOMENT]
            for unit in later:
                _goes(standing, unit)
            known = later + known
        slow = not_waited_for(standing, earlier, others, seconds, since=made, now=now)
        for unit in known:
            _comes_back(standing, unit)
            if not all(_bears(standing, unit, *each) for each in earlier):
                _goes(standing, unit)
                needed[id(unit)] = unit
        standing.give(slow)
    standing.room.undo(mark)
    return list(needed.values())


def not_waited_for(
    standing: Standing,
    plans: Sequence[_Planned],
    others: Iterable[Pod],
    seconds: float,
    *,
    since: float,
    now: float,
) -> list[Pod]:
    """Those of the others, whose room is given back, who end late (see `late`) and without whom the plans hold.

    They count as staying then.
    """
    stay = []
    for pod in sorted(late(others, seconds, since=since, now=now), key=lambda pod: (-pod.deadline, pod.uid)):
        standing.take_back([pod])
        if all(stands(standing, *each) for each in plans):
            stay.append(pod)
        else:
            standing.give([pod])
    return stay


def _stays(standing: Standing, unit: _Unit) -> None:
    for pod in unit.pods:
        standing.leaving.drop(pod.uid)


def _comes_back(standing: Standing, unit: _Unit) -> None:
    standing.take_back(unit.pods)
    _stays(standing, unit)


def _goes(standing: Standing, unit: _Unit) -> None:
    standing.give(unit.pods)
    standing.leaving.add(unit.tenant, unit.pods)


def stands(standing: Standing, ask: Ask, plan: Plan) -> bool:
    """Whether a plan holds when those have gone who leave."""
    return standing.holds(ask.core, plan.nodes) and standing.within_limit(
        ask.tenant, ask.core, [standing.leaving.of(ask.tenant)]
    )


def _bears(standing: Standing, unit: _Unit, ask: Ask, plan: Plan) -> bool:
    """Whether a plan holds if this unit stays; it did before."""
    places = plan.nodes.values()
    if any(pod.node in places for pod in unit.pods) and not standing.holds(ask.core, plan.nodes):
        return False
    if _goes_for_reserve(standing, unit, ask, plan) and not plan_leaves_reserve(standing, ask.core, plan):
        return False
    return ask.tenant != unit.tenant or standing.within_limit(ask.tenant, ask.core, [standing.leaving.of(ask.tenant)])


def _goes_for_reserve(standing: Standing, unit: _Unit, ask: Ask, plan: Plan) -> bool:
    """Whether a unit may go so that a gang that borrows leaves the pool's reserve, and was told to for this gang."""
    whole = ask.gang.whole
    return (
        reserve_for(standing, ask.core) > 0
        and all(pod.evicted_for == whole for pod in unit.pods)
        and (plan.leaves is not None or is_called_in(standing.gangs[unit.gang], whole))
    )


def _told_for_others(ledger: Ledger, new: Set[str]) -> Iterator[Evict]:
    """Who was told before to go for a gang that needs it no more, and goes at its own time for another one."""
    for standing in ledger.standings.values():
        for gang in ledger.leaving_gangs(standing):
            pods = [
                pod
                for pod in gang.pods
                if pod.uid in standing.leaving
                and pod.state is PodState.NOTIFIED
                and pod.uid not in new
                and not ledger.has_plan(pod.evicted_for)
            ]
            for deadline in sorted({pod.deadline for pod in pods}):
                together = [pod for pod in pods if pod.deadline == deadline]
                yield Evict(
                    gang=gang.id,
                    pods=tuple(pod.uid for pod in together),
                    whole=all(pod.state is not PodState.PLACED for pod in gang.pods),
                    makes_room_for=_for_whom(ledger, standing, gang.tenant, {pod.node for pod in together}),
                    deadline=deadline,
                    lost=0.0,
                )


def _for_whom(ledger: Ledger, standing: Standing, tenant: str, nodes: Set[str]) -> str:
    """The first gang that has a plan on these nodes; or else of the same tenant, for whose limit they go."""
    plans = sorted(
        ((gang, plan) for gang, plan in ledger.plans.items() if plan.pool == standing.pool.key),
        key=lambda each: each[0],
    )
    if not plans:
        # They go with another part of their gang.
        return ledger.gangs[min(ledger.plans)].whole
    there = [gang for gang, plan in plans if not nodes.isdisjoint(plan.nodes.values())]
    own = [gang for gang, _ in plans if ledger.asks[gang].tenant == tenant]
    return ledger.gangs[[*there, *own, plans[0][0]][0]].whole


def _left(ledger: Ledger, evict: Evict) -> Evict | None:
    """The eviction without those who can stay, for a gang that still has a plan; None: all of them can stay."""
    standing = next(
        (each for each in ledger.standings.values() if any(uid in each.leaving for uid in evict.pods)), None
    )
    if standing is None:
        return None
    pods = tuple(uid for uid in evict.pods if uid in standing.leaving)
    if not ledger.has_plan(evict.makes_room_for):
        nodes, tenant = {standing.leaving[uid].node for uid in pods}, ledger.gangs[evict.gang].tenant
        evict = replace(evict, makes_room_for=_for_whom(ledger, standing, tenant, nodes))
    return replace(evict, pods=pods, lost=evict.lost * len(pods) / len(evict.pods)) if pods != evict.pods else evict
