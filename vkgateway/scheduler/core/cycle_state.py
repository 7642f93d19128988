"""State of a round: the cache's gangs and pools, and what the round has decided so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.capacity.node_fit import BoolArray, IntArray
from vkgateway.scheduler.core.capacity.slow_terminations import find_late_pods
from vkgateway.scheduler.core.decisions import Admit, Decisions, Evict, Promote, Reprieve, merge_admits
from vkgateway.scheduler.core.journal import Trial
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import NOTIFIED, PLACED, Gang, Pod, Policy, PoolKey, PreemptionPlan

_PLAN_INTERVAL = 1e-6
"""Seconds between two plans of one cycle: the resolution of times since the epoch."""


class GangStart(NamedTuple):
    """A gang that starts in this round, and the nodes of its pods by uid."""

    pool_state: PoolState
    nodes: dict[str, str]


class SavedDecisions(NamedTuple):
    """Copies of the decisions at one moment."""

    plans: dict[str, PreemptionPlan]
    started: dict[str, GangStart]
    evicts: list[Evict]
    admits: list[Admit]
    pool_by_pod: dict[str, PoolKey]
    guaranteed_starts: dict[str, dict[str, None]]
    decision_count: int
    has_freed_capacity: bool


class RoundDecisions:
    """Starts, plans and evictions of a round, without their effects on pools."""

    def __init__(self, now: float, last_plan_time: float) -> None:
        self.now = now
        self.plans: dict[str, PreemptionPlan] = {}
        """Plans of gangs that wait for victims to terminate, by gang."""
        self.started: dict[str, GangStart] = {}
        """Gangs that start, by name."""
        self.evicts: list[Evict] = []
        self.guaranteed_starts: dict[str, dict[str, None]] = {}
        """By tenant, the names of gangs that start inside its guarantee, now or by plan."""
        self.decision_count = 0
        """Number of starts and plans: a tenant's share has changed when this has."""
        self.has_freed_capacity = False
        """Whether reserved capacity, or part of a guarantee, is free again, so that another round may use it."""
        self.pool_by_pod: dict[str, PoolKey] = {}
        """Pools of the pods that start, by uid."""
        self._admits: list[Admit] = []
        self._last_plan_time = last_plan_time

    def next_plan_time(self) -> float:
        """Return the time of a plan that is made now. Plans have distinct times, and so an order."""
        self._last_plan_time = max(self.now, self._last_plan_time + _PLAN_INTERVAL)
        return self._last_plan_time

    def is_decided(self, gang: str) -> bool:
        """Return whether a gang, or a part of one, starts or has a plan."""
        return gang in self.started or gang in self.plans

    def merged_admits(self) -> Iterable[Admit]:
        """Return the admissions, those of one gang and kind merged."""
        return merge_admits(self._admits)

    def move_plan(self, gang: str, nodes: Mapping[str, str], *, keeps_leaves: bool) -> None:
        """Move a plan to other nodes of its pool. `keeps_leaves`: see `PreemptionPlan.leaves`."""
        plan = self.plans[gang]
        self.plans[gang] = replace(plan, nodes=dict(nodes), leaves=plan.leaves if keeps_leaves else None)

    def note_freed_capacity(self) -> None:
        """Note that capacity is free that earlier phases of the round could not use."""
        self.has_freed_capacity = True

    def _record_start(self, admit: Admit, pool_state: PoolState, nodes: Mapping[str, str]) -> None:
        self._admits.append(admit)
        self.pool_by_pod.update(dict.fromkeys(admit.nodes, admit.pool))
        before = self.started.get(admit.gang)
        self.started[admit.gang] = GangStart(pool_state, {**(before.nodes if before is not None else {}), **nodes})

    def _save_decisions(self) -> SavedDecisions:
        return SavedDecisions(
            dict(self.plans),
            dict(self.started),
            list(self.evicts),
            list(self._admits),
            dict(self.pool_by_pod),
            {tenant: dict(gangs) for tenant, gangs in self.guaranteed_starts.items()},
            self.decision_count,
            self.has_freed_capacity,
        )

    def _restore_decisions(self, saved: SavedDecisions) -> None:
        """Go back to saved decisions, which are used up by this."""
        self.plans, self.started = saved.plans, saved.started
        self.guaranteed_starts, self.pool_by_pod = saved.guaranteed_starts, saved.pool_by_pod
        self.evicts[:], self._admits[:] = saved.evicts, saved.admits
        self.decision_count, self.has_freed_capacity = saved.decision_count, saved.has_freed_capacity


