"""The scheduling cycle: a snapshot in, all decisions out. Equal snapshots give equal decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.capacity.run_limits import limit_evicts, limited_run, run_start
from vkgateway.scheduler.core.cycle_state import CycleState, collect_decisions
from vkgateway.scheduler.core.decisions import Admit, Decisions, Evict, PendingReport, Promote, Reprieve, merge_admits
from vkgateway.scheduler.core.outcome import (
    changed_gangs,
    find_broken_starts,
    gangs_at_limits,
    merge_decisions,
    remove_starts,
    without_starts,
)
from vkgateway.scheduler.core.phases.borrowing import is_overtaken, start_borrowing_gangs
from vkgateway.scheduler.core.phases.elastic_growth import grow_gangs
from vkgateway.scheduler.core.phases.guaranteed_starts import hold_places, start_guaranteed_gangs
from vkgateway.scheduler.core.phases.kept_plans import keep_borrowed_plans, keep_guaranteed_plans
from vkgateway.scheduler.core.phases.multi_pool_gangs import drop_incomplete_plans, start_ready_gangs
from vkgateway.scheduler.core.phases.plan_moves import move_plans, replan_slow_plans
from vkgateway.scheduler.core.phases.planned_starts import (
    any_plan_lacks_reserve,
    release_plan,
    start_on_other_nodes,
    start_ready_plans,
)
from vkgateway.scheduler.core.phases.pool_choice import guaranteed_placements, start_in_best_pool
from vkgateway.scheduler.core.phases.reprieves import reprieve_victims
from vkgateway.scheduler.core.phases.tenant_preemption import preempt_within_tenants
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.reasons.multi_pool_reasons import merge_part_reports
from vkgateway.scheduler.core.reasons.pending_reasons import explain_pending
from vkgateway.scheduler.core.snapshot import LOW, Policy, PreemptionPlan, Snapshot

_MAX_ROUNDS = 8
"""Rounds that add decisions. Most cycles need one; a reprieve or a promotion at its end calls for a second one."""


class Phase(NamedTuple):
    """A step of a round. It changes the cycle's state, and leaves no gang with fewer members than its minimum."""

    name: str
    run: Callable[[CycleState], object]


def _start_planned_elsewhere(state: CycleState) -> None:
    """Start planned guaranteed gangs where no pod must be evicted for them, and other gangs in what that frees."""
    while start_on_other_nodes(state) or start_in_another_pool(state):
        start_guaranteed_gangs(state)


def _avoid_evictions(state: CycleState) -> None:
    """Move new plans to nodes where fewer pods are evicted, and reprieve the pods that are then not needed."""
    while move_plans(state) or drop_incomplete_plans(state):
        reprieve_victims(state)


PHASES = (
    Phase("keep guaranteed plans", keep_guaranteed_plans),
    # Before the queue: a short gang's replacement may not exist yet, and the queue has pods that would take its place.
    Phase("hold places of lost members", hold_places),
    Phase("start guaranteed gangs", start_guaranteed_gangs),
    Phase("start planned guaranteed gangs elsewhere", _start_planned_elsewhere),
    Phase("replace plans that wait for slow terminations", replan_slow_plans),
    Phase("start ready guaranteed plans", start_ready_plans),
    Phase("keep borrowed plans", keep_borrowed_plans),
    Phase("drop incomplete plans of gangs in several pools", drop_incomplete_plans),
    Phase("start ready gangs in several pools", start_ready_gangs),
    Phase("start borrowing gangs in queue order", start_borrowing_gangs),
    Phase("preempt within tenants", preempt_within_tenants),
    Phase("reprieve victims", reprieve_victims),
    Phase("avoid evictions", _avoid_evictions),
    Phase("start ready plans", start_ready_plans),
    Phase("start ready gangs in several pools, again", start_ready_gangs),
    Phase("grow elastic gangs", grow_gangs),
)
"""The phases of a round, in order."""


