"""Who was told to go, or is to be told now, and may stay: without them all plans hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, groupby

from vkgateway.arbiter.capacity.slow_terminations import find_late_pods, termination_seconds
from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.phases.idle_reserve import plan_leaves_reserve, reserve_for
from vkgateway.arbiter.phases.preemption_plans import is_reclaimed_for, release_plan
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.preemption.eviction_units import has_min_members
from vkgateway.arbiter.preemption.notice import notice_start
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import Gang, Pod, PodState, PreemptionPlan


@dataclass(frozen=True, slots=True)
class _ReprieveUnit:
    """Pods of one gang that go or stay together."""

    gang_id: str
    tenant: str
    pods: tuple[Pod, ...]
    notice_time: float
    """When they were told (seconds since the epoch)."""
    whole_id: str = ""
    """The gang in several pools that they are a part of; empty: they are of a gang in one."""
    is_core: bool = False
    """That gang does not run without them: all its other pods go with them."""


_PlannedGang = tuple[PendingGang, PreemptionPlan]

_TOLERANCE = 1e-3
"""Seconds that do not count."""


def reprieve_victims(ledger: CycleState, *, unkept: Sequence[PendingGang] = ()) -> None:
    """Of all who were told to go, or are to be told now, those stay without whom all plans hold; the dearest first.

    Of equals first those who go for somebody without a plan so far: who borrows has its turn later, and counts on them.
    `unkept`: gangs whose plans are kept later. Where one of another tenant is to start, a victim of preemption within a
    tenant goes: that takes nothing of other tenants.
    """
    lost = {evict.gang: evict.lost for evict in ledger.evicts}

    def turn(unit: _ReprieveUnit) -> tuple[float, bool, str, int, str]:
        first, planned = unit.pods[0], any(ledger.has_plan(pod.evicted_for) for pod in unit.pods)
        return -lost.get(unit.gang_id, 0.0), planned, unit.gang_id, first.rank, first.uid

    if ledger.part_ids:
        _add_sibling_victims(ledger)
    found: list[_PoolReprieves] = []
    for standing in ledger.pool_states.values():
        plans = [
            (ledger.pending_gangs[gang], plan)
            for gang, plan in sorted(ledger.plans.items())
            if plan.pool == standing.pool.key
        ]
        plans.sort(key=lambda each: each[1].made)
        units = [unit for gang in ledger.victim_gangs(standing) for unit in _reprieve_units(standing, gang)]
        units.sort(key=turn)
        plans = _drop_self_serving_plans(ledger, standing, plans, units)
        going: list[_ReprieveUnit] = []
        others: list[_ReprieveUnit] = []
        for unit in units:
            (going if _is_needed_beside_plan(ledger, standing, unit, unkept) else others).append(unit)
        needed = [*going, *_needed_units(standing, plans, others, ledger.now)]
        _set_terminating(standing, units, needed)
        found.append(_PoolReprieves(standing, plans, units, needed))
    _align_parts(found, ledger.now)
    evicts = [left for evict in ledger.evicts if (left := _remaining_evict(ledger, evict)) is not None]
    new = {uid for evict in evicts for uid in evict.pods}
    ledger.evicts[:] = [*evicts, *_reassigned_evicts(ledger, new)]


def _is_needed_beside_plan(
    ledger: CycleState, standing: PoolState, unit: _ReprieveUnit, unkept: Sequence[PendingGang]
) -> bool:
    """Return whether a planned gang preempts it on nodes where a gang of another tenant has a plan to start."""
    victors = {pod.evicted_for for pod in unit.pods if unkept and ledger.has_plan(pod.evicted_for)}
    if not any(standing.may_preempt(ledger.any_part(name), standing.gangs[unit.gang_id]) for name in victors):
        return False
    plans = (ask.gang.plan for ask in unkept if ask.tenant != unit.tenant)
    there = (plan.nodes.values() for plan in plans if plan is not None and plan.pool == standing.pool.key)
    return not {pod.node for pod in unit.pods}.isdisjoint(chain.from_iterable(there))


@dataclass(slots=True)
class _PoolReprieves:
    """What was found about one pool."""

    pool_state: PoolState
    plans: list[_PlannedGang]
    units: list[_ReprieveUnit]
    needed: list[_ReprieveUnit]


def _set_terminating(standing: PoolState, units: Iterable[_ReprieveUnit], needed: Iterable[_ReprieveUnit]) -> None:
    going = {pod.uid for unit in needed for pod in unit.pods}
    for unit in units:
        for pod in unit.pods:
            if pod.uid in going:
                standing.terminating_pods.add_pods(unit.tenant, [pod])
            else:
                standing.terminating_pods.remove_pod(pod.uid)


def _add_sibling_victims(ledger: CycleState) -> None:
    """Count on the parts of a gang that were told to go with a part that is counted on."""
    going = {
        gang.whole_id
        for standing in ledger.pool_states.values()
        for gang in ledger.victim_gangs(standing)
        for unit in _reprieve_units(standing, gang)
        if unit.is_core
    }
    for standing in ledger.pool_states.values():
        for gang, pod in ledger.notified_pods(standing):
            if gang.part_info is not None and gang.whole_id in going and pod.uid not in standing.terminating_pods:
                standing.terminating_pods.add_pods(gang.tenant, [pod])


def _align_parts(found: Sequence[_PoolReprieves], now: float) -> None:
    """Have all parts of a gang go of which one is needed, and look again who can stay beside them."""
    going: set[str] = set()
    while True:
        going |= {unit.whole_id for each in found for unit in each.needed if unit.is_core}
        again = False
        for each in found:
            forced = [unit for unit in each.units if unit.whole_id in going]
            if all(unit in each.needed for unit in forced):
                continue
            again = True
            others = [unit for unit in each.units if unit.whole_id not in going]
            for unit in each.units:
                each.pool_state.terminating_pods.add_pods(unit.tenant, unit.pods)
            each.needed = [*forced, *_needed_units(each.pool_state, each.plans, others, now)]
            _set_terminating(each.pool_state, each.units, each.needed)
        if not again:
            return


def _drop_self_serving_plans(
    ledger: CycleState, standing: PoolState, plans: list[_PlannedGang], units: Sequence[_ReprieveUnit]
) -> list[_PlannedGang]:
    """The plans that are left once gangs stay that were told to go, and would go for none but their own plans."""
    told = {unit.gang_id for unit in units}
    for ask, plan in plans:
        if ask.gang.id not in told:
            continue
        others = [each for each in plans if each[0] is not ask]
        mark, held = standing.node_resources.mark(), standing.cells.mark()
        release_plan(standing, ask, plan)
        if any(unit.gang_id == ask.gang.id for unit in _needed_units(standing, others, units, ledger.now)):
            standing.node_resources.undo(mark)
            standing.cells.undo(held)
        else:
            ledger.remove_plan(ask)
            ledger.has_freed_capacity = True
            plans = others
    return plans


def _reprieve_units(standing: PoolState, gang: Gang) -> Iterator[_ReprieveUnit]:
    """What of the gang leaves by our word: pod by pod where it runs without them; else all of them together."""
    told = [pod for pod in gang.pods if pod.state is PodState.NOTIFIED and pod.pool == standing.pool.key]
    if not any(pod.uid in standing.terminating_pods for pod in told):
        return
    left = [pod for pod in gang.pods if pod.state is PodState.PLACED]
    whole = gang.whole_id if gang.part_info is not None else ""
    if (left or not gang.minimum) and has_min_members(gang, left):
        for pod in told:
            if pod.uid in standing.terminating_pods:
                yield _ReprieveUnit(gang.id, gang.tenant, (pod,), notice_start(gang, [pod]), whole)
    else:
        yield _ReprieveUnit(gang.id, gang.tenant, tuple(told), notice_start(gang, told), whole, is_core=bool(whole))


def _needed_units(
    standing: PoolState, plans: Sequence[_PlannedGang], units: Sequence[_ReprieveUnit], now: float
) -> list[_ReprieveUnit]:
    """Those without whose leaving the plans do not hold, whose room is taken already; tried in this order.

    The oldest plans come first, with those who had been told by then: a plan that was made later, and whoever goes for
    it later, keeps none of them waiting.
    """
    mark = standing.node_resources.mark()
    ours = {pod.uid for unit in units for pod in unit.pods}
    others = [pod for uid, pod in standing.terminating_pods.items() if uid not in ours]
    seconds = termination_seconds(standing.gangs[unit.gang_id] for unit in units)
    standing.remove_pods(others)
    for ask, plan in plans:
        standing.remove_pods(replace(pod, node=plan.nodes[pod.uid]) for pod in ask.min_members)
    for unit in units:
        _unmark_terminating(standing, unit)
    needed: dict[int, _ReprieveUnit] = {}
    earlier: list[_PlannedGang] = []
    for _, group in groupby(plans, key=lambda each: round(each[1].made / _TOLERANCE)):
        for ask, plan in (new := list(group)):
            standing.add_pods(ask.min_members, plan.nodes)
        earlier += new
        made = new[-1][1].made
        known = [unit for unit in units if id(unit) not in needed and unit.notice_time <= made + _TOLERANCE]
        for unit in known:
            _remove_unit(standing, unit)
        if not all(plan_holds(standing, *each) for each in earlier):
            if len(earlier) < len(plans):
                # As things are now, it takes who was told later: all that there is will be tried in the end.
                for unit in known:
                    _restore_unit(standing, unit)
                continue
            later = [unit for unit in units if id(unit) not in needed and unit.notice_time > made + _TOLERANCE]
            for unit in later:
                _remove_unit(standing, unit)
            known = later + known
        slow = find_unneeded_late_pods(standing, earlier, others, seconds, since=made, now=now)
        for unit in known:
            _restore_unit(standing, unit)
            if not all(_holds_without(standing, unit, *each) for each in earlier):
                _remove_unit(standing, unit)
                needed[id(unit)] = unit
        standing.remove_pods(slow)
    standing.node_resources.undo(mark)
    return list(needed.values())


def find_unneeded_late_pods(
    standing: PoolState,
    plans: Sequence[_PlannedGang],
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
    for pod in sorted(find_late_pods(others, seconds, since=since, now=now), key=lambda pod: (-pod.deadline, pod.uid)):
        standing.restore_pods([pod])
        if all(plan_holds(standing, *each) for each in plans):
            stay.append(pod)
        else:
            standing.remove_pods([pod])
    return stay


def _unmark_terminating(standing: PoolState, unit: _ReprieveUnit) -> None:
    for pod in unit.pods:
        standing.terminating_pods.remove_pod(pod.uid)


def _restore_unit(standing: PoolState, unit: _ReprieveUnit) -> None:
    standing.restore_pods(unit.pods)
    _unmark_terminating(standing, unit)


def _remove_unit(standing: PoolState, unit: _ReprieveUnit) -> None:
    standing.remove_pods(unit.pods)
    standing.terminating_pods.add_pods(unit.tenant, unit.pods)


def plan_holds(standing: PoolState, ask: PendingGang, plan: PreemptionPlan) -> bool:
    """Whether a plan holds when those have gone who leave."""
    return standing.fits_on_nodes(ask.min_members, plan.nodes) and standing.is_within_limit(
        ask.tenant, ask.min_members, [standing.terminating_pods.usage_of(ask.tenant)]
    )


def _holds_without(standing: PoolState, unit: _ReprieveUnit, ask: PendingGang, plan: PreemptionPlan) -> bool:
    """Whether a plan holds if this unit stays; it did before."""
    places = plan.nodes.values()
    if any(pod.node in places for pod in unit.pods) and not standing.fits_on_nodes(ask.min_members, plan.nodes):
        return False
    if _is_victim_for_reserve(standing, unit, ask, plan) and not plan_leaves_reserve(standing, ask.min_members, plan):
        return False
    return ask.tenant != unit.tenant or standing.is_within_limit(
        ask.tenant, ask.min_members, [standing.terminating_pods.usage_of(ask.tenant)]
    )


def _is_victim_for_reserve(standing: PoolState, unit: _ReprieveUnit, ask: PendingGang, plan: PreemptionPlan) -> bool:
    """Whether a unit may go so that a gang that borrows leaves the pool's reserve, and was told to for this gang."""
    whole = ask.gang.whole_id
    return (
        reserve_for(standing, ask.min_members) > 0
        and all(pod.evicted_for == whole for pod in unit.pods)
        and (plan.leaves is not None or is_reclaimed_for(standing.gangs[unit.gang_id], whole))
    )


