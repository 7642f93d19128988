"""Running gangs of a pool as preemption candidates and victims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from vkgateway.scheduler.core.capacity.slow_terminations import termination_seconds
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.guarantees.usage import GuaranteeUsage
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members, select_min_members
from vkgateway.scheduler.core.queueing.tenant_usage import TenantUsage
from vkgateway.scheduler.core.snapshot import GUARANTEED, LOW, NOTIFIED, PLACED, WAITING, Band, Gang, Pod, Pool, PoolKey


class PoolVictims:
    """Gangs of one pool that may be evicted, and those that a cycle evicts."""

    def __init__(
        self,
        pool: Pool,
        gang_index: GangIndex,
        guarantee_usage: GuaranteeUsage,
        tenant_usage: TenantUsage,
        journal: Journal,
    ) -> None:
        self._journal = journal
        self._gang_index, self._guarantee_usage, self._tenant_usage = gang_index, guarantee_usage, tenant_usage
        self._pool, self._gangs = pool, gang_index.gangs
        self.candidates = ReclaimCandidates(pool)
        self._original_gangs: dict[str, Gang] = {}
        """Gangs that the cycle has changed, as they were before."""
        self._longest_termination: float | None = None

    def mark_changed(self, gang: str) -> None:
        """Note that a gang or its place inside guarantees has changed."""
        self.candidates.mark_changed(gang)

    def begin_round(self) -> None:
        """Begin a round: no gang is evicted yet."""
        self._longest_termination = None

    @property
    def preemption_candidates(self) -> PreemptionCandidates:
        """Running pods outside guarantees."""
        return self.candidates.preemption_candidates(self._gangs, self._guarantee_usage.pods.uids)

    @property
    def longest_termination(self) -> float:
        """Seconds in which any preemption candidate terminates, as of the first read in this round."""
        if self._longest_termination is None:
            self._longest_termination = termination_seconds(
                self._gangs[name] for name in self.preemption_candidates.gang_ids()
            )
        return self._longest_termination

    @property
    def backfilled_gangs(self) -> Mapping[str, Mapping[str, None]]:
        """By gang, the gangs that run on nodes that were reserved for it."""
        return self.candidates.backfilled_gangs(self._gangs)

    def reclaimable_for(self, gang: Gang) -> PreemptionCandidates:
        """Return what a borrowing gang may reclaim: surplus pods, pods on nodes that were reserved for it, and low pods
        that yield to it.
        """
        return self.candidates.reclaimable_for(gang, self._gangs, self._guarantee_usage.pods.uids)

    def is_reclaimable(self, other: Gang, gang: Gang) -> bool:
        """Return whether terminating pods of another gang are reclaimed for a borrowing gang."""
        if any(each.behind == gang.whole_id for each in other.pods) or (
            other.band is LOW and gang.band is GUARANTEED and self._pool.low_yields
        ):
            return True
        return other.elastic and has_min_members(other, [each for each in other.pods if each.state is PLACED])

    def may_preempt(self, gang: Gang, other: Gang) -> bool:
        """Return whether a pending gang may preempt another gang of its tenant, also inside the guarantee."""
        return may_preempt(gang, other, by_priority=allows_preemption(self._tenant_usage, gang.tenant))

    def preemptors_of(self, gang: Gang) -> frozenset[str]:
        """Return the gangs of the tenant that may preempt a gang. It never evicts them, or they would take turns."""
        if not self._gang_index.ranks.has_higher(gang):
            return frozenset()
        names = self._gang_index.ranks.gang_ids(gang.tenant)
        return frozenset(name for name in names if self.may_preempt(self._gangs[name], gang))

    def mark_notified(self, evict: Evict) -> list[Pod]:
        """Mark the victims as notified, and return them."""
        uids, gang = set(evict.pods), self._gangs[evict.gang]
        if evict.gang not in self._original_gangs:
            self._original_gangs[evict.gang] = gang
            self._journal.record(self._original_gangs.pop, evict.gang)
        changes = {"state": NOTIFIED, "deadline": evict.deadline, "evicted_for": evict.makes_room_for}
        pods = [replace(pod, **changes) if pod.uid in uids else pod for pod in gang.pods]  # type: ignore[arg-type]
        self._change_gang(replace(gang, pods=tuple(pods)))
        return [pod for pod in pods if pod.uid in uids]

    def revert_notified(self, evict: Evict) -> list[Pod]:
        """Undo an eviction of this round: mark the victims as they were, and return them."""
        gang, uids = self._gangs[evict.gang], set(evict.pods)
        before = {pod.uid: pod for pod in self._original_gangs[evict.gang].pods if pod.uid in uids}
        self._change_gang(replace(gang, pods=tuple(before.get(pod.uid, pod) for pod in gang.pods)))
        return list(before.values())

    def _change_gang(self, gang: Gang) -> None:
        self._journal.record(self._set_gang, self._gangs[gang.id])
        self._set_gang(gang)

    def _set_gang(self, gang: Gang) -> None:
        self._gangs[gang.id] = gang
        self.mark_changed(gang.id)


def allows_preemption(tenant_usage: TenantUsage, tenant: str) -> bool:
    """Return whether a tenant's gangs of higher priority preempt its gangs of lower priority."""
    quota = tenant_usage.quotas.get(tenant)
    return quota is not None and quota.preempts


