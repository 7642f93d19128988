"""Recent starts, evictions and ends of gangs with their reasons, from the arbiter's cycles and ended pods (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vkgateway.api.run_limits import render_duration
from vkgateway.scheduler.core.decisions import Decisions, Evict
from vkgateway.scheduler.core.reasons.gang_names import is_gang_of, is_lone, split_gang_id
from vkgateway.scheduler.core.reasons.pool_sums import in_units
from vkgateway.scheduler.core.snapshot import Gang, Pod, PoolKey, Snapshot, node_name

MOST_ENTRIES: Final = 1000
"""Entries of all tenants that are kept."""
MOST_OWN_ENTRIES: Final = 500
"""Entries of one tenant that are kept, so that a busy tenant does not displace the others'."""

PodName = Callable[[str, str], str]
"""Returns the name of a tenant's pod by uid, or an empty string."""

TenantUid = Callable[[str], str]
"""Returns the UID of the Tenant of a name, or an empty string."""

_INSIDE: Final = "starts inside the guarantee"
_BORROWS: Final = "borrows idle capacity"
_BACKFILLS: Final = "borrows capacity that a larger gang waits for"
_RECLAIMED: Final = "a guarantee is reclaimed"
_OWN: Final = "another gang of the tenant starts first"
_FOREIGN: Final = "the scheduler of its pool evicts it"
_WITHDRAWN: Final = "the eviction is withdrawn"
_PROMOTED: Final = "moves into the guarantee"
_ENDED: Final = "its pods ended"
_END_SECONDS: Final = 60.0
"""Pods of a gang that end within this time of one another are one entry."""


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Decision about one gang. Amounts are in whole units of the pool's first resource."""

    time: float
    """Seconds since the epoch."""
    kind: str
    """start, evict, reprieve, promote or end."""
    gang: str
    tenant: str
    namespace: str
    name: str
    pool: str
    """Virtual node of the pool."""
    units: float
    pods: int
    borrowed: bool
    reason: str
    """Reason in words. It names no tenant and no gang."""
    reclaim: bool = False
    """Another tenant reclaims its guarantee."""
    since: float | None = None
    """Evict and end: when the first of the pods started."""
    deadline: float | None = None
    """Evict: time of the deletion."""
    for_gang: str = msgspec.field(name="for", default="")
    """Evict: the gang that needs the capacity."""

    def seen_by_tenant(self) -> TimelineEntry:
        """Return the entry as its tenant may see it: it names no gang of others."""
        own = self.for_gang.startswith(f"{self.tenant}/")
        return self if own or not self.for_gang else msgspec.structs.replace(self, for_gang="")

    def seen_in_namespaces(self, namespaces: Collection[str]) -> TimelineEntry:
        """Return the entry as a reader of some namespaces of the tenant may see it: it names no gang of others."""
        if is_gang_of(self.for_gang, self.tenant, namespaces) or not self.for_gang:
            return self
        return msgspec.structs.replace(self, for_gang="")


class Timeline:
    """The last decisions about gangs and their ends, of all tenants and of each."""

    def __init__(self) -> None:
        self._number = 0
        self._all = _LastEntries(MOST_ENTRIES)
        self._own: dict[str, tuple[str, _LastEntries]] = {}
        """By tenant: its UID and its entries. A later tenant of the same name does not read them."""
        self._ends: dict[str, str] = {}
        """By gang: the number of its last end."""

    def add_cycle(
        self, snapshot: Snapshot, decisions: Decisions, now: float, *, pod_name: PodName, uid_of: TenantUid
    ) -> None:
        """Add the decisions of a cycle. What only a deleted tenant read is dropped."""
        wanted = {
            each.gang
            for group in (decisions.admits, decisions.evicts, decisions.reprieves, decisions.promotes)
            for each in group
        }
        if not wanted:
            return
        gangs = {gang.id: gang for gang in snapshot.gangs if gang.id in wanted}
        units = {pool.key: pool.unit_resource for pool in snapshot.pools}
        for name in [name for name, (uid, _) in self._own.items() if uid != uid_of(name)]:
            del self._own[name]
        for entry in _Entries(gangs, units, now, pod_name).of(decisions):
            self._put(self._next_number(), entry, uid_of)

    def add_end(self, end: TimelineEntry, *, uid_of: TenantUid) -> None:
        """Add the end of a pod, or count it in the entry of others of its gang that ended just before."""
        former = self._all.entries.get(self._ends.get(end.gang, ""))
        if former is not None and former.pool == end.pool and end.time - former.time <= _END_SECONDS:
            units, since = former.units + end.units, min(former.since or end.time, end.since or end.time)
            end = msgspec.structs.replace(end, units=units, pods=former.pods + end.pods, since=since)
        else:
            if len(self._ends) >= 2 * MOST_ENTRIES:
                self._ends = {gang: number for gang, number in self._ends.items() if number in self._all.entries}
            self._ends[end.gang] = self._next_number()
        self._put(self._ends[end.gang], end, uid_of)

    def _next_number(self) -> str:
        self._number += 1
        return str(self._number)

    def _put(self, number: str, entry: TimelineEntry, uid_of: TenantUid) -> None:
        uid, own = self._own.get(entry.tenant, ("", None))
        if own is None or uid != uid_of(entry.tenant):
            own = _LastEntries(MOST_OWN_ENTRIES)
            self._own[entry.tenant] = uid_of(entry.tenant), own
        for entries in (self._all, own):
            entries.put(number, entry)

    def all_entries(self) -> dict[str, TimelineEntry]:
        """Return the entries of all tenants by number. May be called from another thread."""
        return self._all.entries.copy()

    def namespace_entries(self, tenant: str, uid: str, namespaces: Collection[str]) -> dict[str, TimelineEntry]:
        """Return the entries of some namespaces of the tenant with this name and UID. May be called from another
        thread.
        """
        return {
            number: entry.seen_in_namespaces(namespaces)
            for number, entry in self._entries_of(tenant, uid).items()
            if entry.namespace in namespaces
        }

    def tenant_entries(self, tenant: str, uid: str) -> dict[str, TimelineEntry]:
        """Return the entries of the tenant with this name and UID as it may see them. May be called from another
        thread.
        """
        return {number: entry.seen_by_tenant() for number, entry in self._entries_of(tenant, uid).items()}

    def _entries_of(self, tenant: str, uid: str) -> dict[str, TimelineEntry]:
        found, own = self._own.get(tenant, ("", None))
        return own.entries.copy() if own is not None and found == uid else {}


