"""What has been decided so far in a cycle, and the standing of each pool with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from vkgateway.arbiter.cache import Cache
from vkgateway.arbiter.capacity.node_fit import BoolArray
from vkgateway.arbiter.capacity.slow_terminations import find_late_pods
from vkgateway.arbiter.decisions import Admit, Evict, Promote, Reprieve
from vkgateway.arbiter.pool_state import PoolCheckpoint as StandingCheckpoint
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import NOTIFIED, PLACED, Gang, Pod, Policy, PoolKey, PreemptionPlan

_PLAN_INTERVAL = 1e-6
"""Seconds between two plans of one cycle; times since the epoch are not told more finely."""


class GangStart(NamedTuple):
    """A gang that starts in this cycle, and where."""

    pool_state: PoolState
    nodes: dict[str, str]


class CycleCheckpoint(NamedTuple):
    """What was decided at one moment of a cycle."""

    pool_states: dict[PoolKey, StandingCheckpoint]
    plans: dict[str, PreemptionPlan]
    started: dict[str, GangStart]
    evicts: list[Evict]
    admits: list[Admit]
    guaranteed_starts: dict[str, dict[str, None]]
    decision_count: int
    has_freed_capacity: bool


class CycleState:
    """A cycle under way."""

    def __init__(self, carry: Cache, policy: Policy, now: float, barred: Collection[str] = ()) -> None:
        """`excluded_gangs`: gangs that get nothing, and for which nothing is reserved: a start of theirs was
        withdrawn.
        """
        self.now = now
        self.excluded_gangs = barred
        self.policy = policy
        self.gangs: Mapping[str, Gang] = carry.gangs
        self.pending_gangs: Mapping[str, PendingGang] = carry.pending_gangs
        self.surplus_gangs: Collection[str] = carry.surplus_gangs.keys()
        """Gangs of which pods beyond the minimum wait."""
        self.pool_states: Mapping[PoolKey, PoolState] = carry.pool_states
        unreadable = (
            {**carry.invalid_reports, **carry.invalid_part_reports}
            if carry.invalid_part_reports
            else carry.invalid_reports
        )
        self.invalid_reports = [unreadable[name] for name in sorted(unreadable)]
        """Gangs of which some wait, and nothing can be done for them."""
        self.part_ids: Mapping[str, tuple[str, ...]] = carry.parts
        """The parts of each gang that is handled in parts."""
        self._only_plans = False
        self.pool_by_pod: dict[str, PoolKey] = {}
        """By uid the pools of the pods of such gangs that start in this cycle."""
        self.plans: dict[str, PreemptionPlan] = {}
        self.started: dict[str, GangStart] = {}
        self.evicts: list[Evict] = []
        self.has_freed_capacity = False
        """What was kept for somebody is free: the room of who borrows and starts in another pool, or cells."""
        self.guaranteed_starts: dict[str, dict[str, None]] = {}
        """By tenant the gangs that were given something inside its cells."""
        self.decision_count = 0
        """Grows whenever somebody gets something."""
        self._admits: list[Admit] = []
        self.pending_table = carry.pending_table
        """Gangs that have not what they need to run."""
        self._guaranteed_gangs = self.pending_table.select_gangs(~self.pending_table.is_low)
        self._planned_gangs = self.pending_table.select_gangs(self.pending_table.has_plan)
        self.planned_borrowers: dict[str, list[PendingGang]] = {}
        """By tenant the gangs that the last cycle planned to borrow."""
        for ask in self._planned_gangs:
            if ask.gang.plan is not None and ask.gang.plan.borrowed:
                self.planned_borrowers.setdefault(ask.tenant, []).append(ask)
        self._last_plan_time = max(
            (ask.gang.plan.made for ask in self._planned_gangs if ask.gang.plan is not None), default=0.0
        )
        self._notified = {key: list(_notified_pods(standing)) for key, standing in self.pool_states.items()}
        self._notified_for: dict[tuple[str, PoolKey], list[tuple[Gang, Pod]]] = {}
        for key, told in self._notified.items():
            for gang, pod in told:
                self._notified_for.setdefault((pod.evicted_for, key), []).append((gang, pod))

    def planned_gangs(self) -> list[PendingGang]:
        """Gangs that the last cycle planned for, that still have not what they need to run, and of which nothing has
        been decided in this one.
        """
        return self._without_decision(self._planned_gangs)

    def undecided_mask(self) -> BoolArray:
        """A mask of those of `pending_table` of which nothing has been decided."""
        return self.pending_table.mask_without(self.started.keys() | self.plans.keys())

    def has_aged(self, gang: Gang) -> bool:
        """Whether it has waited for so long that it grows no older."""
        return self.now - gang.created >= self.policy.age_cap

    def movable_mask(self) -> BoolArray:
        """A mask of those of `pending_table` that have a plan, borrow, and may go to several pools."""
        plans = (
            name for name, plan in self.plans.items() if plan.borrowed and self._can_move(self.pending_gangs[name])
        )
        return ~self.pending_table.mask_without(plans)

    @staticmethod
    def _can_move(ask: PendingGang) -> bool:
        return len(ask.allowed_pools) > 1 and ask.gang.part_info is None

    def next_plan_time(self) -> float:
        """The time of a plan that is made now: later than that of all others, so that they have an order."""
        self._last_plan_time = max(self.now, self._last_plan_time + _PLAN_INTERVAL)
        return self._last_plan_time

    def guaranteed_gangs(self) -> list[PendingGang]:
        """Gangs of the guaranteed band that have not what they need to run, and of which nothing has been decided."""
        return [ask for ask in self._without_decision(self._guaranteed_gangs) if ask.gang.id not in self.excluded_gangs]

    def _without_decision(self, asks: Sequence[PendingGang]) -> list[PendingGang]:
        done = self.started.keys() | self.plans.keys()
        return [ask for ask in asks if ask.gang.id not in done]

    def usable_pools(self, ask: PendingGang) -> Iterator[PoolState]:
        """The pools that the gang may use, best liked first."""
        for key in ask.allowed_pools:
            standing = self.pool_states.get(key)
            if standing is not None and standing.is_usable_by(ask):
                yield standing

    def notified_pods(self, standing: PoolState) -> Sequence[tuple[Gang, Pod]]:
        """Pods in a pool that were told to go before this cycle, with their gangs."""
        return self._notified.get(standing.pool.key, ())

    def notified_uids(self) -> frozenset[str]:
        """Uids of the pods that were told to go before this cycle."""
        return frozenset(pod.uid for told in self._notified.values() for _, pod in told)

    def notified_for(self, gang: str, standing: PoolState) -> list[tuple[Gang, Pod]]:
        """Those of them that go for this gang (`Gang.whole_id`)."""
        return self._notified_for.get((gang, standing.pool.key), [])

    def late_pod_uids(self, standing: PoolState) -> set[str]:
        """Uids of the pods that take longer to end than whoever could be told to go now."""
        slow = find_late_pods(standing.terminating_pods.values(), 0.0, since=self.now, now=self.now)
        if next(slow, None) is None:
            return set()
        slow = find_late_pods(
            standing.terminating_pods.values(), standing.longest_termination, since=self.now, now=self.now
        )
        return {pod.uid for pod in slow}

    def victim_gangs(self, standing: PoolState) -> list[Gang]:
        """Gangs of which pods in a pool were told to go, before or in this cycle."""
        names = {gang.id for gang, _ in self.notified_pods(standing)} | {evict.gang for evict in self.evicts}
        return [standing.gangs[name] for name in sorted(names) if name in standing.gangs]

    def start_pods(
        self,
        ask: PendingGang,
        standing: PoolState,
        pods: Sequence[Pod],
        nodes: Mapping[str, str],
        *,
        inside: bool,
        behind: str = "",
        lent: bool = False,
    ) -> None:
        """These pods start now; their room is taken already, and their cells are held if they are inside.

        `behind`: the gang in whose reserved place they start. `lent`: they can be called in for whoever is ahead.
        """
        if self._only_plans:
            self.add_plan(ask, standing, nodes, inside=inside, made=self.next_plan_time())
            return
        self._charge_tenant(ask, standing, pods, inside=inside)
        self._add_admit(ask, standing, pods, nodes, inside=inside, behind=behind, lent=lent)

    def start_planned(self, ask: PendingGang, standing: PoolState, nodes: Mapping[str, str]) -> None:
        """A gang that has a plan starts on other nodes than planned; room and cells are seen to."""
        plan = self.plans.pop(ask.gang.id)
        self._add_admit(ask, standing, ask.min_members, nodes, inside=not plan.borrowed)

    def _add_admit(
        self,
        ask: PendingGang,
        standing: PoolState,
        pods: Sequence[Pod],
        nodes: Mapping[str, str],
        *,
        inside: bool,
        behind: str = "",
        lent: bool = False,
    ) -> None:
        gang = ask.gang
        chosen = {pod.uid: nodes[pod.uid] for pod in pods}
        admit = Admit(gang=gang.id, pool=standing.pool.key, nodes=chosen, borrowed=not inside, behind=behind)
        self._admits.append(admit)
        if gang.part_info is not None:
            self.pool_by_pod.update(dict.fromkeys(chosen, standing.pool.key))
        before = self.started.get(gang.id)
        self.started[gang.id] = GangStart(standing, {**before.nodes, **nodes} if before is not None else dict(nodes))
        standing.expected_ends.add_started(gang, pods, nodes, self.now)
        kept = standing.reservation
        if kept is not None and (behind or lent or kept.can_backfill(standing.expected_ends, gang, self.now)):
            for pod in pods:
                kept.count_as_freed(nodes[pod.uid], pod.shape)

    def add_plan(
        self,
        ask: PendingGang,
        standing: PoolState,
        nodes: Mapping[str, str],
        *,
        inside: bool,
        made: float,
        evicts: Iterable[Evict] = (),
        leaves: int | None = None,
    ) -> None:
        """The gang starts there when those have gone who leave; its room is taken already, its cells are held."""
        self._charge_tenant(ask, standing, ask.min_members, inside=inside)
        plan = PreemptionPlan(pool=standing.pool.key, nodes=dict(nodes), borrowed=not inside, made=made, leaves=leaves)
        self.plans[ask.gang.id] = plan
        for evict in evicts:
            self._add_evict(standing, evict)
            for other, beside in list(self._sibling_evicts(evict)):
                self._add_evict(other, beside)

    def _add_evict(self, standing: PoolState, evict: Evict) -> None:
        pods = standing.mark_victims(evict)
        standing.expected_ends.add_notified(standing.gangs[evict.gang], pods, evict.deadline)
        self.evicts.append(evict)

    def _sibling_evicts(self, evict: Evict) -> Iterator[tuple[PoolState, Evict]]:
        """Yield the evictions of all else that runs of a gang in several pools, whose part is evicted."""
        gang = self.gangs[evict.gang]
        if gang.part_info is None or not evict.whole:
            return
        for name in gang.part_ids:
            for standing in self.pool_states.values():
                known = standing.gangs.get(name)
                pods = tuple(
                    pod.uid
                    for pod in (known.pods if known is not None else ())
                    if pod.state is PLACED and standing.has_pod(pod) and pod.uid not in standing.terminating_pods
                )
                if pods:
                    yield standing, replace(evict, gang=name, pods=pods, lost=0.0, saved=0.0)

    def remove_plan(self, ask: PendingGang) -> None:
        """The gang has no plan any more, it starts in another pool; its room and its cells were let go already."""
        plan = self.plans.pop(ask.gang.id)
        standing = self.pool_states[plan.pool]
        for pod in ask.min_members:
            standing.add_usage(ask.tenant, pod, -1)
            if not plan.borrowed:
                standing.guarantee_usage.revert_entry(ask.tenant, pod)
        self.has_freed_capacity = self.has_freed_capacity or plan.borrowed

    def _charge_tenant(self, ask: PendingGang, standing: PoolState, pods: Sequence[Pod], *, inside: bool) -> None:
        self.decision_count += 1
        for each in self.pool_states.values():
            kept = each.cell_reservations.get(ask.tenant)
            if kept is not None and kept.gang is ask.gang:
                del each.cell_reservations[ask.tenant]
                self.has_freed_capacity = True
        for pod in pods:
            standing.add_usage(ask.tenant, pod)
        if inside:
            self.guaranteed_starts.setdefault(ask.tenant, {})[ask.gang.id] = None
            standing.mark_guaranteed(ask.tenant, pods, gang=ask.gang.id)

    def merged_admits(self) -> Iterator[Admit]:
        """One for each gang, pool and side of the cells; what was admitted in pieces is put together."""
        together: dict[tuple[str, PoolKey, bool, str], Admit] = {}
        for admit in self._admits:
            key = admit.gang, admit.pool, admit.borrowed, admit.behind
            known = together.get(key)
            together[key] = admit if known is None else replace(admit, nodes={**known.nodes, **admit.nodes})
        yield from together.values()

    def find_reprieves(self) -> Iterator[Reprieve]:
        """Who was told to go and may stay, because nobody counts on it."""
        again = {uid for evict in self.evicts for uid in evict.pods}
        leaving = {uid for standing in self.pool_states.values() for uid in standing.terminating_pods}
        by_gang: dict[str, list[str]] = {}
        for told in self._notified.values():
            for gang, pod in told:
                if pod.uid not in again and pod.uid not in leaving:
                    by_gang.setdefault(gang.id, []).append(pod.uid)
        for name, pods in sorted(by_gang.items()):
            yield Reprieve(gang=name, pods=tuple(pods))

    def find_promotes(self) -> Iterator[Promote]:
        """Running pods that borrowed and are inside cells now; not those that are to go."""
        going = {uid for evict in self.evicts for uid in evict.pods}
        for standing in self.pool_states.values():
            for gang in standing.entered_gangs():
                pods = tuple(
                    pod.uid
                    for pod in gang.pods
                    if pod.state is PLACED and pod.borrowed and standing.is_guaranteed(pod.uid) and pod.uid not in going
                )
                if pods:
                    yield Promote(gang=gang.id, pods=pods)

    # Gangs in several pools

    @contextmanager
    def only_plans(self) -> Iterator[None]:
        """Plan whatever could start meanwhile: whether it starts is decided by the other parts of its gang."""
        self._only_plans = True
        try:
            yield
        finally:
            self._only_plans = False

    def pending_parts(self, gang: Gang) -> list[PendingGang]:
        """Return the parts of a gang that have not what they need to run; of a whole gang, that gang if it has not."""
        asks = (self.pending_gangs.get(name) for name in gang.part_ids)
        return [ask for ask in asks if ask is not None and ask.min_members]

    def is_decided(self, ask: PendingGang) -> bool:
        """Return whether the gang, or part of one, starts or has a plan."""
        return ask.gang.id in self.started or ask.gang.id in self.plans

    def has_plan(self, whole: str) -> bool:
        """Return whether a gang, or any part of it, has a plan."""
        return whole in self.plans or any(name in self.plans for name in self.part_ids.get(whole, ()))

    def any_part(self, whole: str) -> Gang:
        """Return a gang, or a part of one in several pools: they are of one rank."""
        return self.gangs[self.part_ids.get(whole, (whole,))[0]]

    def take_checkpoint(self) -> CycleCheckpoint:
        """Return what is decided now, to go back to it."""
        return CycleCheckpoint(
            {key: standing.take_checkpoint() for key, standing in self.pool_states.items()},
            dict(self.plans),
            dict(self.started),
            list(self.evicts),
            list(self._admits),
            {tenant: dict(gangs) for tenant, gangs in self.guaranteed_starts.items()},
            self.decision_count,
            self.has_freed_capacity,
        )

    def restore_checkpoint(self, to: CycleCheckpoint) -> None:
        """Undo what was decided since then."""
        for key, standing in self.pool_states.items():
            standing.restore_checkpoint(to.pool_states[key])
        self.plans, self.started, self.guaranteed_starts = dict(to.plans), dict(to.started), to.guaranteed_starts
        self.evicts[:], self._admits[:] = to.evicts, to.admits
        self.decision_count, self.has_freed_capacity = to.decision_count, to.has_freed_capacity


def _notified_pods(standing: PoolState) -> Iterator[tuple[Gang, Pod]]:
    """Pods in a pool that were told to go, by their gangs."""
    for name in sorted(standing.notified_gangs):
        gang = standing.notified_gangs[name]
        for pod in gang.pods:
            if pod.state is NOTIFIED and pod.pool == standing.pool.key:
                yield gang, pod