def decide(snapshot: Snapshot, now: float, cache: Cache | None = None, *, foresee: bool = True) -> Decisions:
    """Return which gangs start and where, which pods are evicted or reprieved, and why the other gangs wait.

    `now` is in seconds since the epoch. The snapshot alone carries earlier decisions: the states of pods, and the plans
    of the last cycle (`Gang.plan`). `cache` only saves time, and is passed to each cycle. `foresee`: report expected
    starts of pending gangs; no other decision depends on it.
    """
    cache = cache if cache is not None else Cache()
    try:
        cache.apply_snapshot(snapshot, now)
        return _Cycle(cache, snapshot.policy, now, foresee=foresee).run()
    except BaseException:
        # Its pools may be in the middle of a change. An empty cache costs the next cycle only time.
        cache.clear()
        raise


class _Cycle:
    """The rounds of a cycle, and their decisions so far.

    Invariant: before each round, the cache's gangs are those of the snapshot with `_decisions` carried out, and each
    pool is in the state that its gangs imply. So a round sees earlier rounds as it would see an earlier cycle.

    Termination: a round either withdraws starts, or uses up one of `_MAX_ROUNDS`. A withdrawn start removes at least
    one pod from `_admitted`. A low gang then comes after the guaranteed band, and another gang, or a low one the second
    time, is excluded: it admits no further pods. Hence there are at most `_MAX_ROUNDS` rounds more than twice the pods
    that were admitted. A round without changes is the last one.
    """

    def __init__(self, cache: Cache, policy: Policy, now: float, *, foresee: bool) -> None:
        self._cache, self._policy, self._now, self._foresee = cache, policy, now, foresee
        self._decisions: Decisions | None = None
        self._admitted: dict[str, str] = {}
        """By uid the gangs of the pods that started in earlier rounds."""
        self._notified: frozenset[str] | None = None
        """Uids of the pods that were notified before the cycle; None before the first round."""
        self._excluded_gangs: set[str] = set()
        """Gangs that had a start withdrawn, low ones twice."""
        self._deferred_gangs: set[str] = set()
        """Low gangs that had a start withdrawn."""
        self._rounds_left = _MAX_ROUNDS

    def run(self) -> Decisions:
        """Evict gangs at their run limits, then run rounds until one changes nothing."""
        self._enforce_run_limits()
        while self._run_round():
            pass
        assert self._decisions is not None
        decisions = replace(self._decisions, next_notice=self._next_notice(self._decisions.admits))
        return merge_part_decisions(decisions, self._cache.parts)

    def _enforce_run_limits(self) -> None:
        """Evict the gangs whose notice before a run limit is due. The rounds see their pods as ending: no plan needs
        these evictions, so no reprieve withdraws them.
        """
        cache, now = self._cache, self._now
        pools = {key: pool_state.pool for key, pool_state in cache.pool_states.items()}
        evicts = tuple(evict for run in cache.limited_runs.due(now) for evict in limit_evicts(run, pools, now))
        if evicts:
            cache.apply_changed_gangs(gangs_at_limits(evicts, cache.snapshot_gangs, cache.parts), now)
            self._decisions = Decisions(evicts=evicts)

    def _next_notice(self, admits: Iterable[Admit]) -> float | None:
        """Return when the first gang must be notified of its run limit, gangs that start now included."""
        times = [self._cache.limited_runs.next_notice(self._now)]
        for admit in admits:
            gang, pool = self._cache.snapshot_gangs[admit.gang], self._cache.pool_states[admit.pool].pool
            start = run_start(gang)
            run = limited_run(gang, [pool], self._now if start is None else start)
            times.append(run.notice_time if run is not None else None)
        return min((time for time in times if time is not None), default=None)

    def _run_round(self) -> bool:
        """Run all phases once; return whether another round must follow."""
        self._cache.begin_round(self._now)
        state = CycleState(self._cache, self._policy, self._now, self._excluded_gangs, self._deferred_gangs)
        for phase in PHASES:
            phase.run(state)
        found = collect_decisions(state)
        withdrawn = self._admitted.keys() & {uid for evict in found.evicts for uid in evict.pods}
        if withdrawn and self._decisions is not None:
            self._withdraw_starts(self._decisions, withdrawn)
            return True
        return self._add_decisions(state, found)

    def _withdraw_starts(self, decisions: Decisions, uids: set[str]) -> None:
        """Drop the round, and the starts of earlier rounds whose pods it evicts: other gangs need their nodes.

        The gangs are deferred or excluded for the rest of the cycle, or two gangs could take turns forever.
        """
        self._cache.end_round()
        gangs = [self._cache.snapshot_gangs[name] for name in sorted({self._admitted.pop(uid) for uid in uids})]
        for gang in gangs:
            is_first = gang.band is LOW and self._deferred_gangs.isdisjoint(gang.part_ids)
            (self._deferred_gangs if is_first else self._excluded_gangs).update(gang.part_ids)
        self._cache.apply_changed_gangs(without_starts(gangs, uids), self._now)
        self._decisions = remove_starts(decisions, uids)

    def _add_decisions(self, state: CycleState, found: Decisions) -> bool:
        """Add a round's decisions to those of earlier rounds; return whether another round must follow."""
        cache, before = self._cache, self._decisions
        if self._notified is None:
            self._notified = frozenset(pod.uid for _, pod in state.notified)
        self._rounds_left -= 1
        broken = find_broken_starts(found, before, self._admitted, cache.snapshot_gangs)
        if broken:
            found = remove_starts(found, broken)
        more = self._rounds_left > 0 and bool(broken or _is_unsettled(state, found))
        changed = changed_gangs(found, cache.snapshot_gangs, cache.planned_gangs, self._now) if more else {}
        # Equal rounds would follow a round that changes nothing.
        unsettled = more and bool(broken or changed)
        if not unsettled:
            found = replace(found, holds=_explain_pending(state, foresee=self._foresee))
        cache.end_round()
        self._admitted |= {uid: admit.gang for admit in found.admits for uid in admit.nodes}
        if before is not None:
            found = remove_starts(merge_decisions(before, found, notified=self._notified), broken)
        self._decisions = found
        if unsettled:
            names = sorted({self._admitted.pop(uid) for uid in broken & self._admitted.keys()})
            waiting = without_starts((changed.get(name, cache.snapshot_gangs[name]) for name in names), broken)
            cache.apply_changed_gangs(changed | waiting, self._now)
        return unsettled


