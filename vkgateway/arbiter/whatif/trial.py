"""One snapshot, decided without and with a change: what differs is the answer (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from vkgateway.arbiter.carry import Carry
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.facts import Gang, Pool, Quota, Snapshot
from vkgateway.arbiter.naming import Names
from vkgateway.arbiter.outcome import carried_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A cycle of the arbiter: what it was decided from, what was decided, and when (seconds since the epoch)."""

    snapshot: Snapshot
    decisions: Decisions
    time: float
    names: Names = field(default_factory=dict)
    """Namespaces and names of pods by uid."""


class Trial:
    """The snapshot with the last cycle's decisions carried out, and what the arbiter decides about it now.

    It carries over nothing from the gateway's cycles and leaves nothing to them.
    """

    def __init__(self, seen: Seen, now: float) -> None:
        self.now = now
        self.seen = seen
        self.names = seen.names
        self.snapshot = carried_out(seen.snapshot, seen.decisions, seen.time)
        self._carry = Carry()
        self.decisions = decide(self.snapshot, now, self._carry)
        """Without any change."""

    def decide(self, changed: Snapshot) -> Decisions:
        """Return what the arbiter decides about another snapshot at the same moment."""
        return decide(changed, self.now, self._carry)

    def with_gangs(self, gangs: Iterable[Gang], *, of: Snapshot | None = None) -> Snapshot:
        """Return the snapshot, or another one, with these gangs new or in place of those of their ids."""
        snapshot = of or self.snapshot
        new = {gang.id: gang for gang in gangs}
        kept = (gang for gang in snapshot.gangs if gang.id not in new)
        return replace(snapshot, gangs=tuple(sorted((*kept, *new.values()), key=lambda gang: gang.id)))

    def with_pools(self, pools: Mapping[tuple[str, str], Pool]) -> Snapshot:
        """Return the snapshot with other pools in place of those of their keys."""
        return replace(self.snapshot, pools=tuple(pools.get(pool.key, pool) for pool in self.snapshot.pools))

    def with_quota(self, quota: Quota) -> Snapshot:
        """Return the snapshot with a quota, new or in place of the tenant's in its pool."""
        mine = quota.tenant, quota.pool
        if any((each.tenant, each.pool) == mine for each in self.snapshot.quotas):
            quotas = tuple(quota if (each.tenant, each.pool) == mine else each for each in self.snapshot.quotas)
        else:
            quotas = (*self.snapshot.quotas, quota)
        return replace(self.snapshot, quotas=quotas)

    def free_ids(self, tenant: str, number: int) -> list[str]:
        """Return ids of gangs that no gang has: none is called so, for no name in Kubernetes holds a question mark."""
        taken: Set[str] = {gang.id for gang in self.snapshot.gangs}
        ids = [f"{tenant}/what-if?/gang/what-if?{index:06d}" for index in range(number)]
        assert taken.isdisjoint(ids)
        return ids
