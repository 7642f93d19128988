"""Running gangs of a pool as preemption candidates and victims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vkgateway.scheduler.core.capacity.slow_terminations import termination_seconds
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.guarantees.usage import GuaranteeUsage
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.pools.gang_index import GangIndex
from vkgateway.scheduler.core.preemption.candidate_index import ReclaimCandidates
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.preemption.ranks import may_preempt
from vkgateway.scheduler.core.queueing.tenant_usage import TenantUsage
from vkgateway.scheduler.core.snapshot import GUARANTEED, LOW, NOTIFIED, PLACED, Gang, Pod, Pool


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