class CycleState(RoundDecisions):
    """A round under way. Its methods change pools and decisions together."""

    def __init__(
        self,
        cache: Cache,
        policy: Policy,
        now: float,
        excluded_gangs: Collection[str] = (),
        deferred_gangs: Collection[str] = (),
    ) -> None:
        """Create the state. A start of these gangs was withdrawn: `excluded_gangs` neither start nor reserve anything,
        and `deferred_gangs` come after the guaranteed band.
        """
        self.pending_table = cache.pending_table
        """Gangs whose min members do not all run."""
        self._guaranteed_gangs = self.pending_table.select_gangs(~self.pending_table.is_low)
        self._planned_gangs = self.pending_table.select_gangs(self.pending_table.has_plan)
        plans = [(pending, pending.gang.plan) for pending in self._planned_gangs if pending.gang.plan is not None]
        super().__init__(now, max((plan.created for _, plan in plans), default=0.0))
        self.planned_borrowers: dict[str, list[PendingGang]] = {}
        """By tenant, the gangs with a plan to borrow from the last cycle."""
        for pending, plan in plans:
            if plan.borrowed:
                self.planned_borrowers.setdefault(pending.tenant, []).append(pending)
        self.policy = policy
        self._journal = cache.journal
        self.excluded_gangs, self.deferred_gangs = excluded_gangs, deferred_gangs
        self.gangs: Mapping[str, Gang] = cache.gangs
        self.pending_gangs: Mapping[str, PendingGang] = cache.pending_gangs
        self.surplus_gangs: Collection[str] = cache.surplus_gangs.keys()
        """Gangs with pending surplus pods."""
        self.losing_gangs: Mapping[str, Gang] = cache.losing_gangs
        """Gangs that lost members which no pod replaces yet."""
        self.pool_states: Mapping[PoolKey, PoolState] = cache.pool_states
        self.part_ids: Mapping[str, tuple[str, ...]] = cache.parts
        """The parts of each gang in several pools."""
        reports = {**cache.invalid_reports, **cache.invalid_part_reports}
        self.invalid_reports = [reports[name] for name in sorted(reports)]
        """Reports of gangs with pending pods that cannot be scheduled as they are written."""
        self.notified = NotifiedPods(self.pool_states)
        self.queue_order: IntArray = np.zeros(0, dtype=np.int64)
        """Borrowing gangs in queue order, as indices of `pending_table`; empty before they are scheduled."""
        self._only_plans = False

    def planned_gangs(self) -> list[PendingGang]:
        """Return the undecided gangs with a plan from the last cycle."""
        return _undecided(self, self._planned_gangs)

    def guaranteed_gangs(self) -> list[PendingGang]:
        """Return the undecided gangs of the guaranteed band."""
        return [each for each in _undecided(self, self._guaranteed_gangs) if each.gang.id not in self.excluded_gangs]

    def undecided_mask(self) -> BoolArray:
        """Return a mask of the undecided gangs of `pending_table`."""
        return self.pending_table.mask_without(self.started.keys() | self.plans.keys())

    def has_aged(self, gang: Gang) -> bool:
        """Return whether a gang has waited for the age cap."""
        return self.now - gang.created >= self.policy.age_cap

    def usable_pools(self, pending: PendingGang) -> Iterator[PoolState]:
        """Yield the pools that a gang may use, in its order of preference."""
        for key in pending.allowed_pools:
            pool_state = self.pool_states.get(key)
            if pool_state is not None and pending.tenant in pool_state.tenant_usage.quotas:
                yield pool_state

    def start_pods(
        self,
        pending: PendingGang,
        pool_state: PoolState,
        pods: Sequence[Pod],
        nodes: Mapping[str, str],
        *,
        guaranteed: bool,
        behind: str = "",
        lent: bool = False,
    ) -> None:
        """Start pods now. They count as placed already, and guaranteed pods have their part of the guarantee.

        `behind`: the gang on whose reserved nodes they start. `lent`: a reservation may reclaim them.
        """
        if self._only_plans:
            self.add_plan(pending, pool_state, nodes, guaranteed=guaranteed, created=self.next_plan_time())
            return
        _charge_tenant(self, pending, pool_state, pods, guaranteed=guaranteed)
        self._add_admit(pending, pool_state, pods, nodes, guaranteed=guaranteed, behind=behind, lent=lent)

    def start_planned(self, pending: PendingGang, pool_state: PoolState, nodes: Mapping[str, str]) -> None:
        """Start a gang that has a plan, on nodes where its pods count as placed already."""
        plan = self.plans.pop(pending.gang.id)
        self._add_admit(pending, pool_state, pending.min_members, nodes, guaranteed=not plan.borrowed)

    def _add_admit(
        self,
        pending: PendingGang,
        pool_state: PoolState,
        pods: Sequence[Pod],
        nodes: Mapping[str, str],
        *,
        guaranteed: bool,
        behind: str = "",
        lent: bool = False,
    ) -> None:
        gang = pending.gang
        chosen = {pod.uid: nodes[pod.uid] for pod in pods}
        admit = Admit(gang=gang.id, pool=pool_state.pool.key, nodes=chosen, borrowed=not guaranteed, behind=behind)
        self._record_start(admit, pool_state, nodes)
        pool_state.expected_ends.add_started(gang, pods, nodes, self.now)
        reservation = pool_state.reservations.nodes
        if reservation is not None and (
            behind or lent or reservation.can_backfill(pool_state.expected_ends, gang, self.now)
        ):
            for pod in pods:
                reservation.count_as_freed(nodes[pod.uid], pod.shape)

    def add_plan(
        self,
        pending: PendingGang,
        pool_state: PoolState,
        nodes: Mapping[str, str],
        *,
        guaranteed: bool,
        created: float,
        evicts: Iterable[Evict] = (),
        leaves: int | None = None,
    ) -> None:
        """Plan a gang's start for when the victims have terminated. Its pods count as placed."""
        _charge_tenant(self, pending, pool_state, pending.min_members, guaranteed=guaranteed)
        plan = PreemptionPlan(
            pool=pool_state.pool.key, nodes=dict(nodes), borrowed=not guaranteed, created=created, leaves=leaves
        )
        self.plans[pending.gang.id] = plan
        for evict in evicts:
            _add_evict(self, pool_state, evict)
            for sibling_state, sibling in list(_sibling_evicts(self, evict)):
                _add_evict(self, sibling_state, sibling)

    def remove_plan(self, pending: PendingGang) -> None:
        """Drop a gang's plan, whose nodes and guarantee are released already."""
        plan = self.plans.pop(pending.gang.id)
        pool_state = self.pool_states[plan.pool]
        for pod in pending.min_members:
            pool_state.tenant_usage.add_usage(pending.tenant, pod.shape, -1)
            if not plan.borrowed:
                pool_state.guarantee_usage.pods.leave_pod(pending.tenant, pod)
        self.has_freed_capacity = self.has_freed_capacity or plan.borrowed

    @contextmanager
    def only_plans(self) -> Iterator[None]:
        """Plan gangs in this block that could start: whether they do depends on the other parts of their gang."""
        self._only_plans = True
        try:
            yield
        finally:
            self._only_plans = False

    def trial(self) -> Trial:
        """Return a trial of decisions, with their effects on pools."""
        trial = self._journal.trial()
        self._journal.record(self._restore_decisions, self._save_decisions())
        return trial


