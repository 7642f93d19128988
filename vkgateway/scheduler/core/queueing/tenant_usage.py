"""Usage of a pool by tenant: shares beyond guarantees, and limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.capacity.node_fit import FloatArray, IntArray
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.queueing.dominant_share import share_beyond, usable_capacity
from vkgateway.scheduler.core.snapshot import Pod, Pool, Quota, Shape

_LEAST_WEIGHT = 1e-6
_MAX_SHAPES = 4096
_NOTHING: MilliResources = {}

_Requests = tuple[tuple[str, int], ...]


class TenantUsage:
    """Usage of one pool by tenant, against quotas, in thousandths."""

    def __init__(self, pool: Pool, quotas: Iterable[Quota], journal: Journal | None = None) -> None:
        self._pool = pool
        self._journal = journal or Journal()
        self.quotas: dict[str, Quota] = {quota.tenant: quota for quota in quotas if quota.pool == pool.key}
        self.usage: dict[str, MilliResources] = {}
        """Usage of each tenant's pods, planned ones included."""
        self.share_usage: dict[str, MilliResources] = {}
        """The part of `usage` that counts for a tenant's share: see `Pool.share_requests`."""
        self._share_requests: dict[_Requests, _Requests] = {}
        """By the requests of a shape, the part of them that counts for shares."""
        self._share_cache: dict[str, float] = {}
        self._past_shares: Mapping[str, float] = {}

    def set_past_shares(self, averages: Mapping[str, float]) -> None:
        """Replace the tenants' decayed average shares of the past; missing: 0."""
        self._past_shares = averages
        self._share_cache.clear()

    def past_share(self, tenant: str) -> float:
        """Return the tenant's decayed average share of the past, before the division by its weight."""
        return self._past_shares.get(tenant, 0.0)

    def replace_pool(self, pool: Pool) -> None:
        """Replace the pool after some of its nodes have changed."""
        self._pool = pool
        self._share_cache.clear()
        self.__dict__.pop("pool_capacity", None)

    def set_quotas(self, quotas: Iterable[Quota]) -> bool:
        """Replace the tenants' quotas; return whether any of this pool has changed."""
        found = {quota.tenant: quota for quota in quotas if quota.pool == self._pool.key}
        if found == self.quotas:
            return False
        self.quotas = found
        self._share_cache.clear()
        return True

    def add_usage(self, tenant: str, shape: Shape, times: int) -> None:
        """Count pods of a shape; a negative number of them is removed."""
        self._count_pods(tenant, shape, times)
        self._journal.record(self._count_pods, tenant, shape, -times)

    def _count_pods(self, tenant: str, shape: Shape, times: int) -> None:
        requests = shape.requests
        shared = self._share_requests.get(requests)
        if shared is None:
            if len(self._share_requests) >= _MAX_SHAPES:
                self._share_requests.clear()
            shared = self._share_requests[requests] = tuple(self._pool.share_requests(shape))
        _add_requests(self.usage, tenant, requests, times)
        _add_requests(self.share_usage, tenant, shared, times)
        self._share_cache.pop(tenant, None)

    @cached_property
    def pool_capacity(self) -> MilliResources:
        """Capacity of the usable nodes in each device, cpu and memory."""
        return usable_capacity(self._pool)

    def dominant_share(self, tenant: str) -> float:
        """Return the tenant's fair share: its dominant share of the pool beyond its guarantee, and its past share,
        divided by its weight.
        """
        found = self._share_cache.get(tenant)
        if found is None:
            found = self._share_cache[tenant] = self._compute_share(tenant)
        return found

    def _compute_share(self, tenant: str) -> float:
        quota = self.quotas.get(tenant)
        guarantee = quota.guarantee if quota is not None else _NOTHING
        share = share_beyond(self.share_usage.get(tenant, _NOTHING), guarantee, self.pool_capacity)
        return (share + self.past_share(tenant)) / _weight_of(quota)

    def shares_without(self, tenant: str, without: Mapping[str, IntArray], past: FloatArray) -> FloatArray:
        """Return fair shares of the tenant: each as if it used less by the amounts of `without`, by resource, and with
        another past share.
        """
        largest: FloatArray = np.zeros(len(past))
        for name, total in self.pool_capacity.items():
            over = self.beyond_guarantee(tenant, name) - without.get(name, 0)
            np.maximum(largest, over / max(1, total), out=largest)
        return (largest + past) / _weight_of(self.quotas.get(tenant))

    def beyond_guarantee(self, tenant: str, resource: str) -> int:
        """Return the tenant's share usage of a resource beyond its guarantee; negative below it."""
        quota = self.quotas.get(tenant)
        guarantee = quota.guarantee.get(resource, 0) if quota is not None else 0
        return self.share_usage.get(tenant, {}).get(resource, 0) - guarantee

    def shares_by_tenant(self) -> dict[str, float]:
        """Return the shares of all tenants with pods in the pool."""
        return {tenant: self.dominant_share(tenant) for tenant in sorted(self.usage)}

    def exceeded_limits(self, tenant: str, pods: Iterable[Pod]) -> list[str]:
        """Return the resources in which these pods would exceed the tenant's limit."""
        quota = self.quotas.get(tenant)
        return list(self.excess_over_limit(tenant, pods)) if quota is not None and quota.limit else []

    def may_borrow(self, tenant: str, pods: Iterable[Pod]) -> bool:
        """Return whether a tenant's budgets let these pods start outside its guarantee."""
        quota = self.quotas.get(tenant)
        return quota is None or quota.may_borrow(pods)

    def excess_over_limit(
        self, tenant: str, pods: Iterable[Pod], gone: Sequence[MilliResources] = ()
    ) -> MilliResources:
        """Return by how much these pods would exceed the tenant's limit, if the amounts of `gone` were released."""
        quota = self.quotas.get(tenant)
        if quota is None or not quota.limit:
            return {}
        asked, used = sum_requests(pods), self.usage.get(tenant, {})
        missing = {
            name: used.get(name, 0) + asked[name] - sum(each.get(name, 0) for each in gone) - limit
            for name, limit in sorted(quota.limit.items())
            if asked.get(name, 0) > 0
        }
        return {name: amount for name, amount in missing.items() if amount > 0}

    def is_within_limit(self, tenant: str, pods: Iterable[Pod], gone: Sequence[MilliResources] = ()) -> bool:
        """Return whether the tenant, with these counted pods, is within its limit once `gone` is released."""
        quota = self.quotas.get(tenant)
        if quota is None or not quota.limit:
            return True
        used, asked = self.usage.get(tenant, {}), {name for pod in pods for name, _ in pod.shape.requests}
        return all(
            used.get(name, 0) - sum(each.get(name, 0) for each in gone) <= limit
            for name, limit in quota.limit.items()
            if name in asked
        )


def _weight_of(quota: Quota | None) -> float:
    return quota.weight if quota is not None and quota.weight > _LEAST_WEIGHT else _LEAST_WEIGHT


def sum_requests(pods: Iterable[Pod]) -> MilliResources:
    """Return the sum of the pods' requests."""
    total: MilliResources = {}
    for pod in pods:
        for name, amount in pod.shape.requests:
            total[name] = total.get(name, 0) + amount
    return total


def _add_requests(sums: dict[str, MilliResources], tenant: str, requests: _Requests, times: int) -> None:
    total = sums.get(tenant)
    if total is None:
        total = sums[tenant] = {}
    for name, amount in requests:
        left = total.get(name, 0) + amount * times
        if left:
            total[name] = left
        else:
            total.pop(name, None)
    if not total:
        del sums[tenant]
