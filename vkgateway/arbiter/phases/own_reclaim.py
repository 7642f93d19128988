"""Who of its own borrowing work must go so that a tenant at its limit can start a gang of its guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.guarantees.cell_placement import GuaranteedPlacement
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.preemption.candidates import PreemptionCandidates
from vkgateway.arbiter.preemption.eviction_units import PreemptionCandidate
from vkgateway.arbiter.preemption.search_stage import preemption_costs
from vkgateway.arbiter.preemption.victim_search import build_evict, choose_victims
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.queueing.tenant_usage import sum_requests
from vkgateway.arbiter.snapshot import Pod
from vkgateway.model.requests import MilliResources


@dataclass(frozen=True, slots=True)
class _CostedCandidate:
    """A lot of the tenant, and the GPU-seconds that are lost by it."""

    candidate: PreemptionCandidate
    stage: int
    lost: float


def own_limit_victims(
    standing: PoolState,
    ask: PendingGang,
    missing: MilliResources,
    inside: GuaranteedPlacement | None,
    *,
    evictable: PreemptionCandidates,
    coming: Sequence[Pod],
    now: float,
) -> Iterator[tuple[Evict, ...]]:
    """Yield evictions that free what is missing of the tenant's limit; nothing where all of its work does not suffice.

    The first choice loses little, on nodes where the gang would be placed. It may leave no room for the gang: the next
    choice evicts each of its partly evicted gangs as a whole. `coming` leaves anyway, and is not in what is missing.
    `inside` places the gang inside its cells; None: it borrows.
    """
    if not missing:
        yield ()
        return
    candidates = list(_costed_candidates(standing, ask, evictable, now))
    if not _covers_missing(candidates, missing):
        return
    chosen = _choose_victims(standing, ask, missing, inside, candidates, coming=coming, now=now)
    yield _build_evicts(ask, chosen, now)
    whole = {each.candidate.gang.id: each for each in candidates if each.candidate.whole}
    wider = {each.candidate.candidate_id: each for one in chosen for each in [whole.get(one.candidate.gang.id, one)]}
    if wider.keys() != {each.candidate.candidate_id for each in chosen}:
        yield _build_evicts(ask, list(wider.values()), now)


def _choose_victims(
    standing: PoolState,
    ask: PendingGang,
    missing: MilliResources,
    inside: GuaranteedPlacement | None,
    candidates: Sequence[_CostedCandidate],
    *,
    coming: Sequence[Pod],
    now: float,
) -> list[_CostedCandidate]:
    helpful = _capacity_victims(standing, ask, inside, candidates, coming=coming, now=now)
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


def _build_evicts(ask: PendingGang, chosen: Iterable[_CostedCandidate], now: float) -> tuple[Evict, ...]:
    by_gang: dict[str, list[_CostedCandidate]] = {}
    for each in chosen:
        by_gang.setdefault(each.candidate.gang.id, []).append(each)
    return tuple(
        build_evict([each.candidate for each in mine], ask.gang, lost=sum(each.lost for each in mine), now=now)
        for _, mine in sorted(by_gang.items())
    )


def _costed_candidates(
    standing: PoolState, ask: PendingGang, evictable: PreemptionCandidates, now: float
) -> Iterable[_CostedCandidate]:
    tenants = list(evictable.tenant_names())
    if ask.tenant not in tenants:
        return
    found = preemption_costs(
        evictable, now=now, excess={}, exempt={*ask.gang.part_ids, *standing.preemptors_of(ask.gang)}
    )
    mine = (evictable.as_table().tenant == tenants.index(ask.tenant)) & (found.stage > 0)
    for number in np.flatnonzero(mine).tolist():
        lot = evictable.candidates[number]
        if lot is not None:
            yield _CostedCandidate(lot, int(found.stage[number]), float(found.lost[number]))


def _capacity_victims(
    standing: PoolState,
    ask: PendingGang,
    inside: GuaranteedPlacement | None,
    candidates: Iterable[_CostedCandidate],
    *,
    coming: Sequence[Pod],
    now: float,
) -> set[str]:
    """The lots that would go if room were made by the tenant's own work alone."""
    own = PreemptionCandidates(standing.pool.key, standing.pool.loss_resource)
    for gang in {each.candidate.gang.id: each.candidate.gang for each in candidates}.values():
        own.update_gang(gang)
    ceiling = inside.usable_amounts(standing.node_resources) if inside is not None else None
    choice = choose_victims(
        standing.node_resources, own, ask.gang, ask.min_members, now=now, ceiling=ceiling, ending=coming, placer=inside
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
    """What is lost for each part of what is missing."""
    freed = _freed_amounts(each.candidate.evicted_pods, missing)
    parts = sum(min(1.0, freed.get(name, 0) / amount) for name, amount in missing.items())
    return each.lost / parts if parts else float("inf")
