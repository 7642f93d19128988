"""Search for preemption plans: victims that make capacity for a gang, and its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.cycle_state import CycleState, late_pod_uids
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes
from vkgateway.scheduler.core.phases.idle_reserve import leaves_reserve, reserve_for
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.preemption.eviction_units import PreemptionCandidate
from vkgateway.scheduler.core.preemption.search_stage import preemption_costs
from vkgateway.scheduler.core.preemption.victim_search import VictimChoice, build_evict, choose_victims
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.tenant_usage import sum_requests
from vkgateway.scheduler.core.snapshot import Gang, Pod


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """A possible plan for a gang's min members in one pool."""

    victim_choice: VictimChoice
    evicts: tuple[Evict, ...]
    """All evictions, those for the limit of the gang's tenant first."""
    notified: Sequence[tuple[Gang, Pod]]
    """Pods notified earlier whose capacity the gang may use."""
    guaranteed_placement: GuaranteedPlacement | None
    leaves: int | None = None
    """See `PreemptionPlan.leaves`."""


@dataclass(frozen=True, slots=True)
class PlanSearch:
    """Search for victims that make capacity for a gang's min members in one pool. It changes nothing."""

    state: CycleState
    pool_state: PoolState
    pending: PendingGang
    candidates: PreemptionCandidates
    notified: Sequence[tuple[Gang, Pod]]
    """Pods that were notified before, and whose capacity the gang may use."""
    terminating: Sequence[Pod]
    """Pods whose capacity the gang may use although it evicts none of them; `notified` included."""
    missing: MilliResources
    """Amounts beyond the tenant's limit, which victims of the same tenant must free."""
    placement: GuaranteedPlacement | None = None
    """Placement of the gang inside its tenant's guarantee; None: the gang borrows."""
    exempt: Set[str] = frozenset()
    """Gangs that are not evicted."""
    excess: Mapping[str, float] | None = None
    """Shares of tenants, which decide between equal victims."""
    idle_reserve: int = 0
    """Thousandths of the unit that stay idle beside the gang."""

    def find_plan(self) -> CandidatePlan | None:
        """Return the plan with the smallest loss; None: the gang does not fit, whichever candidates are evicted."""
        for own in own_limit_victims(
            self.pool_state,
            self.pending,
            self.missing,
            self.placement,
            evictable=self.candidates,
            coming=self.terminating,
            now=self.state.now,
        ):
            plan = self.find_plan_with(own)
            if plan is not None:
                return plan
        return None

    def find_plan_with(self, own: tuple[Evict, ...]) -> CandidatePlan | None:
        """Return the plan with the smallest loss that contains these evictions for the tenant's limit."""
        choice = self.choose_victims(own)
        return CandidatePlan(choice, (*own, *choice.evicts), self.notified, self.placement) if choice else None

    def choose_victims(self, own: Sequence[Evict]) -> VictimChoice | None:
        """Return the victims, besides `own`, and the gang's nodes."""
        pool_state, placement = self.pool_state, self.placement
        return choose_victims(
            pool_state.node_resources,
            self.candidates,
            self.pending.gang,
            self.pending.min_members,
            now=self.state.now,
            excess=self.excess,
            among=allowed_nodes(pool_state, self.pending),
            ceiling=placement.usable_amounts(pool_state.node_resources) if placement is not None else None,
            ending=[*self.terminating, *evicted_pods(pool_state, own)],
            exempt={evict.gang for evict in own} | self.exempt,
            placer=placement,
            idle_reserve=self.idle_reserve,
        )


def find_candidate_plan(
    state: CycleState,
    pool_state: PoolState,
    pending: PendingGang,
    candidates: PreemptionCandidates,
    *,
    placement: GuaranteedPlacement | None = None,
) -> CandidatePlan | None:
    """Return the plan with the smallest loss that makes capacity for the gang; None: it does not fit.

    The gang first uses the capacity of pods that terminate anyway. `placement`: the gang starts inside its tenant's
    guarantee. It may then use the capacity of all notified pods, and borrowing pods of its tenant are evicted where the
    limit is reached. It waits for pods with slow terminations only where no other pod terminates sooner. A borrowing
    gang never waits for them, and leaves the pool's reserve idle.
    """
    plan = _search_plan(state, pool_state, pending, candidates, placement)
    leaves = placement is None and reserve_for(pool_state, pending, pending.min_members) > 0
    late = (
        late_pod_uids(pool_state, state.now)
        if plan is not None and (plan.victim_choice.awaited_pods or leaves)
        else set[str]()
    )
    if plan is None or not late or (late.isdisjoint(plan.victim_choice.awaited_pods) and not leaves):
        return plan
    sooner = _search_plan(state, pool_state, pending, candidates, placement, without=late)
    return plan if sooner is None and placement is not None else sooner


