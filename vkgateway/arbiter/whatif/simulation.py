"""One snapshot, decided without and with a change: what differs is the answer (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from vkgateway.arbiter.cache import Cache
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.outcome import apply_decisions
from vkgateway.arbiter.reasons.gang_names import Names
from vkgateway.arbiter.snapshot import Gang, PoolKey, Quota, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCycle:
    """A cycle of the arbiter: what it was decided from, what was decided, and when (seconds since the epoch)."""

    snapshot: Snapshot
    decisions: Decisions
    time: float
    names: Names = field(default_factory=dict)
    """Namespaces and names of pods by uid."""
    part_labels: Mapping[PoolKey, frozenset[str]] = field(default_factory=dict)
    """Of pools that are divided into several virtual nodes, the labels by which the nodes behind each are chosen."""


class DecidedSnapshot(NamedTuple):
    """A snapshot, and what the arbiter decides about it."""

    snapshot: Snapshot
    decisions: Decisions

    def apply_decisions(self, now: float) -> Snapshot:
        """Return the snapshot with the decisions carried out."""
        return apply_decisions(self.snapshot, self.decisions, now)


class Simulation:
    """The snapshot with the last cycle's decisions carried out, and what the arbiter decides about it now.

    It carries over nothing from the gateway's cycles and leaves nothing to them.
    """

    def __init__(self, seen: ObservedCycle, now: float) -> None:
        self.now = now
        self.observed = seen
        self.names = seen.names
        self.snapshot = DecidedSnapshot(seen.snapshot, seen.decisions).apply_decisions(seen.time)
        self._cache = Cache()

    @cached_property
    def unchanged(self) -> DecidedSnapshot:
        """Without any change; decided when it is first needed, so that a question that is refused costs little."""
        return self.decide_about(self.snapshot)

    def decide_about(self, changed: Snapshot) -> DecidedSnapshot:
        """Return what the arbiter decides about another snapshot at the same moment."""
        return DecidedSnapshot(changed, decide(changed, self.now, self._cache))

    def with_quota(self, quota: Quota) -> Snapshot:
        """Return the snapshot with a quota, new or in place of the tenant's in its pool."""
        mine = quota.tenant, quota.pool
        if any((each.tenant, each.pool) == mine for each in self.snapshot.quotas):
            quotas = tuple(quota if (each.tenant, each.pool) == mine else each for each in self.snapshot.quotas)
        else:
            quotas = (*self.snapshot.quotas, quota)
        return replace(self.snapshot, quotas=quotas)

    @staticmethod
    def unused_gang_ids(tenant: str, number: int) -> list[str]:
        """Return ids that no gang has: no name in Kubernetes holds a question mark."""
        return [f"{tenant}/what-if?/gang/what-if?{index:06d}" for index in range(number)]


def with_gangs(snapshot: Snapshot, gangs: Iterable[Gang]) -> Snapshot:
    """Return the snapshot with these gangs new, or in place of those of their ids."""
    new = {gang.id: gang for gang in gangs}
    kept = (gang for gang in snapshot.gangs if gang.id not in new)
    return replace(snapshot, gangs=tuple(sorted((*kept, *new.values()), key=lambda gang: gang.id)))