def pending_parts(state: CycleState, gang: Gang) -> list[PendingGang]:
    """Return the parts of a gang whose min members do not all run; for a gang in one pool, the gang itself."""
    parts = (state.pending_gangs.get(name) for name in gang.part_ids)
    return [part for part in parts if part is not None and part.min_members]


def _undecided(state: CycleState, gangs: Sequence[PendingGang]) -> list[PendingGang]:
    decided = state.started.keys() | state.plans.keys()
    return [pending for pending in gangs if pending.gang.id not in decided]


def _charge_tenant(
    state: CycleState, pending: PendingGang, pool_state: PoolState, pods: Sequence[Pod], *, guaranteed: bool
) -> None:
    state.decision_count += 1
    for each in state.pool_states.values():
        if each.reservations.release_guarantee(pending.gang):
            state.note_freed_capacity()
    for pod in pods:
        pool_state.tenant_usage.add_usage(pending.tenant, pod.shape, 1)
    if guaranteed:
        state.guaranteed_starts.setdefault(pending.tenant, {})[pending.gang.id] = None
        pool_state.guarantee.mark_guaranteed(pending.tenant, pods, gang=pending.gang.id)


def _add_evict(state: CycleState, pool_state: PoolState, evict: Evict) -> None:
    pool_state.evict_pods(evict)
    state.evicts.append(evict)


def _sibling_evicts(state: CycleState, evict: Evict) -> Iterator[tuple[PoolState, Evict]]:
    """Yield the evictions of the other parts of a gang in several pools, one part of which is evicted."""
    gang = state.gangs[evict.gang]
    if gang.part_info is None or not evict.whole:
        return
    for name in gang.part_ids:
        for pool_state in state.pool_states.values():
            known = pool_state.gangs.get(name)
            pods = tuple(
                pod.uid
                for pod in (known.pods if known is not None else ())
                if pod.state is PLACED
                and pool_state.gang_index.has_pod(pod)
                and pod.uid not in pool_state.terminating_pods
            )
            if pods:
                yield pool_state, replace(evict, gang=name, pods=pods, lost=0.0, saved=0.0)