class ReclaimCandidates:
    """Candidates of a pool: all borrowing pods, and those that a borrowing gang may reclaim.

    Each query takes the gangs with pods in the pool, and the uids of the pods inside guarantees.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._all_cache = _CandidateCache(PreemptionCandidates(pool.key, pool.loss_resource), with_borrowed_marks)
        self._surplus_cache = _CandidateCache(
            PreemptionCandidates(pool.key, pool.loss_resource), self._with_only_surplus
        )
        self._yielding_cache = _CandidateCache(
            PreemptionCandidates(pool.key, pool.loss_resource), self._with_only_yielding
        )
        self._caches = self._all_cache, self._surplus_cache, self._yielding_cache
        self._stale_gangs: set[str] = set()
        self._backfilled: dict[str, dict[str, None]] = {}
        self._reserved_for: dict[str, Sequence[str]] = {}

    def mark_changed(self, gang: str) -> None:
        """Mark a gang whose state changed."""
        for cache in self._caches:
            cache.stale_gangs.add(gang)
        self._stale_gangs.add(gang)

    def mark_removed(self, gang: str) -> None:
        """Mark a gang that left the pool. A gang that was never queried leaves no trace."""
        for cache in self._caches:
            cache.mark_removed(gang)
        if gang in self._reserved_for:
            self._stale_gangs.add(gang)
        else:
            self._stale_gangs.discard(gang)

    @property
    def stale_count(self) -> int:
        """Number of gangs that the next query must refresh."""
        return len(self._stale_gangs.union(*(cache.stale_gangs for cache in self._caches)))

    def preemption_candidates(self, gangs: Mapping[str, Gang], inside: Set[str]) -> PreemptionCandidates:
        """Return the candidates outside guarantees."""
        return self._all_cache.refreshed_candidates(gangs, inside)

    def backfilled_gangs(self, gangs: Mapping[str, Gang]) -> Mapping[str, Mapping[str, None]]:
        """Return by gang the gangs that backfill its reservation."""
        if not self._stale_gangs:
            return self._backfilled
        changed = (name for name in self._stale_gangs if name in self._reserved_for or _is_backfill(gangs.get(name)))
        for name in sorted(changed):
            for ahead in self._reserved_for.pop(name, ()):
                del self._backfilled[ahead][name]
                if not self._backfilled[ahead]:
                    del self._backfilled[ahead]
            gang = gangs.get(name)
            pods = gang.pods if gang is not None else ()
            reserving = sorted({pod.behind for pod in pods if pod.behind and pod.state is PLACED})
            if reserving:
                self._reserved_for[name] = reserving
                for ahead in reserving:
                    self._backfilled.setdefault(ahead, {})[name] = None
        self._stale_gangs.clear()
        return self._backfilled

    def reclaimable_for(self, gang: Gang, gangs: Mapping[str, Gang], inside: Set[str]) -> PreemptionCandidates:
        """Return what a borrowing gang may reclaim: surplus, gangs that backfill its reservation, and, if it is of the
        guaranteed band, low gangs that yield to it.
        """
        takes_low = gang.band is GUARANTEED and self._pool.low_yields
        cache = self._yielding_cache if takes_low else self._surplus_cache
        usual, backfilling = cache.refreshed_candidates(gangs, inside), self.backfilled_gangs(gangs).get(gang.whole_id)
        if not backfilling:
            return usual
        found = PreemptionCandidates(self._pool.key, self._pool.loss_resource)
        for name in sorted({*usual.gang_ids(), *backfilling}):
            other = gangs[name]
            whole = name in backfilling or (takes_low and other.band is LOW)
            found.update_gang(with_borrowed_marks(other, inside) if whole else self._with_fixed_members(other, inside))
        return found

    def _with_only_yielding(self, gang: Gang, inside: Set[str]) -> Gang | None:
        return with_borrowed_marks(gang, inside) if gang.band is LOW else self._with_only_surplus(gang, inside)

    def _with_only_surplus(self, gang: Gang, inside: Set[str]) -> Gang | None:
        return self._with_fixed_members(gang, inside) if gang.elastic else None

    def _with_fixed_members(self, gang: Gang, inside: Set[str]) -> Gang:
        gang = with_borrowed_marks(gang, inside)
        key = self._pool.key
        placed = [pod for pod in gang.pods if pod.state is PLACED and pod.pool == key and pod.node]
        min_members = {pod.uid for pod in select_min_members(gang, placed)}
        return replace(
            gang, pods=tuple(replace(pod, borrowed=False) if pod.uid in min_members else pod for pod in gang.pods)
        )


def _is_backfill(gang: Gang | None) -> bool:
    """Return whether the gang backfills another gang's reservation."""
    for pod in gang.pods if gang is not None else ():  # noqa: SIM110 - a loop is far quicker than `any`
        if pod.behind and pod.state is PLACED:
            return True
    return False


