"""Who of a pool may be called in for whom: kept from cycle to cycle, and brought up to date when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from vkgateway.arbiter.preemption.candidates import PreemptionCandidates
from vkgateway.arbiter.preemption.eviction_units import select_min_members
from vkgateway.arbiter.snapshot import PLACED, Gang, Pool


class ReclaimCandidates:
    """The lots of a pool: all that borrow, and those that also a gang that borrows may call in.

    Each question is asked with the gangs that have something in the pool, and the uids of the pods inside cells.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._all_cache = _CandidateCache(PreemptionCandidates(pool.key, pool.loss_resource), with_borrowed_marks)
        self._surplus_cache = _CandidateCache(
            PreemptionCandidates(pool.key, pool.loss_resource), self._with_only_surplus
        )
        self._stale_gangs: set[str] = set()
        self._backfilled: dict[str, dict[str, None]] = {}
        self._reserved_for: dict[str, Sequence[str]] = {}

    def mark_changed(self, gang: str) -> None:
        """Something of this gang has changed."""
        self._all_cache.stale_gangs.add(gang)
        self._surplus_cache.stale_gangs.add(gang)
        self._stale_gangs.add(gang)

    def mark_removed(self, gang: str) -> None:
        """Nothing of this gang is left in the pool. Of one that was never asked about nothing is remembered."""
        self._all_cache.mark_removed(gang)
        self._surplus_cache.mark_removed(gang)
        if gang in self._reserved_for:
            self._stale_gangs.add(gang)
        else:
            self._stale_gangs.discard(gang)

    @property
    def stale_count(self) -> int:
        """How many gangs are to be looked at again when somebody asks."""
        return len(self._all_cache.stale_gangs | self._surplus_cache.stale_gangs | self._stale_gangs)

    def preemption_candidates(self, gangs: Mapping[str, Gang], inside: Set[str]) -> PreemptionCandidates:
        """What runs outside of cells."""
        return self._all_cache.refreshed_candidates(gangs, inside)

    def surplus_candidates(self, gangs: Mapping[str, Gang], inside: Set[str]) -> PreemptionCandidates:
        """Of that only what elastic gangs have beyond their minimum."""
        return self._surplus_cache.refreshed_candidates(gangs, inside)

    def backfilled_gangs(self, gangs: Mapping[str, Gang]) -> Mapping[str, Mapping[str, None]]:
        """By gang the gangs that run in a place that was reserved for it."""
        if not self._stale_gangs:
            return self._backfilled
        ours = (name for name in self._stale_gangs if name in self._reserved_for or _is_backfill(gangs.get(name)))
        for name in sorted(ours):
            for ahead in self._reserved_for.pop(name, ()):
                del self._backfilled[ahead][name]
                if not self._backfilled[ahead]:
                    del self._backfilled[ahead]
            gang = gangs.get(name)
            pods = gang.pods if gang is not None else ()
            aheads = sorted({pod.behind for pod in pods if pod.behind and pod.state is PLACED})
            if aheads:
                self._reserved_for[name] = aheads
                for ahead in aheads:
                    self._backfilled.setdefault(ahead, {})[name] = None
        self._stale_gangs.clear()
        return self._backfilled

    def reclaimable_for(self, gang: str, gangs: Mapping[str, Gang], inside: Set[str]) -> PreemptionCandidates:
        """What a gang that borrows may call in: surplus, and what runs in the place that was reserved for it."""
        surplus, behind = self.surplus_candidates(gangs, inside), self.backfilled_gangs(gangs).get(gang)
        if not behind:
            return surplus
        found = PreemptionCandidates(self._pool.key, self._pool.loss_resource)
        for name in sorted({*surplus.gang_ids(), *behind}):
            known = gangs[name]
            found.update_gang(
                with_borrowed_marks(known, inside) if name in behind else self._with_fixed_members(known, inside)
            )
        return found

    def _with_only_surplus(self, gang: Gang, inside: Set[str]) -> Gang | None:
        return self._with_fixed_members(gang, inside) if gang.elastic else None

    def _with_fixed_members(self, gang: Gang, inside: Set[str]) -> Gang:
        gang = with_borrowed_marks(gang, inside)
        key = self._pool.key
        placed = [pod for pod in gang.pods if pod.state is PLACED and pod.pool == key and pod.node]
        core = {pod.uid for pod in select_min_members(gang, placed)}
        return replace(gang, pods=tuple(replace(pod, borrowed=False) if pod.uid in core else pod for pod in gang.pods))


def _is_backfill(gang: Gang | None) -> bool:
    """Whether it runs in a place that was reserved for another gang."""
    for pod in gang.pods if gang is not None else ():  # noqa: SIM110 - a loop is far quicker than `any`
        if pod.behind and pod.state is PLACED:
            return True
    return False


class _CandidateCache:
    """Lots, and the gangs of which they are out of date."""

    def __init__(self, lots: PreemptionCandidates, shown: Callable[[Gang, Set[str]], Gang | None]) -> None:
        self.stale_gangs: set[str] = set()
        self._candidates = lots
        self._prepare_gang = shown

    def mark_removed(self, gang: str) -> None:
        if gang in self._candidates:
            self.stale_gangs.add(gang)
        else:
            self.stale_gangs.discard(gang)

    def refreshed_candidates(self, gangs: Mapping[str, Gang], inside: Set[str]) -> PreemptionCandidates:
        for name in sorted(self.stale_gangs):
            gang = gangs.get(name)
            shown = self._prepare_gang(gang, inside) if gang is not None else None
            if shown is not None:
                self._candidates.update_gang(shown)
            else:
                self._candidates.remove_gang(name)
        self.stale_gangs.clear()
        return self._candidates


def with_borrowed_marks(gang: Gang, inside: Set[str]) -> Gang:
    """The gang with its pods marked as borrowed or not by what holds now."""
    if all(pod.borrowed is (pod.uid not in inside) for pod in gang.pods):
        return gang
    pods = tuple(
        pod if pod.borrowed is (pod.uid not in inside) else replace(pod, borrowed=pod.uid not in inside)
        for pod in gang.pods
    )
    return replace(gang, pods=pods)
