"""Who of its own borrowing work must go so that a tenant at its limit can start a gang of its guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vkgateway.arbiter.accounts import total_of
from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.evictable import Evictable
from vkgateway.arbiter.facts import Pod
from vkgateway.arbiter.inside import Inside
from vkgateway.arbiter.lots import Lot
from vkgateway.arbiter.market import prices
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.victims import choose, evict_of
from vkgateway.model.requests import Milli


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A lot of the tenant, and the GPU-seconds that are lost by it."""

    lot: Lot
    stage: int
    lost: float


def own_victims(
    standing: Standing,
    ask: Ask,
    missing: Milli,
    inside: Inside | None,
    *,
    evictable: Evictable,
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
    candidates = list(_candidates(standing, ask, evictable, now))
    if not _covers(candidates, missing):
        return
    chosen = _chosen(standing, ask, missing, inside, candidates, coming=coming, now=now)
    yield _evicts(ask, chosen, now)
    whole = {each.lot.gang.id: each for each in candidates if each.lot.whole}
    wider = {each.lot.name: each for one in chosen for each in [whole.get(one.lot.gang.id, one)]}
    if wider.keys() != {each.lot.name for each in chosen}:
        yield _evicts(ask, list(wider.values()), now)


def _chosen(
    standing: Standing,
    ask: Ask,
    missing: Milli,
    inside: Inside | None,
    candidates: Sequence[_Candidate],
    *,
    coming: Sequence[Pod],
    now: float,
) -> list[_Candidate]:
    helpful = _helpful(standing, ask, inside, candidates, coming=coming, now=now)
    order = sorted(
        candidates,
        key=lambda each: (each.lot.name not in helpful, each.stage, _price(each, missing), each.lot.name),
    )
    chosen: list[_Candidate] = []
    for each in order:
        if _covers(chosen, missing):
            break
        if _freed(each.lot.going, missing):
            chosen.append(each)
    for each in sorted(chosen, key=lambda each: (-each.lost, each.lot.name)):
        without = [other for other in chosen if other is not each]
        if _covers(without, missing):
            chosen = without
    return chosen


def _evicts(ask: Ask, chosen: Iterable[_Candidate], now: float) -> tuple[Evict, ...]:
    by_gang: dict[str, list[_Candidate]] = {}
    for each in chosen:
        by_gang.setdefault(each.lot.gang.id, []).append(each)
    return tuple(
        evict_of([each.lot for each in mine], ask.gang, lost=sum(each.lost for each in mine), now=now)
        for _, mine in sorted(by_gang.items())
    )


def _candidates(standing: Standing, ask: Ask, evictable: Evictable, now: float) -> Iterable[_Candidate]:
    tenants = list(evictable.tenants())
    if ask.tenant not in tenants:
        return
    found = prices(evictable, now=now, over={}, exempt={*ask.gang.kin, *standing.superior_to(ask.gang)})
    mine = (evictable.table().tenant == tenants.index(ask.tenant)) & (found.stage > 0)
    for number in np.flatnonzero(mine).tolist():
        lot = evictable.lots[number]
        if lot is not None:
            yield _Candidate(lot, int(found.stage[number]), float(found.lost[number]))


def _helpful(
    standing: Standing,
    ask: Ask,
    inside: Inside | None,
    candidates: Iterable[_Candidate],
    *,
    coming: Sequence[Pod],
    now: float,
) -> set[str]:
    """The lots that would go if room were made by the tenant's own work alone."""
    own = Evictable(standing.pool.key, standing.pool.measure)
    for gang in {each.lot.gang.id: each.lot.gang for each in candidates}.values():
        own.put(gang)
    ceiling = inside.ceiling(standing.room) if inside is not None else None
    choice = choose(standing.room, own, ask.gang, ask.core, now=now, ceiling=ceiling, coming=coming, placer=inside)
    going = {uid for evict in (choice.evicts if choice is not None else ()) for uid in evict.pods}
    return {each.lot.name for each in candidates if all(pod.uid in going for pod in each.lot.going)}


def _freed(pods: Iterable[Pod], missing: Milli) -> Milli:
    total = total_of(pods)
    return {name: total[name] for name in missing if total.get(name)}


def _covers(candidates: Iterable[_Candidate], missing: Milli) -> bool:
    going = {pod.uid: pod for each in candidates for pod in each.lot.going}
    total = total_of(going.values())
    return all(total.get(name, 0) >= amount for name, amount in missing.items())


def _price(each: _Candidate, missing: Milli) -> float:
    """What is lost for each part of what is missing."""
    freed = _freed(each.lot.going, missing)
    parts = sum(min(1.0, freed.get(name, 0) / amount) for name, amount in missing.items())
    return each.lost / parts if parts else float("inf")