def _explain_pending(state: CycleState, *, foresee: bool) -> tuple[PendingReport, ...]:
    return tuple(merge_part_reports(state, explain_pending(state, state.queue_order, forecast=foresee)))


def _is_unsettled(state: CycleState, found: Decisions) -> bool:
    """Return whether another round may decide more."""
    if found.evicts or found.reprieves or found.promotes or state.planned_gangs() or state.has_freed_capacity:
        return True  # What was reserved for gangs that lost their plans is not free yet.
    # Where nodes are missing, the tenants whose guarantees are reduced depend on what runs inside.
    starts_guaranteed = any(not admit.borrowed for admit in found.admits)
    if starts_guaranteed and any(pool_state.guarantees.losses for pool_state in state.pool_states.values()):
        return True
    return bool(found.admits) and (
        is_overtaken(state, state.queue_order)
        or _may_be_reclaimed(state, found)
        or _may_yield(state, found)
        or any_plan_lacks_reserve(state)
    )


def _may_yield(state: CycleState, found: Decisions) -> bool:
    """Return whether a low gang starts whose place a waiting gang may take: by an earlier plan, aged or short."""
    gangs = ((state.gangs[admit.gang], admit.pool) for admit in found.admits)
    # Other low gangs start after the guaranteed band, in what it cannot use.
    low = {
        key for gang, key in gangs if gang.band is LOW and (gang.plan is not None or gang.short or state.has_aged(gang))
    }
    pools = {key for key in low if state.pool_states[key].pool.low_yields}
    return bool(pools) and any(not pools.isdisjoint(pending.allowed_pools) for pending in state.guaranteed_gangs())