def _search_plan(
    state: CycleState,
    pool_state: PoolState,
    pending: PendingGang,
    candidates: PreemptionCandidates,
    placement: GuaranteedPlacement | None,
    *,
    without: Set[str] = frozenset(),
) -> CandidatePlan | None:
    """Return the plan with the smallest loss. `without`: terminating pods that the gang does not wait for."""
    terminating = pool_state.terminating_pods
    usable = (
        _notified_for_borrower(state, pool_state, pending) if placement is None else state.notified.in_pool(pool_state)
    )
    notified = [(gang, pod) for gang, pod in usable if pod.uid not in terminating]
    missing: MilliResources = {}
    if placement is not None:
        own = sum_requests(pod for gang, pod in notified if gang.tenant == pending.tenant)
        freed = [terminating.usage_of(pending.tenant), own]
        missing = pool_state.tenant_usage.excess_over_limit(pending.tenant, pending.min_members, freed)
    search = PlanSearch(
        state,
        pool_state,
        pending,
        candidates,
        notified,
        [*(pod for pod in terminating.values() if pod.uid not in without), *(pod for _, pod in notified)],
        missing,
        placement,
        exempt=pool_state.victims.preemptors_of(pending.gang) if placement is not None else frozenset(),
        excess=pool_state.tenant_usage.shares_by_tenant(),
        idle_reserve=reserve_for(pool_state, pending, pending.min_members) if placement is None else 0,
    )
    return search.find_plan()


def evicted_pods(pool_state: PoolState, evicts: Iterable[Evict]) -> list[Pod]:
    """Return the pods that these evictions evict in the pool."""
    return [
        pod
        for evict in evicts
        for uids in [set(evict.pods)]
        for pod in pool_state.gangs[evict.gang].pods
        if pod.uid in uids
    ]


def _notified_for_borrower(state: CycleState, pool_state: PoolState, pending: PendingGang) -> list[tuple[Gang, Pod]]:
    """Return the pods that were notified for the gang and that it may reclaim while it borrows. The gang may have been
    within its guarantee when they were notified.
    """
    notified = state.notified.for_gang(pending.gang.whole_id, pool_state)
    return [(gang, pod) for gang, pod in notified if pool_state.victims.is_reclaimable(gang, pending.gang)]


def adopt_plan(state: CycleState, pool_state: PoolState, pending: PendingGang, candidate: CandidatePlan) -> None:
    """Plan the gang's start on the nodes that were found. Nothing in the pool may have changed since."""
    nodes, placement = candidate.victim_choice.nodes, candidate.guaranteed_placement
    if placement is not None:
        placement.commit_placement(nodes, pool_state.pool.unit_resource)
    pool_state.add_pods(pending.min_members, nodes)
    may_start = pool_state.fits_on_nodes(pending.min_members, nodes) and (
        placement is not None or leaves_reserve(pool_state, pending, pending.min_members)
    )
    if (
        not candidate.evicts
        and may_start
        and not pool_state.tenant_usage.exceeded_limits(pending.tenant, pending.min_members)
    ):
        # The search for victims is more thorough than the placement: the gang may fit without victims.
        state.start_pods(pending, pool_state, pending.min_members, nodes, guaranteed=placement is not None)
        return
    for gang, pod in candidate.notified:
        pool_state.terminating_pods.add_pods(gang.tenant, [pod])
    state.add_plan(
        pending,
        pool_state,
        nodes,
        guaranteed=placement is not None,
        created=state.next_plan_time(),
        evicts=candidate.evicts,
    )


@dataclass(frozen=True, slots=True)
class _CostedCandidate:
    """A preemption candidate of the tenant, and the GPU-seconds that its eviction loses."""

    candidate: PreemptionCandidate
    stage: int
    lost: float


def own_limit_victims(
    pool_state: PoolState,
    pending: PendingGang,
    missing: MilliResources,
    placement: GuaranteedPlacement | None,
    *,
    evictable: PreemptionCandidates,
    coming: Sequence[Pod],
    now: float,
) -> Iterator[tuple[Evict, ...]]:
    """Yield evictions that free what is missing of the tenant's limit; none if all its borrowing pods do not suffice.
    The first choice loses little, on nodes where the gang would be placed. It may not make enough capacity for the
    gang: the next choice evicts each of its partly evicted gangs as a whole. `coming` terminates anyway, and is not
    counted as missing. `placement` places the gang inside its guarantee; None: it borrows.
    """
    if not missing:
        yield ()
        return
    candidates = list(_costed_candidates(pool_state, pending, evictable, now))
    if not _covers_missing(candidates, missing):
        return
    chosen = _choose_victims(pool_state, pending, missing, placement, candidates, coming=coming, now=now)
    yield _build_evicts(pending, chosen, now)
    whole = {each.candidate.gang.id: each for each in candidates if each.candidate.whole}
    wider = {each.candidate.candidate_id: each for one in chosen for each in [whole.get(one.candidate.gang.id, one)]}
    if wider.keys() != {each.candidate.candidate_id for each in chosen}:
        yield _build_evicts(pending, list(wider.values()), now)