def late_pod_uids(pool_state: PoolState, now: float) -> set[str]:
    """Return the uids of terminating pods that take longer than any pod that could be evicted now."""
    terminating = pool_state.terminating_pods.values()
    if next(find_late_pods(terminating, 0.0, since=now, now=now), None) is None:
        return set()
    late = find_late_pods(terminating, pool_state.victims.longest_termination, since=now, now=now)
    return {pod.uid for pod in late}


def victim_gangs(state: CycleState, pool_state: PoolState) -> list[Gang]:
    """Return the gangs with pods in a pool that were notified, before or in this cycle."""
    names = {gang.id for gang, _ in state.notified.in_pool(pool_state)} | {evict.gang for evict in state.evicts}
    return [pool_state.gangs[name] for name in sorted(names) if name in pool_state.gangs]


def has_plan(state: CycleState, whole_id: str) -> bool:
    """Return whether a gang, or any part of it, has a plan."""
    return whole_id in state.plans or any(name in state.plans for name in state.part_ids.get(whole_id, ()))


def collect_decisions(state: CycleState) -> Decisions:
    """Return all decisions of the round, without the reasons of pending gangs."""
    losses = (loss for pool_state in state.pool_states.values() for loss in pool_state.guarantees.losses)
    return Decisions(
        admits=tuple(state.merged_admits()),
        evicts=tuple(state.evicts),
        reprieves=tuple(_find_reprieves(state)),
        promotes=tuple(_find_promotes(state)),
        plans=dict(state.plans),
        losses=tuple(losses),
    )


def _find_reprieves(state: CycleState) -> Iterator[Reprieve]:
    """Yield the pods that were notified before the cycle, and that no plan needs any more."""
    again = {uid for evict in state.evicts for uid in evict.pods}
    leaving = {uid for pool_state in state.pool_states.values() for uid in pool_state.terminating_pods}
    by_gang: dict[str, list[str]] = {}
    for gang, pod in state.notified:
        if pod.uid not in again and pod.uid not in leaving:
            by_gang.setdefault(gang.id, []).append(pod.uid)
    for name, pods in sorted(by_gang.items()):
        yield Reprieve(gang=name, pods=tuple(pods))


def _find_promotes(state: CycleState) -> Iterator[Promote]:
    """Yield the running pods that borrowed and are inside guarantees now, without victims."""
    victims = {uid for evict in state.evicts for uid in evict.pods}
    for pool_state in state.pool_states.values():
        for gang in pool_state.guarantee.entered_gangs():
            borrowed = (pod.uid for pod in gang.pods if pod.state is PLACED and pod.borrowed)
            pods = [uid for uid in borrowed if pool_state.guarantee.is_guaranteed(uid) and uid not in victims]
            if pods:
                yield Promote(gang=gang.id, pods=tuple(pods))


class NotifiedPods:
    """Notified pods with their gangs, by pool and by the gang that they make room for."""

    def __init__(self, pool_states: Mapping[PoolKey, PoolState]) -> None:
        self._by_pool = {key: list(_notified_in(pool_state)) for key, pool_state in pool_states.items()}
        self._by_beneficiary: dict[tuple[str, PoolKey], list[tuple[Gang, Pod]]] = {}
        for key, notified in self._by_pool.items():
            for gang, pod in notified:
                self._by_beneficiary.setdefault((pod.evicted_for, key), []).append((gang, pod))

    def __iter__(self) -> Iterator[tuple[Gang, Pod]]:
        for notified in self._by_pool.values():
            yield from notified

    def in_pool(self, pool_state: PoolState) -> Sequence[tuple[Gang, Pod]]:
        """Return the notified pods of a pool."""
        return self._by_pool.get(pool_state.pool.key, ())

    def for_gang(self, whole_id: str, pool_state: PoolState) -> list[tuple[Gang, Pod]]:
        """Return the pods of a pool that are evicted for a gang (`Gang.whole_id`)."""
        return self._by_beneficiary.get((whole_id, pool_state.pool.key), [])


def _notified_in(pool_state: PoolState) -> Iterator[tuple[Gang, Pod]]:
    for _, gang in sorted(pool_state.gang_index.notified.items()):
        for pod in gang.pods:
            if pod.state is NOTIFIED and pod.pool == pool_state.pool.key:
                yield gang, pod