def _may_be_reclaimed(state: CycleState, found: Decisions) -> bool:
    """Return whether a gang in several pools may reclaim, for its guarantee, what a borrowing gang starts in now.

    While another part of that gang borrows, it is scheduled after borrowing gangs, and evicts no pod that starts in the
    same round.
    """
    waits = {key for pending in state.guaranteed_gangs() if pending.gang.part_info for key in pending.allowed_pools}
    return any(admit.borrowed and admit.pool in waits for admit in found.admits)


def start_in_another_pool(state: CycleState) -> bool:
    """Start gangs with a guaranteed plan in other pools where they fit; return whether any starts. A borrowing gang
    switches pools in queue order (`start_in_other_pool`), since other gangs may come first there.
    """
    before = len(state.plans)
    for gang, plan in sorted(state.plans.items()):
        pending = state.pending_gangs[gang]
        if plan.borrowed or len(pending.allowed_pools) == 1 or pending.gang.part_info is not None:
            continue
        places = list(guaranteed_placements(_other_pools(state, pending), pending))
        if places:
            release_plan(state.pool_states[plan.pool], pending, plan)
            state.remove_plan(pending)
            start_in_best_pool(state, pending, places)
    return len(state.plans) < before


def _other_pools(state: CycleState, pending: PendingGang) -> Iterator[PoolState]:
    """Yield the other pools in which the tenant's guarantee may hold the gang."""
    for pool_state in state.usable_pools(pending):
        if pool_state.pool.key != state.plans[pending.gang.id].pool and pool_state.guarantee.may_use_guarantee(
            pending.gang, pending.min_members
        ):
            yield pool_state


def merge_part_decisions(found: Decisions, parts: Mapping[str, tuple[str, ...]]) -> Decisions:
    """Return the decisions with gangs in place of their parts; `parts`: the parts of each gang that has any."""
    if not parts:
        return found
    wholes = {part: whole for whole, names in parts.items() for part in names}
    return replace(
        found,
        admits=tuple(merge_admits(replace(each, gang=wholes.get(each.gang, each.gang)) for each in found.admits)),
        evicts=tuple(_merge_evicts(found.evicts, wholes)),
        reprieves=tuple(
            Reprieve(gang=gang, pods=pods)
            for gang, pods in _merge_pods(((each.gang, each.pods) for each in found.reprieves), wholes).items()
        ),
        promotes=tuple(
            Promote(gang=gang, pods=pods)
            for gang, pods in _merge_pods(((each.gang, each.pods) for each in found.promotes), wholes).items()
        ),
        plans=_merge_plans(found.plans, wholes),
    )


def _merge_evicts(evicts: Iterable[Evict], wholes: Mapping[str, str]) -> Iterable[Evict]:
    """Join the evictions of a gang's parts with one deadline and one beneficiary, in the order of the first."""
    known: dict[tuple[str, float, str, str], Evict] = {}
    for evict in evicts:
        gang = wholes.get(evict.gang)
        if gang is None:
            known[evict.gang, evict.deadline, evict.makes_room_for, "\n".join(evict.pods)] = evict
            continue
        key = gang, evict.deadline, evict.makes_room_for, ""
        before = known.get(key)
        known[key] = replace(evict, gang=gang) if before is None else _join_evicts(before, evict)
    return known.values()


def _join_evicts(before: Evict, evict: Evict) -> Evict:
    return replace(
        before,
        pods=(*before.pods, *evict.pods),
        whole=before.whole or evict.whole,
        lost=before.lost + evict.lost,
        saved=max(before.saved, evict.saved),
    )


def _merge_pods(each: Iterable[tuple[str, tuple[str, ...]]], wholes: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for part, pods in each:
        gang = wholes.get(part, part)
        found[gang] = found.get(gang, ()) + pods
    return found


def _merge_plans(plans: Mapping[str, PreemptionPlan], wholes: Mapping[str, str]) -> dict[str, PreemptionPlan]:
    found: dict[str, PreemptionPlan] = {}
    for part, plan in sorted(plans.items()) if wholes else plans.items():
        gang = wholes.get(part, part)
        before = found.get(gang)
        found[gang] = plan if before is None else replace(before, also=(*before.also, plan))
    return found
