"""Recent starts and evictions of gangs with their reasons, from the decisions of the arbiter's cycles (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vkgateway.arbiter.decisions import Decisions, Evict
from vkgateway.arbiter.reasons.gang_names import LONE_POD, is_gang_of, split_gang_id
from vkgateway.arbiter.reasons.pool_sums import in_units
from vkgateway.arbiter.snapshot import Gang, Pod, PoolKey, Snapshot, node_name

MOST_ENTRIES: Final = 1000
"""Entries of all tenants that are kept."""
MOST_OWN_ENTRIES: Final = 500
"""Entries of one tenant that are kept, so that a busy tenant does not displace the others'."""

PodName = Callable[[str, str], str]
"""Returns the name of a tenant's pod by uid, or an empty string."""

_INSIDE: Final = "starts inside the guarantee"
_BORROWS: Final = "borrows idle capacity"
_BACKFILLS: Final = "borrows capacity that a larger gang waits for"
_RECLAIMED: Final = "a guarantee is reclaimed"
_OWN: Final = "another gang of the tenant starts first"
_FOREIGN: Final = "the scheduler of its pool evicts it"
_WITHDRAWN: Final = "the eviction is withdrawn"
_PROMOTED: Final = "moves into the guarantee"


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Decision about one gang. Amounts are in whole units of the pool's first resource."""

    time: float
    """Seconds since the epoch."""
    kind: str
    """start, evict, reprieve or promote."""
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
    """The last decisions about gangs, of all tenants and of each."""

    def __init__(self) -> None:
        self._number = 0
        self._all: deque[tuple[str, TimelineEntry]] = deque(maxlen=MOST_ENTRIES)
        self._own: dict[str, deque[tuple[str, TimelineEntry]]] = {}

    def add_cycle(self, snapshot: Snapshot, decisions: Decisions, now: float, *, pod_name: PodName) -> None:
        """Add the decisions of a cycle."""
        wanted = {
            each.gang
            for group in (decisions.admits, decisions.evicts, decisions.reprieves, decisions.promotes)
            for each in group
        }
        if not wanted:
            return
        gangs = {gang.id: gang for gang in snapshot.gangs if gang.id in wanted}
        units = {pool.key: pool.unit_resource for pool in snapshot.pools}
        for entry in _Entries(gangs, units, now, pod_name).of(decisions):
            self._number += 1
            item = str(self._number), entry
            self._all.append(item)
            self._own.setdefault(entry.tenant, deque(maxlen=MOST_OWN_ENTRIES)).append(item)

    def forget_tenant(self, tenant: str) -> None:
        """Drop what only the tenant reads."""
        self._own.pop(tenant, None)

    def all_entries(self) -> dict[str, TimelineEntry]:
        """Return the entries of all tenants by number. May be called from another thread."""
        return dict(list(self._all))

    def namespace_entries(self, tenant: str, namespaces: Collection[str]) -> dict[str, TimelineEntry]:
        """Return the entries of some namespaces of a tenant. May be called from another thread."""
        return {
            number: entry.seen_in_namespaces(namespaces)
            for number, entry in list(self._own.get(tenant, ()))
            if entry.namespace in namespaces
        }

    def tenant_entries(self, tenant: str) -> dict[str, TimelineEntry]:
        """Return a tenant's entries as it may see them. May be called from another thread."""
        return {number: entry.seen_by_tenant() for number, entry in list(self._own.get(tenant, ()))}


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
        entry = self._entry("evict", evict.gang, evict.pods, reason, borrowed=True)
        return msgspec.structs.replace(
            entry,
            reclaim=bool(evict.makes_room_for) and not own,
            deadline=evict.deadline,
            for_gang=evict.makes_room_for,
        )

    def _entry(
        self, kind: str, gang: str, uids: Sequence[str], reason: str, *, borrowed: bool, pool: PoolKey | None = None
    ) -> TimelineEntry:
        pods = self._pods_of(gang, frozenset(uids))
        key = pool or next((pod.pool for pod in pods if pod.pool is not None), None)
        unit = self._units.get(key, "") if key is not None else ""
        tenant, _, rest = gang.partition("/")
        namespace, _, name = split_gang_id(gang, {})
        if rest.split("/")[1:2] == [LONE_POD]:
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