def _choose_victims(
    pool_state: PoolState,
    pending: PendingGang,
    missing: MilliResources,
    placement: GuaranteedPlacement | None,
    candidates: Sequence[_CostedCandidate],
    *,
    coming: Sequence[Pod],
    now: float,
) -> list[_CostedCandidate]:
    helpful = _capacity_victims(pool_state, pending, placement, candidates, coming=coming, now=now)
    order = sorted(
        candidates,
        key=lambda each: (
            each.candidate.candidate_id not in helpful,
            each.stage,
            _relative_cost(each, missing),
            each.candidate.candidate_id,
        ),
    )
    chosen: list[_CostedCandidate] = []
    for each in order:
        if _covers_missing(chosen, missing):
            break
        if _freed_amounts(each.candidate.evicted_pods, missing):
            chosen.append(each)
    for each in sorted(chosen, key=lambda each: (-each.lost, each.candidate.candidate_id)):
        without = [other for other in chosen if other is not each]
        if _covers_missing(without, missing):
            chosen = without
    return chosen


def _build_evicts(pending: PendingGang, chosen: Iterable[_CostedCandidate], now: float) -> tuple[Evict, ...]:
    by_gang: dict[str, list[_CostedCandidate]] = {}
    for each in chosen:
        by_gang.setdefault(each.candidate.gang.id, []).append(each)
    return tuple(
        build_evict([each.candidate for each in mine], pending.gang, lost=sum(each.lost for each in mine), now=now)
        for _, mine in sorted(by_gang.items())
    )


def _costed_candidates(
    pool_state: PoolState, pending: PendingGang, evictable: PreemptionCandidates, now: float
) -> Iterable[_CostedCandidate]:
    table = evictable.rows.as_table()
    if pending.tenant not in table.tenants:
        return
    found = preemption_costs(
        evictable, now=now, excess={}, exempt={*pending.gang.part_ids, *pool_state.victims.preemptors_of(pending.gang)}
    )
    mine = (table.tenant == table.tenants[pending.tenant]) & (found.stage > 0)
    for number in np.flatnonzero(mine).tolist():
        lot = evictable.candidates[number]
        if lot is not None:
            yield _CostedCandidate(lot, int(found.stage[number]), float(found.lost[number]))


def _capacity_victims(
    pool_state: PoolState,
    pending: PendingGang,
    placement: GuaranteedPlacement | None,
    candidates: Iterable[_CostedCandidate],
    *,
    coming: Sequence[Pod],
    now: float,
) -> set[str]:
    """Return the candidates that would be evicted if only the tenant's own gangs made capacity."""
    own = PreemptionCandidates(pool_state.pool.key, pool_state.pool.loss_resource)
    for gang in {each.candidate.gang.id: each.candidate.gang for each in candidates}.values():
        own.update_gang(gang)
    ceiling = placement.usable_amounts(pool_state.node_resources) if placement is not None else None
    choice = choose_victims(
        pool_state.node_resources,
        own,
        pending.gang,
        pending.min_members,
        now=now,
        ceiling=ceiling,
        ending=coming,
        placer=placement,
    )
    going = {uid for evict in (choice.evicts if choice is not None else ()) for uid in evict.pods}
    return {
        each.candidate.candidate_id
        for each in candidates
        if all(pod.uid in going for pod in each.candidate.evicted_pods)
    }


def _freed_amounts(pods: Iterable[Pod], missing: MilliResources) -> MilliResources:
    total = sum_requests(pods)
    return {name: total[name] for name in missing if total.get(name)}


def _covers_missing(candidates: Iterable[_CostedCandidate], missing: MilliResources) -> bool:
    going = {pod.uid: pod for each in candidates for pod in each.candidate.evicted_pods}
    total = sum_requests(going.values())
    return all(total.get(name, 0) >= amount for name, amount in missing.items())


def _relative_cost(each: _CostedCandidate, missing: MilliResources) -> float:
    """Return the loss for each freed part of what is missing."""
    freed = _freed_amounts(each.candidate.evicted_pods, missing)
    parts = sum(min(1.0, freed.get(name, 0) / amount) for name, amount in missing.items())
    return each.lost / parts if parts else float("inf")
