"""Victims among a tenant's borrowing gangs, which let it start a gang within its limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.preemption.eviction_units import PreemptionCandidate
from vkgateway.scheduler.core.preemption.search_stage import preemption_costs
from vkgateway.scheduler.core.preemption.victim_search import build_evict, choose_victims
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.tenant_usage import sum_requests
from vkgateway.scheduler.core.snapshot import Pod


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
