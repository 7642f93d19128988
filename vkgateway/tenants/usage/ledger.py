"""Ledger of usage: sums of usage records by tenant, UTC day, pool, band and resource (pure).

Records of a pod may overlap: each describes the time since its start. The ledger counts each moment of a pod once, as
the first record of that moment says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from vkgateway.tenants.usage.days import last_days, split_days
from vkgateway.tenants.usage.records import TenantKey, UsageRecord

MAX_ROWS: Final = 128
"""Rows of a tenant and day, enough for 64 pools and both bands. Further rows are summed up without their pool."""
_FORGET_SECONDS: Final = 3600.0
"""Seconds after its last record for which a pod is remembered."""


class UsageKey(NamedTuple):
    """What the usage of a tenant and day is grouped by."""

    pool: str
    compute_cluster: str
    band: str
    resource: str


class Hours(NamedTuple):
    """Sums in unit-hours (GPU-hours). `borrowed` and `lost` are parts of `total`."""

    total: float = 0.0
    borrowed: float = 0.0
    lost: float = 0.0


class DayUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Usage of a tenant in one UTC day, in unit-hours (GPU-hours)."""

    day: str
    """UTC day, such as 2026-11-26."""
    tenant: str
    tenant_uid: str = ""
    """UID of the Tenant; empty: not recorded."""
    pool: str
    compute_cluster: str
    band: str
    resource: str
    hours: float
    borrowed: float
    """The part of `hours` outside of guarantees."""
    lost: float
    """The part of `hours` whose work preemptions lost."""


