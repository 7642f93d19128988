"""Past shares of the tenants: followed from cycle to cycle, and kept in the stored usage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from vkgateway.scheduler.core.past_share import PastShare, decay
from vkgateway.scheduler.core.queueing.dominant_share import usable_capacity
from vkgateway.scheduler.core.share_history import ShareHistory
from vkgateway.scheduler.core.snapshot import Pool, Snapshot
from vkgateway.tenants.usage.days import day_start
from vkgateway.tenants.usage.ledger import DayUsage, StoredShare, StoredShares, UsageLedger
from vkgateway.tenants.usage.records import TenantKey

_DAY_SECONDS = 86_400.0
_SEED_DAYS = 93
"""Days of usage that are stored at most."""


class PastShareKeeper:
    """Past shares of all tenants, by the UID of the Tenant. Without a half-life (0), there are none.

    `uid_of` returns the UID of the Tenant of a name; empty: there is none.

    They are stored with the hours of the ledger, but not computed from them: the hours of borrowing pods are no shares
    beyond a guarantee, which low work uses, too, and a day of hours is too coarse for a half-life of an hour.

    `observe` runs in separate threads.
    """

    def __init__(self, half_life: float, *, uid_of: Callable[[str], str] = lambda _tenant: "") -> None:
        self._half_life = half_life
        self._uid_of = uid_of
        self._history = ShareHistory(half_life)
        self._lock = threading.Lock()
        self._ledger: UsageLedger | None = None
        self._uids: dict[str, str] = {}
        """UID of each tenant whose shares are followed."""
        self._unloaded: set[str] = set()
        """Tenants whose stored shares are not loaded yet."""

    @property
    def shares(self) -> tuple[PastShare, ...]:
        """Past shares since the last cycle."""
        return self._history.shares

    def observe(self, snapshot: Snapshot, now: float) -> tuple[PastShare, ...]:
        """Return the past shares at a snapshot; its usage counts from now on."""
        if not self._half_life:
            return ()
        with self._lock:
            self._identify_tenants({quota.tenant for quota in snapshot.quotas})
            self._load_shares(snapshot.pools, now)
            return self._history.observe(snapshot, now)

    def use_ledger(self, ledger: UsageLedger) -> None:
        """Continue from loaded usage, with the next snapshot."""
        with self._lock:
            self._ledger = ledger

    def store_shares(self, ledger: UsageLedger, month: str) -> None:
        """Put the shares into the usage of the current month."""
        if not self._half_life:
            return
        with self._lock:
            if self._ledger is None:
                return
            shares, tenants = self.shares, [key for key in self._uids.items() if key[0] not in self._unloaded]
        by_tenant: dict[str, list[PastShare]] = {}
        for each in shares:
            by_tenant.setdefault(each.tenant, []).append(each)
        for key in tenants:
            stored = tuple(map(_stored_share, by_tenant.get(key[0], ())))
            ledger.set_shares(key, month, StoredShares(half_life=self._half_life, shares=stored))

    def _identify_tenants(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            uid = self._uid_of(name)
            known = self._uids.get(name)
            if uid and uid != known:
                if known is not None:
                    self._history.forget(name)
                self._uids[name] = uid
                self._unloaded.add(name)

    def _load_shares(self, pools: Iterable[Pool], now: float) -> None:
        if self._ledger is None or not self._unloaded:
            return
        for name in sorted(self._unloaded):
            key = name, self._uids[name]
            stored = self._ledger.shares_of(key)
            if stored is not None and stored.half_life == self._half_life:
                self._history.load(_loaded_share(name, each) for each in stored.shares)
            else:
                self._history.load(shares_of_days(self._ledger, key, pools, now=now, half_life=self._half_life))
        self._unloaded = set()


def shares_of_days(
    ledger: UsageLedger, tenant: TenantKey, pools: Iterable[Pool], *, now: float, half_life: float
) -> Iterator[PastShare]:
    """Yield a tenant's past shares from its usage by UTC day, for want of stored ones with this half-life.

    They count the hours of borrowing pods in devices, as if each day's were spread over the day and the pools had
    their present capacity.
    """
    days = ledger.daily_usage(now, days=_SEED_DAYS, tenant=tenant[0], uid=tenant[1])
    for pool in pools:
        mine = [day for day in days if (day.compute_cluster, day.pool) == pool.key and day.borrowed]
        average = _average_of_days(mine, usable_capacity(pool), now, half_life)
        if average:
            yield PastShare(tenant=tenant[0], pool=pool.key, average=average, share=0.0, at=now)


def _average_of_days(days: Iterable[DayUsage], capacity: dict[str, int], now: float, half_life: float) -> float:
    hours: dict[str, dict[str, float]] = {}
    for each in days:
        by_resource = hours.setdefault(each.day, {})
        by_resource[each.resource] = by_resource.get(each.resource, 0.0) + each.borrowed
    total = 0.0
    for day, by_resource in hours.items():
        start = day_start(day)
        end = max(start + 1.0, min(now, start + _DAY_SECONDS))
        shares = (used * 3600.0 * 1000.0 / max(1, capacity.get(name, 0)) for name, used in by_resource.items())
        share = min(1.0, max(shares) / (end - start))
        total += share * (decay(now - end, half_life) - decay(now - start, half_life))
    return total


def _stored_share(share: PastShare) -> StoredShare:
    cluster, pool = share.pool
    return StoredShare(pool=pool, compute_cluster=cluster, average=share.average, share=share.share, at=share.at)


def _loaded_share(tenant: str, stored: StoredShare) -> PastShare:
    pool = stored.compute_cluster, stored.pool
    return PastShare(tenant=tenant, pool=pool, average=stored.average, share=stored.share, at=stored.at)
