"""Ranks of a tenant's gangs: the guaranteed band before the low one, then the higher PriorityClass."""

from __future__ import annotations

from collections import Counter

from vkgateway.scheduler.core.snapshot import GUARANTEED, Band, Gang

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
        """Add a gang."""
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