class StoredShare(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's past share of a pool: see `PastShare`."""

    pool: str
    compute_cluster: str
    average: float
    share: float
    at: float


class StoredShares(msgspec.Struct, frozen=True, kw_only=True):
    """Past shares of a tenant, in their stored form."""

    half_life: float
    """Half-life in seconds with which they were averaged."""
    shares: tuple[StoredShare, ...]


class MonthUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a tenant in one UTC month, in its stored form."""

    tenant: str
    uid: str = ""
    """UID of the Tenant; empty: stored before UIDs were."""
    month: str
    through: float
    """Everything before this time is counted (seconds since the epoch)."""
    days: dict[str, list[tuple[UsageKey, Hours]]]
    """Rows by UTC day."""
    shares: StoredShares | None = None
    """Past shares as they were last, in the latest month only; None: they were not followed."""


StoredMonth = tuple[str, str, str]
"""Name and UID of a tenant, and UTC month."""
_Sums = list[float]
"""The fields of `Hours`, which change with each count."""
_Rows = dict[tuple[str, str, str, str], _Sums]
"""By the fields of `UsageKey`."""
_PodKey = tuple[TenantKey, str, str, str]
"""Tenant, namespace, name and resource."""


class UsageLedger:
    """Sums of the usage of all tenants, for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._days: dict[TenantKey, dict[str, _Rows]] = {}
        """By tenant and UTC day."""
        self._stored_through: dict[tuple[TenantKey, str], float] = {}
        """By tenant and month: a time before which an earlier leader counted everything."""
        self._counted: dict[_PodKey, float] = {}
        """Time until which each pod is counted."""
        self._last_end = 0.0
        """Latest time that is counted of any pod."""
        self._changed: set[tuple[TenantKey, str]] = set()
        """Tenants and months whose sums changed since they were taken to be stored."""
        self._shares: dict[TenantKey, tuple[str, StoredShares]] = {}
        """Past shares of each tenant, and the month with which they are stored."""

    def load(self, months: Iterable[MonthUsage]) -> None:
        """Continue from stored sums. Call it before anything is counted."""
        with self._lock:
            for stored in months:
                tenant = stored.tenant, stored.uid
                self._stored_through[tenant, stored.month] = stored.through
                days = self._days.setdefault(tenant, {})
                days.update({day: {key: [*hours] for key, hours in rows} for day, rows in stored.days.items()})
                if stored.shares is not None and stored.month >= self._shares.get(tenant, ("",))[0]:
                    self._shares[tenant] = stored.month, stored.shares

    def adopt(self, name: str, uid: str) -> None:
        """Count sums that were stored without a UID as those of the tenant that has the name now."""
        with self._lock:
            old, new = (name, ""), (name, uid)
            days = self._days.pop(old, None)
            if days is None:
                return
            # Days that were stored with the UID since are the sums of these and of later records.
            self._days[new] = days | self._days.get(new, {})
            for month in {day[:7] for day in days}:
                through = self._stored_through.pop((old, month), 0.0)
                self._stored_through[new, month] = max(through, self._stored_through.get((new, month), 0.0))
                self._changed.discard((old, month))
                self._changed.add((new, month))

    def shares_of(self, tenant: TenantKey) -> StoredShares | None:
        """Return the past shares of a tenant as they were stored or set last; None: never."""
        with self._lock:
            found = self._shares.get(tenant)
            return found[1] if found is not None else None

    def set_shares(self, tenant: TenantKey, month: str, shares: StoredShares) -> None:
        """Replace the past shares of a tenant, to be stored with a month. None are stored for a tenant without any."""
        with self._lock:
            known = self._shares.get(tenant)
            if known != (month, shares) and (known is not None or shares.shares):
                self._shares[tenant] = month, shares
                self._changed.add((tenant, month))

    def count(self, records: Iterable[UsageRecord]) -> None:
        """Count records: of each, the time that no earlier record of the pod covers."""
        for record in records:
            with self._lock:  # one by one: the event loop must not wait for all running pods
                self._count(record)

    def _count(self, record: UsageRecord) -> None:
        tenant = record.tenant, record.tenant_uid
        pod = tenant, record.namespace, record.pod, record.resource
        start = max(record.start, self._counted.get(pod, 0.0))
        if record.end <= start:
            return
        self._counted[pod] = record.end
        self._last_end = max(self._last_end, record.end)
        for day, first, last in split_days(start, record.end):
            through = self._stored_through.get((tenant, day[:7]), 0.0)
            if last > through:
                hours = (last - max(first, through)) * record.units / 3600
                sums = self._sums_of(record, day)
                sums[0] += hours
                sums[1] += hours if record.borrowed else 0.0
        if record.lost > 0:
            for day, first, last in split_days(max(record.start, record.end - record.lost), record.end):
                self._sums_of(record, day)[2] += (last - first) * record.units / 3600

    def _sums_of(self, record: UsageRecord, day: str) -> _Sums:
        """Return the sums of a day to which a record is added."""
        tenant = record.tenant, record.tenant_uid
        rows = self._days.setdefault(tenant, {}).setdefault(day, {})
        key = record.pool, record.compute_cluster, record.band, record.resource
        if key not in rows and len(rows) >= MAX_ROWS:
            key = "", "", record.band, record.resource
        self._changed.add((tenant, day[:7]))
        return rows.setdefault(key, [0.0, 0.0, 0.0])

    def take_changed(self, now: float) -> list[MonthUsage]:
        """Return the months that changed since the last call, to be stored.

        All running pods must be counted until `now`. What is counted after that is not counted again, either.
        """
        with self._lock:
            through = max(now, self._last_end)
            changed, self._changed = self._changed, set()
            self._counted = {pod: end for pod, end in self._counted.items() if end > now - _FORGET_SECONDS}
            return [
                MonthUsage(
                    tenant=tenant[0],
                    uid=tenant[1],
                    month=month,
                    through=through,
                    days={
                        day: [(UsageKey(*key), Hours(*sums)) for key, sums in rows.items()]
                        for day, rows in sorted(self._days.get(tenant, {}).items())
                        if day.startswith(month)
                    },
                    shares=shares[1]
                    if (shares := self._shares.get(tenant)) is not None and shares[0] == month
                    else None,
                )
                for tenant, month in sorted(changed)
            ]

    def mark_changed(self, months: Iterable[MonthUsage]) -> None:
        """Include months again in the next `take_changed`, because they were not stored."""
        with self._lock:
            self._changed.update(((each.tenant, each.uid), each.month) for each in months)

    def forget_before(self, month: str) -> None:
        """Forget all usage before a month."""
        with self._lock:
            for days in self._days.values():
                for day in [day for day in days if day < month]:
                    del days[day]
            self._days = {tenant: days for tenant, days in self._days.items() if days}
            self._stored_through = {key: value for key, value in self._stored_through.items() if key[1] >= month}
            self._shares = {tenant: each for tenant, each in self._shares.items() if each[0] >= month}

    def daily_usage(self, now: float, *, days: int, tenant: str = "", uid: str = "") -> list[DayUsage]:
        """Return the usage of the last UTC days, today included; `tenant`: of this name only, `uid`: of one of them."""
        with self._lock:
            wanted = last_days(now, days)
            tenants = [key for key in sorted(self._days) if tenant in ("", key[0]) and uid in ("", key[1])]
            return [
                DayUsage(
                    day=day,
                    tenant=key[0],
                    tenant_uid=key[1],
                    pool=pool,
                    compute_cluster=cluster,
                    band=band,
                    resource=resource,
                    hours=hours,
                    borrowed=borrowed,
                    lost=lost,
                )
                for day in wanted
                for key in tenants
                for (pool, cluster, band, resource), (hours, borrowed, lost) in sorted(
                    self._days[key].get(day, {}).items()
                )
            ]

    def month_hours(self, tenant: str, month: str, *, resource: str, pool: str = "", uid: str = "") -> float:
        """Return the hours of a tenant in a UTC month; `pool`: in the pools of this name only."""
        with self._lock:
            return sum(
                sums[0]
                for day, rows in self._days.get((tenant, uid), {}).items()
                if day.startswith(month)
                for key, sums in rows.items()
                if key[3] == resource and (not pool or key[0] == pool)
            )