class _CandidateCache:
    """Candidates, with the gangs whose candidates are stale."""

    def __init__(self, candidates: PreemptionCandidates, prepare_gang: Callable[[Gang, Set[str]], Gang | None]) -> None:
        self.stale_gangs: set[str] = set()
        self._candidates = candidates
        self._prepare_gang = prepare_gang

    def mark_removed(self, gang: str) -> None:
        if gang in self._candidates:
            self.stale_gangs.add(gang)
        else:
            self.stale_gangs.discard(gang)

    def refreshed_candidates(self, gangs: Mapping[str, Gang], inside: Set[str]) -> PreemptionCandidates:
        for name in sorted(self.stale_gangs):
            gang = gangs.get(name)
            prepared = self._prepare_gang(gang, inside) if gang is not None else None
            if prepared is not None:
                self._candidates.update_gang(prepared)
            else:
                self._candidates.remove_gang(name)
        self.stale_gangs.clear()
        return self._candidates


def with_borrowed_marks(gang: Gang, inside: Set[str]) -> Gang:
    """Return the gang with the `borrowed` marks of its pods updated."""
    if all(pod.borrowed is (pod.uid not in inside) for pod in gang.pods):
        return gang
    pods = tuple(
        pod if pod.borrowed is (pod.uid not in inside) else replace(pod, borrowed=pod.uid not in inside)
        for pod in gang.pods
    )
    return replace(gang, pods=pods)