class _LastEntries:
    """The last entries by number, the oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.entries: dict[str, TimelineEntry] = {}

    def put(self, number: str, entry: TimelineEntry) -> None:
        self.entries[number] = entry
        if len(self.entries) > self._most:
            del self.entries[next(iter(self.entries))]


def end_of_pod(
    *, gang: str, pod: str, pool: PoolKey, units: float, borrowed: bool, since: float, now: float
) -> TimelineEntry:
    """Return the entry of the end of a pod, which started at `since` and was not evicted."""
    namespace, _, name = split_gang_id(gang, {})
    return TimelineEntry(
        time=now,
        kind="end",
        gang=gang,
        tenant=gang.partition("/")[0],
        namespace=namespace,
        name=pod if is_lone(gang) else name,
        pool=node_name(pool),
        units=units,
        pods=1,
        borrowed=borrowed,
        reason=_ENDED,
        since=since,
    )


class _Entries:
    """Entries of one cycle."""

    def __init__(self, gangs: Mapping[str, Gang], units: Mapping[PoolKey, str], now: float, pod_name: PodName) -> None:
        self._gangs = gangs
        self._units = units
        self._now = now
        self._pod_name = pod_name

    def of(self, decisions: Decisions) -> Iterator[TimelineEntry]:
        """Yield an entry for each gang that a decision concerns."""
        for admit in decisions.admits:
            reason = _BACKFILLS if admit.behind else _BORROWS if admit.borrowed else _INSIDE
            yield self._entry("start", admit.gang, tuple(admit.nodes), reason, pool=admit.pool, borrowed=admit.borrowed)
        for evict in decisions.evicts:
            yield self._eviction(evict)
        for reprieve in decisions.reprieves:
            yield self._entry("reprieve", reprieve.gang, reprieve.pods, _WITHDRAWN, borrowed=True)
        for promote in decisions.promotes:
            yield self._entry("promote", promote.gang, promote.pods, _PROMOTED, borrowed=False)

    def _eviction(self, evict: Evict) -> TimelineEntry:
        own = evict.makes_room_for.startswith(f"{evict.gang.partition('/')[0]}/")
        reason = _FOREIGN if not evict.makes_room_for else _OWN if own else _RECLAIMED
        if evict.reached_limit:
            reason = f"its run reaches the limit of {render_duration(evict.reached_limit)}"
        entry = self._entry("evict", evict.gang, evict.pods, reason, borrowed=self._borrows(evict))
        return msgspec.structs.replace(
            entry,
            since=min((pod.since for pod in self._pods_of(evict.gang, frozenset(evict.pods))), default=None),
            reclaim=bool(evict.makes_room_for) and not own,
            deadline=evict.deadline,
            for_gang=evict.makes_room_for,
        )

    def _borrows(self, evict: Evict) -> bool:
        """Return whether the evicted pods borrow: those that make room do, whatever they did before."""
        return not evict.reached_limit or any(pod.borrowed for pod in self._pods_of(evict.gang, frozenset(evict.pods)))

    def _entry(
        self, kind: str, gang: str, uids: Sequence[str], reason: str, *, borrowed: bool, pool: PoolKey | None = None
    ) -> TimelineEntry:
        pods = self._pods_of(gang, frozenset(uids))
        key = pool or next((pod.pool for pod in pods if pod.pool is not None), None)
        unit = self._units.get(key, "") if key is not None else ""
        tenant = gang.partition("/")[0]
        namespace, _, name = split_gang_id(gang, {})
        if is_lone(gang):
            name = self._pod_name(tenant, name) or name
        return TimelineEntry(
            time=self._now,
            kind=kind,
            gang=gang,
            tenant=tenant,
            namespace=namespace,
            name=name,
            pool=node_name(key) if key is not None else "",
            units=in_units(sum(pod.shape.amount_of(unit) for pod in pods)),
            pods=len(uids),
            borrowed=borrowed,
            reason=reason,
        )

    def _pods_of(self, gang: str, uids: frozenset[str]) -> list[Pod]:
        found = self._gangs.get(gang)
        return [pod for pod in found.pods if pod.uid in uids] if found is not None else []
