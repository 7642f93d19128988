"""History of the tenants' shares, followed from snapshot to snapshot. An idle gateway does without numpy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.past_share import PastShare, decay
from vkgateway.scheduler.core.queueing.dominant_share import share_beyond, usable_capacity
from vkgateway.scheduler.core.snapshot import WAITING, Gang, Pool, PoolKey, Quota, Shape, Snapshot
from vkgateway.scheduler.core.snapshot_diff import diff_gangs

_NEGLIGIBLE = 1e-6
"""A past share below this is forgotten: a millionth of the pool orders no gangs."""

_Key = tuple[str, PoolKey]
"""Tenant and pool."""
_Counts = dict[tuple[tuple[str, int], ...], int]
"""Number of placed pods by their requests."""


class ShareHistory:
    """Past shares of all tenants, for a series of snapshots. Without a half-life (0), it follows nothing.

    A share counts from the snapshot that shows it until the next one. So the sums are exact if each change of usage is
    observed when it happens: before a cycle's decisions, and after they are carried out. Unchanged parts of a snapshot
    should be the same objects as before; then the cost is that of the changes.
    """

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self.shares: tuple[PastShare, ...] = ()
        """Past shares since the last snapshot, by tenant and pool."""
        self._shares: dict[_Key, PastShare] = {}
        self._unconfirmed: set[_Key] = set()
        """Loaded shares that no snapshot has shown yet."""
        self._forgotten: set[_Key] = set()
        """Shares that the next snapshot shows as if for the first time."""
        self._begun: float | None = None
        """Time of the first snapshot."""
        self._gangs: tuple[Gang, ...] = ()
        self._counts: dict[_Key, _Counts] = {}
        self._pools: dict[PoolKey, Pool] = {}
        self._capacities: dict[PoolKey, MilliResources] = {}
        self._quotas: dict[_Key, Quota] = {}
        self._given_quotas: tuple[Quota, ...] = ()

    def load(self, shares: Iterable[PastShare]) -> None:
        """Add past shares from before the first snapshot, such as stored ones.

        Until the next snapshot, a loaded share counts as far as that snapshot still shows it.
        """
        for each in shares if self.half_life else ():
            key = each.tenant, each.pool
            known = self._shares.get(key)
            if known is None or self._begun is None:
                self._unconfirmed.add(key)
                self._shares[key] = each
            else:  # averages are linear: that of the time before the first snapshot is added
                earlier = each.average_at(self._begun, self.half_life) * decay(known.at - self._begun, self.half_life)
                self._shares[key] = replace(known, average=min(1.0, known.average + earlier))
        self._publish()

    def forget(self, tenant: str) -> None:
        """Forget the past of a tenant, whose name belongs to another one now."""
        keys = {key for key in self._shares if key[0] == tenant}
        self._forgotten |= keys
        for key in keys:
            del self._shares[key]
        self._publish()

    def observe(self, snapshot: Snapshot, now: float) -> tuple[PastShare, ...]:
        """Return the past shares at a snapshot; its usage counts from now on. `now` is in seconds since the epoch."""
        if not self.half_life:
            return ()
        self._begun = now if self._begun is None else self._begun
        changed = self._update_capacities(snapshot) | self._update_quotas(snapshot)
        changed |= self._update_usage(snapshot.gangs) | self._unconfirmed | self._forgotten
        self._forgotten = set()
        before = dict(self._shares)
        for key in changed:
            if key[1] in self._pools:
                self._update_share(key, now)
        gone = [key for key, each in self._shares.items() if not each.share and self._is_negligible(each, now)]
        for key in gone:
            del self._shares[key]
        if before != self._shares:
            self._publish()
        return self.shares

    def _publish(self) -> None:
        self.shares = tuple(self._shares[key] for key in sorted(self._shares))

    def _is_negligible(self, each: PastShare, now: float) -> bool:
        return each.average_at(now, self.half_life) < _NEGLIGIBLE

    def _update_share(self, key: _Key, now: float) -> None:
        tenant, pool = key
        share, known = self._compute_share(key), self._shares.get(key)
        if known is None:
            known = PastShare(tenant=tenant, pool=pool, average=0.0, share=0.0, at=now)
        elif known.share == share:
            self._unconfirmed.discard(key)
            return
        elif key in self._unconfirmed:
            # Nothing starts without a gateway: what still runs ran in the meantime, and no more is known.
            known = replace(known, share=min(known.share, share))
        self._unconfirmed.discard(key)
        average = known.average_at(now, self.half_life)
        self._shares[key] = replace(known, average=average, share=share, at=max(now, known.at))

    def _compute_share(self, key: _Key) -> float:
        pool, quota = self._pools[key[1]], self._quotas.get(key)
        used: MilliResources = {}
        for requests, count in self._counts.get(key, {}).items():
            for name, amount in pool.share_requests(Shape(requests)):
                used[name] = used.get(name, 0) + amount * count
        return share_beyond(used, quota.guarantee if quota is not None else {}, self._capacities[pool.key])

    def _update_capacities(self, snapshot: Snapshot) -> set[_Key]:
        """Return the keys in pools whose capacity changed. A pool that cannot be reached keeps its shares."""
        changed = set()
        for pool in snapshot.pools:
            if self._pools.get(pool.key) is not pool:
                self._pools[pool.key] = pool
                capacity = usable_capacity(pool)
                if self._capacities.get(pool.key) != capacity:
                    self._capacities[pool.key] = capacity
                    changed.add(pool.key)
        return {key for key in (self._shares.keys() | self._counts.keys() if changed else ()) if key[1] in changed}

    def _update_quotas(self, snapshot: Snapshot) -> set[_Key]:
        """Return the keys whose guarantee changed."""
        if snapshot.quotas is self._given_quotas or snapshot.quotas == self._given_quotas:
            return set()
        before, self._given_quotas = self._quotas, snapshot.quotas
        self._quotas = {(quota.tenant, quota.pool): quota for quota in snapshot.quotas}
        known = self._shares.keys() | self._counts.keys()
        return {key for key in known if before.get(key) != self._quotas.get(key)}

    def _update_usage(self, gangs: tuple[Gang, ...]) -> set[_Key]:
        """Return the keys whose placed pods changed."""
        added, deleted = diff_gangs(self._gangs, gangs)
        self._gangs = gangs
        changed: set[_Key] = set()
        for times, some in ((1, added), (-1, deleted)):
            for gang in some:
                for pod in gang.pods:
                    if pod.pool is not None and pod.state is not WAITING:
                        key = gang.tenant, pod.pool
                        changed.add(key)
                        counts = self._counts.setdefault(key, {})
                        counts[pod.shape.requests] = counts.get(pod.shape.requests, 0) + times
        for key in changed:
            counts = {requests: count for requests, count in self._counts[key].items() if count}
            if counts:
                self._counts[key] = counts
            else:
                del self._counts[key]
        return changed