class GangIndex:
    """Gangs with pods in one pool, by what they have there when a cycle begins."""

    def __init__(self, key: PoolKey) -> None:
        self._key = key
        self.gangs: dict[str, Gang] = {}
        """All of them. During a cycle, their pods have the states that the cycle decides."""
        self.notified: dict[str, Gang] = {}
        """Gangs with notified pods."""
        self.guaranteed: dict[str, set[str]] = {}
        """By tenant, the names of its gangs with pods inside its guarantee."""
        self.borrowing: set[str] = set()
        """Names of the gangs of the guaranteed band with borrowing pods."""
        self.ranks = RankIndex()

    def has_pod(self, pod: Pod) -> bool:
        """Return whether a pod is placed in the pool."""
        return pod.state is not WAITING and pod.pool == self._key and bool(pod.node)

    def placed_pods(self, gang: Gang) -> tuple[Pod, ...]:
        """Return the pods of a gang that are placed in the pool."""
        key = self._key
        # As `has_pod`, which is too slow here: this runs for each changed gang.
        return tuple([pod for pod in gang.pods if pod.state is not WAITING and pod.pool == key and pod.node])

    def replace_gang(self, old: Gang | None, new: Gang | None, placed: Sequence[Pod]) -> None:
        """Replace a gang. `placed`: the new gang's pods in the pool."""
        if old is not None:
            if (known := self.gangs.pop(old.id, None)) is not None:
                self.ranks.remove_gang(known)
            self.notified.pop(old.id, None)
            self.borrowing.discard(old.id)
            if (names := self.guaranteed.get(old.tenant)) is not None:
                names.discard(old.id)
        if new is None or not placed:
            return
        self.gangs[new.id] = new
        self.ranks.add_gang(new)
        is_guaranteed = new.band is GUARANTEED
        # One plain loop: it runs for each changed gang.
        for pod in placed:
            if pod.state is NOTIFIED:
                self.notified[new.id] = new
            if not pod.borrowed:
                self.guaranteed.setdefault(new.tenant, set()).add(new.id)
            elif is_guaranteed and pod.state is PLACED:
                self.borrowing.add(new.id)


Rank = tuple[bool, int]
"""Whether a gang is in the guaranteed band, and its priority; age does not count."""


def rank_of(gang: Gang) -> Rank:
    """Return a gang's rank."""
    return gang.band is GUARANTEED, gang.priority


def may_preempt(gang: Gang, other: Gang, *, by_priority: bool) -> bool:
    """Return whether a waiting gang may preempt another gang of its tenant.

    `by_priority`: the tenant allows preemption between priorities. Guaranteed work reclaims from low work in any case.
    A short gang (`Gang.short`) outranks the queue of its tenant, whatever the priorities.
    """
    return gang.tenant == other.tenant and _outranks(gang, rank_of(other), by_priority=by_priority and not other.short)


def _outranks(gang: Gang, other: Rank, *, by_priority: bool) -> bool:
    guaranteed, priority = rank_of(gang)
    if not gang.preempts or guaranteed < other[0]:
        return False
    return guaranteed > other[0] or (by_priority and priority > other[1])


class RankIndex:
    """Gangs of each tenant with pods in a pool, and their ranks."""

    def __init__(self) -> None:
        self._gangs: dict[str, dict[str, None]] = {}
        self._ranks: dict[str, Counter[Rank]] = {}

    def add_gang(self, gang: Gang) -> None:
        names = self._gangs.get(gang.tenant)
        if names is None:
            names = self._gangs[gang.tenant] = {}
            self._ranks[gang.tenant] = Counter()
        names[gang.id] = None
        self._ranks[gang.tenant][rank_of(gang)] += 1

    def remove_gang(self, gang: Gang) -> None:
        """Remove a gang in the state in which it was added."""
        names, ranks, rank = self._gangs[gang.tenant], self._ranks[gang.tenant], rank_of(gang)
        del names[gang.id]
        ranks[rank] -= 1
        if not ranks[rank]:
            del ranks[rank]
        if not names:
            del self._gangs[gang.tenant], self._ranks[gang.tenant]

    def gang_ids(self, tenant: str) -> list[str]:
        """Return the ids of a tenant's gangs, sorted."""
        return sorted(self._gangs.get(tenant, ()))

    def lowest_priority(self, tenant: str, band: Band) -> int | None:
        """Return the lowest priority of a tenant's gangs of a band; None: no such gang."""
        guaranteed = band is GUARANTEED
        return min((rank[1] for rank in self._ranks.get(tenant, ()) if rank[0] is guaranteed), default=None)

    def has_preemptible(self, gang: Gang, *, by_priority: bool) -> bool:
        """Return whether this gang may preempt any gang of its tenant."""
        ranks = self._ranks.get(gang.tenant, ())
        return any(_outranks(gang, rank, by_priority=by_priority) for rank in ranks)

    def has_higher(self, gang: Gang) -> bool:
        """Return whether its tenant has a gang of a higher rank."""
        return any(rank > rank_of(gang) for rank in self._ranks.get(gang.tenant, ()))