def _reassigned_evicts(ledger: CycleState, new: Set[str]) -> Iterator[Evict]:
    """Who was told before to go for a gang that needs it no more, and goes at its own time for another one."""
    for standing in ledger.pool_states.values():
        for gang in ledger.victim_gangs(standing):
            pods = [
                pod
                for pod in gang.pods
                if pod.uid in standing.terminating_pods
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
                    makes_room_for=_beneficiary_of(ledger, standing, gang.tenant, {pod.node for pod in together}),
                    deadline=deadline,
                    lost=0.0,
                )


def _beneficiary_of(ledger: CycleState, standing: PoolState, tenant: str, nodes: Set[str]) -> str:
    """The first gang that has a plan on these nodes; or else of the same tenant, for whose limit they go."""
    plans = sorted(
        ((gang, plan) for gang, plan in ledger.plans.items() if plan.pool == standing.pool.key),
        key=lambda each: each[0],
    )
    if not plans:
        # They go with another part of their gang.
        return ledger.gangs[min(ledger.plans)].whole_id
    there = [gang for gang, plan in plans if not nodes.isdisjoint(plan.nodes.values())]
    own = [gang for gang, _ in plans if ledger.pending_gangs[gang].tenant == tenant]
    return ledger.gangs[[*there, *own, plans[0][0]][0]].whole_id


def _remaining_evict(ledger: CycleState, evict: Evict) -> Evict | None:
    """The eviction without those who can stay, for a gang that still has a plan; None: all of them can stay."""
    standing = next(
        (each for each in ledger.pool_states.values() if any(uid in each.terminating_pods for uid in evict.pods)), None
    )
    if standing is None:
        return None
    pods = tuple(uid for uid in evict.pods if uid in standing.terminating_pods)
    if not ledger.has_plan(evict.makes_room_for):
        nodes, tenant = {standing.terminating_pods[uid].node for uid in pods}, ledger.gangs[evict.gang].tenant
        evict = replace(evict, makes_room_for=_beneficiary_of(ledger, standing, tenant, nodes))
    return replace(evict, pods=pods, lost=evict.lost * len(pods) / len(evict.pods)) if pods != evict.pods else evict
