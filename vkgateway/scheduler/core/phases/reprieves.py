"""Reprieves: victims that no plan needs keep running."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby

from vkgateway.scheduler.core.capacity.slow_terminations import find_late_pods, termination_seconds
from vkgateway.scheduler.core.cycle_state import CycleState, has_plan, victim_gangs
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.phases.idle_reserve import plan_leaves_reserve, reserve_for
from vkgateway.scheduler.core.phases.planned_starts import release_plan
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.preemption.notice import notice_start
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Gang, Pod, PodState, PreemptionPlan, have_peer_rules


@dataclass(frozen=True, slots=True)
class _ReprieveUnit:
    """Pods of one gang that are evicted or reprieved together."""

    gang_id: str
    tenant: str
    pods: tuple[Pod, ...]
    notice_time: float
    """Time of their notice, in seconds since the epoch."""
    whole_id: str = ""
    """The gang in several pools to which they belong; empty for a gang in one pool."""
    is_core: bool = False
    """Whether that gang does not run without them, so that all its other pods are evicted, too."""


_PlannedGang = tuple[PendingGang, PreemptionPlan]

_TOLERANCE = 1e-3
"""Seconds by which times may differ and count as equal."""


def reprieve_victims(state: CycleState) -> None:
    """Reprieve the notified pods without which all plans hold, the most expensive first. Of equal victims, those of
    gangs without a plan come first: such a gang borrows, and is scheduled later.
    """
    lost = {evict.gang: evict.lost for evict in state.evicts}

    def reprieve_key(unit: _ReprieveUnit) -> tuple[float, bool, str, int, str]:
        first, planned = unit.pods[0], any(has_plan(state, pod.evicted_for) for pod in unit.pods)
        return -lost.get(unit.gang_id, 0.0), planned, unit.gang_id, first.rank, first.uid

    if state.part_ids:
        _add_sibling_victims(state)
    found: list[_PoolReprieves] = []
    for pool_state in state.pool_states.values():
        plans = [
            (state.pending_gangs[gang], plan)
            for gang, plan in sorted(state.plans.items())
            if plan.pool == pool_state.pool.key
        ]
        plans.sort(key=lambda each: each[1].created)
        units = [unit for gang in victim_gangs(state, pool_state) for unit in _reprieve_units(pool_state, gang)]
        units.sort(key=reprieve_key)
        plans = _drop_self_serving_plans(state, pool_state, plans, units)
        needed = _needed_units(pool_state, plans, units, state.now)
        _set_terminating(pool_state, units, needed)
        found.append(_PoolReprieves(pool_state, plans, units, needed))
    _align_parts(found, state.now)
    evicts = [left for evict in state.evicts if (left := _remaining_evict(state, evict)) is not None]
    new = {uid for evict in evicts for uid in evict.pods}
    state.evicts[:] = [*evicts, *_reassigned_evicts(state, new)]


@dataclass(slots=True)
class _PoolReprieves:
    """Result of the search in one pool."""

    pool_state: PoolState
    plans: list[_PlannedGang]
    units: list[_ReprieveUnit]
    needed: list[_ReprieveUnit]


def _set_terminating(pool_state: PoolState, units: Iterable[_ReprieveUnit], needed: Iterable[_ReprieveUnit]) -> None:
    evicted = {pod.uid for unit in needed for pod in unit.pods}
    for unit in units:
        for pod in unit.pods:
            if pod.uid in evicted:
                pool_state.terminating_pods.add_pods(unit.tenant, [pod])
            else:
                pool_state.terminating_pods.remove_pod(pod.uid)


def _add_sibling_victims(state: CycleState) -> None:
    """Count notified parts of a gang as terminating, if another part of it is terminating."""
    evicted = {
        gang.whole_id
        for pool_state in state.pool_states.values()
        for gang in victim_gangs(state, pool_state)
        for unit in _reprieve_units(pool_state, gang)
        if unit.is_core
    }
    for pool_state in state.pool_states.values():
        for gang, pod in state.notified.in_pool(pool_state):
            if gang.part_info is not None and gang.whole_id in evicted and pod.uid not in pool_state.terminating_pods:
                pool_state.terminating_pods.add_pods(gang.tenant, [pod])


def _align_parts(found: Sequence[_PoolReprieves], now: float) -> None:
    """Evict all parts of a gang of which one is needed, and search again for reprieves in their pools."""
    evicted: set[str] = set()
    while True:
        evicted |= {unit.whole_id for each in found for unit in each.needed if unit.is_core}
        again = False
        for each in found:
            forced = [unit for unit in each.units if unit.whole_id in evicted]
            if all(unit in each.needed for unit in forced):
                continue
            again = True
            others = [unit for unit in each.units if unit.whole_id not in evicted]
            for unit in each.units:
                each.pool_state.terminating_pods.add_pods(unit.tenant, unit.pods)
            each.needed = [*forced, *_needed_units(each.pool_state, each.plans, others, now)]
            _set_terminating(each.pool_state, each.units, each.needed)
        if not again:
            return


def _drop_self_serving_plans(
    state: CycleState, pool_state: PoolState, plans: list[_PlannedGang], units: Sequence[_ReprieveUnit]
) -> list[_PlannedGang]:
    """Return the plans that remain without those whose gangs would be evicted only for their own plans."""
    notified = {unit.gang_id for unit in units}
    for pending, plan in plans:
        if pending.gang.id not in notified:
            continue
        others = [each for each in plans if each[0] is not pending]
        with pool_state.trial() as trial:
            release_plan(pool_state, pending, plan)
            needed = _needed_units(pool_state, others, units, state.now)
            if all(unit.gang_id != pending.gang.id for unit in needed):
                trial.commit()
                state.remove_plan(pending)
                state.note_freed_capacity()
                plans = others
    return plans


def _reprieve_units(pool_state: PoolState, gang: Gang) -> Iterator[_ReprieveUnit]:
    """Yield the notified pods of the gang: one by one if the gang runs without them, otherwise together."""
    notified = [pod for pod in gang.pods if pod.state is PodState.NOTIFIED and pod.pool == pool_state.pool.key]
    if not any(pod.uid in pool_state.terminating_pods for pod in notified):
        return
    left = [pod for pod in gang.pods if pod.state is PodState.PLACED]
    whole = gang.whole_id if gang.part_info is not None else ""
    if (left or not gang.minimum) and has_min_members(gang, left):
        for pod in notified:
            if pod.uid in pool_state.terminating_pods:
                yield _ReprieveUnit(gang.id, gang.tenant, (pod,), notice_start(gang, [pod]), whole)
    else:
        yield _ReprieveUnit(
            gang.id, gang.tenant, tuple(notified), notice_start(gang, notified), whole, is_core=bool(whole)
        )


def _needed_units(
    pool_state: PoolState, plans: Sequence[_PlannedGang], units: Sequence[_ReprieveUnit], now: float
) -> list[_ReprieveUnit]:
    """Return the units that the plans need, tried in this order. The pods of plans count as placed already. The oldest
    plans come first, with the units notified by then: a later plan, and its victims, delay none of them.
    """
    with pool_state.trial():
        return _search_needed_units(pool_state, plans, units, now)


def _search_needed_units(
    pool_state: PoolState, plans: Sequence[_PlannedGang], units: Sequence[_ReprieveUnit], now: float
) -> list[_ReprieveUnit]:
    ours = {pod.uid for unit in units for pod in unit.pods}
    others = [pod for uid, pod in pool_state.terminating_pods.items() if uid not in ours]
    seconds = termination_seconds(pool_state.gangs[unit.gang_id] for unit in units)
    pool_state.remove_pods(others)
    for pending, plan in plans:
        pool_state.remove_pods(replace(pod, node=plan.nodes[pod.uid]) for pod in pending.min_members)
    for unit in units:
        _unmark_terminating(pool_state, unit)
    needed: dict[int, _ReprieveUnit] = {}
    earlier: list[_PlannedGang] = []
    for _, group in groupby(plans, key=lambda each: round(each[1].created / _TOLERANCE)):
        for pending, plan in (new := list(group)):
            pool_state.add_pods(pending.min_members, plan.nodes)
        earlier += new
        created = new[-1][1].created
        known = [unit for unit in units if id(unit) not in needed and unit.notice_time <= created + _TOLERANCE]
        for unit in known:
            _remove_unit(pool_state, unit)
        if not all(plan_holds(pool_state, *each) for each in earlier):
            if len(earlier) < len(plans):
                # It needs units that were notified later; all units are tried in the end.
                for unit in known:
                    _restore_unit(pool_state, unit)
                continue
            later = [unit for unit in units if id(unit) not in needed and unit.notice_time > created + _TOLERANCE]
            for unit in later:
                _remove_unit(pool_state, unit)
            known = later + known
        late = find_unneeded_late_pods(pool_state, earlier, others, seconds, since=created, now=now)
        for unit in known:
            _restore_unit(pool_state, unit)
            if not all(_holds_without(pool_state, unit, *each) for each in earlier):
                _remove_unit(pool_state, unit)
                needed[id(unit)] = unit
        pool_state.remove_pods(late)
    return list(needed.values())


def find_unneeded_late_pods(
    pool_state: PoolState,
    plans: Sequence[_PlannedGang],
    others: Iterable[Pod],
    seconds: float,
    *,
    since: float,
    now: float,
) -> list[Pod]:
    """Return the late ones of these other terminating pods without which the plans hold. They then count as running."""
    stay = []
    for pod in sorted(find_late_pods(others, seconds, since=since, now=now), key=lambda pod: (-pod.deadline, pod.uid)):
        _restore_pods(pool_state, [pod])
        if all(plan_holds(pool_state, *each) for each in plans):
            stay.append(pod)
        else:
            pool_state.remove_pods([pod])
    return stay


def _restore_pods(pool_state: PoolState, pods: Iterable[Pod]) -> None:
    """Count pods as placed again that count as deleted."""
    there = [pod for pod in pods if pod.node in pool_state.node_resources.nodes]
    pool_state.add_pods(there, {pod.uid: pod.node for pod in there})


def _unmark_terminating(pool_state: PoolState, unit: _ReprieveUnit) -> None:
    for pod in unit.pods:
        pool_state.terminating_pods.remove_pod(pod.uid)


def _restore_unit(pool_state: PoolState, unit: _ReprieveUnit) -> None:
    _restore_pods(pool_state, unit.pods)
    _unmark_terminating(pool_state, unit)


def _remove_unit(pool_state: PoolState, unit: _ReprieveUnit) -> None:
    pool_state.remove_pods(unit.pods)
    pool_state.terminating_pods.add_pods(unit.tenant, unit.pods)


def plan_holds(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> bool:
    """Return whether a plan holds after all terminations."""
    return pool_state.fits_on_nodes(pending.min_members, plan.nodes) and pool_state.tenant_usage.is_within_limit(
        pending.tenant, pending.min_members, [pool_state.terminating_pods.usage_of(pending.tenant)]
    )


def _holds_without(pool_state: PoolState, unit: _ReprieveUnit, pending: PendingGang, plan: PreemptionPlan) -> bool:
    """Return whether a plan that holds also holds if this unit is reprieved."""
    places = plan.nodes.values()
    concerns = any(pod.node in places for pod in unit.pods) or have_peer_rules(pending.min_members)
    if concerns and not pool_state.fits_on_nodes(pending.min_members, plan.nodes):
        return False
    if _is_victim_for_reserve(pool_state, unit, pending, plan) and not plan_leaves_reserve(pool_state, pending, plan):
        return False
    return pending.tenant != unit.tenant or pool_state.tenant_usage.is_within_limit(
        pending.tenant, pending.min_members, [pool_state.terminating_pods.usage_of(pending.tenant)]
    )


def _is_victim_for_reserve(
    pool_state: PoolState, unit: _ReprieveUnit, pending: PendingGang, plan: PreemptionPlan
) -> bool:
    """Return whether the unit was notified for this borrowing gang, so that the gang leaves the pool's reserve idle."""
    whole = pending.gang.whole_id
    return (
        reserve_for(pool_state, pending, pending.min_members) > 0
        and all(pod.evicted_for == whole for pod in unit.pods)
        and (plan.leaves is not None or pool_state.victims.is_reclaimable(pool_state.gangs[unit.gang_id], pending.gang))
    )


