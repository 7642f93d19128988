"""Decisions about one snapshot without and with a change (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.outcome import apply_decisions
from vkgateway.scheduler.core.reasons.gang_names import Names
from vkgateway.scheduler.core.snapshot import Gang, PoolKey, Quota, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCycle:
    """Cycle of the arbiter: its snapshot, its decisions, and its time (seconds since the epoch)."""

    snapshot: Snapshot
    decisions: Decisions
    time: float
    names: Names = field(default_factory=dict)
    """Namespaces and names of pods by uid."""
    part_labels: Mapping[PoolKey, frozenset[str]] = field(default_factory=dict)
    """Labels that select the nodes of each virtual node, for pools that are divided into several of them."""


class DecidedSnapshot(NamedTuple):
    """Snapshot with the arbiter's decisions about it."""

    snapshot: Snapshot
    decisions: Decisions

    def apply_decisions(self, now: float) -> Snapshot:
        """Return the snapshot with the decisions carried out."""
        return apply_decisions(self.snapshot, self.decisions, now)


class Simulation:
    """Snapshot after the last cycle's decisions, with the arbiter's decisions about it now.

    It shares no state with the gateway's cycles.
    """

    def __init__(self, observed: ObservedCycle, now: float) -> None:
        self.now = now
        self.observed = observed
        self.names = observed.names
        self.snapshot = DecidedSnapshot(observed.snapshot, observed.decisions).apply_decisions(observed.time)
        self._cache = Cache()

    @cached_property
    def unchanged(self) -> DecidedSnapshot:
        """Unchanged case, decided on first use: a refused question stays cheap."""
        return self.decide_about(self.snapshot)

    def decide_about(self, changed: Snapshot) -> DecidedSnapshot:
        """Return the arbiter's decisions about another snapshot at the same time."""
        return DecidedSnapshot(changed, decide(changed, self.now, self._cache))

    def with_quota(self, quota: Quota) -> Snapshot:
        """Return the snapshot with a quota, new or in place of the tenant's quota in its pool."""
        key = quota.tenant, quota.pool
        if any((each.tenant, each.pool) == key for each in self.snapshot.quotas):
            quotas = tuple(quota if (each.tenant, each.pool) == key else each for each in self.snapshot.quotas)
        else:
            quotas = (*self.snapshot.quotas, quota)
        return replace(self.snapshot, quotas=quotas)

    @staticmethod
    def unused_gang_ids(tenant: str, number: int) -> list[str]:
        """Return unused gang ids: no Kubernetes name contains a question mark."""
        return [f"{tenant}/what-if?/gang/what-if?{index:06d}" for index in range(number)]


def with_gangs(snapshot: Snapshot, gangs: Iterable[Gang]) -> Snapshot:
    """Return the snapshot with these gangs, new or in place of gangs with the same ids."""
    new = {gang.id: gang for gang in gangs}
    kept = (gang for gang in snapshot.gangs if gang.id not in new)
    return replace(snapshot, gangs=tuple(sorted((*kept, *new.values()), key=lambda gang: gang.id)))