def _reassigned_evicts(state: CycleState, new: Set[str]) -> Iterator[Evict]:
    """Yield evictions of pods whose gang needs them no more, reassigned to gangs that do. Deadlines stay the same."""
    for pool_state in state.pool_states.values():
        for gang in victim_gangs(state, pool_state):
            pods = [
                pod
                for pod in gang.pods
                if pod.uid in pool_state.terminating_pods
                and pod.state is PodState.NOTIFIED
                and pod.uid not in new
                and not has_plan(state, pod.evicted_for)
            ]
            for deadline in sorted({pod.deadline for pod in pods}):
                together = [pod for pod in pods if pod.deadline == deadline]
                yield Evict(
                    gang=gang.id,
                    pods=tuple(pod.uid for pod in together),
                    whole=all(pod.state is not PodState.PLACED for pod in gang.pods),
                    makes_room_for=_beneficiary_of(state, pool_state, gang.tenant, {pod.node for pod in together}),
                    deadline=deadline,
                    lost=0.0,
                )


def _beneficiary_of(state: CycleState, pool_state: PoolState, tenant: str, nodes: Set[str]) -> str:
    """Return the first gang with a plan on these nodes, or else of this tenant, whose limit the pods free."""
    plans = sorted(
        ((gang, plan) for gang, plan in state.plans.items() if plan.pool == pool_state.pool.key),
        key=lambda each: each[0],
    )
    if not plans:
        # They go with another part of their gang.
        return state.gangs[min(state.plans)].whole_id
    there = [gang for gang, plan in plans if not nodes.isdisjoint(plan.nodes.values())]
    own = [gang for gang, _ in plans if state.pending_gangs[gang].tenant == tenant]
    return state.gangs[[*there, *own, plans[0][0]][0]].whole_id


def _remaining_evict(state: CycleState, evict: Evict) -> Evict | None:
    """Return the eviction without reprieved pods, for a gang that still has a plan; None: all pods are reprieved."""
    pool_state = next(
        (each for each in state.pool_states.values() if any(uid in each.terminating_pods for uid in evict.pods)), None
    )
    if pool_state is None:
        return None
    pods = tuple(uid for uid in evict.pods if uid in pool_state.terminating_pods)
    if not has_plan(state, evict.makes_room_for):
        nodes, tenant = {pool_state.terminating_pods[uid].node for uid in pods}, state.gangs[evict.gang].tenant
        evict = replace(evict, makes_room_for=_beneficiary_of(state, pool_state, tenant, nodes))
    return replace(evict, pods=pods, lost=evict.lost * len(pods) / len(evict.pods)) if pods != evict.pods else evict
