"""What each tenant uses of a pool: its share beyond its guarantee, and what its limit leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from vkgateway.arbiter.capacity.node_fit import FloatArray, IntArray
from vkgateway.arbiter.snapshot import Pod, Pool, Quota, Shape
from vkgateway.model.requests import MilliResources
from vkgateway.translate.governed import HOST_RESOURCES

_LEAST_WEIGHT = 1e-6
_MAX_SHAPES = 4096
_NOTHING: MilliResources = {}

_Requests = tuple[tuple[str, int], ...]


class UsageByTenant:
    """Sums by tenant, in thousandths."""

    def __init__(self, pool: Pool, quotas: Iterable[Quota]) -> None:
        self.pool = pool
        self.quotas: dict[str, Quota] = {quota.tenant: quota for quota in quotas if quota.pool == pool.key}
        self.usage: dict[str, MilliResources] = {}
        """What each tenant's pods hold, and what is planned for them."""
        self.share_usage: dict[str, MilliResources] = {}
        """The part of `usage` that counts for a tenant's share: see `ConnectionPool.share_requests`."""
        self._share_requests: dict[_Requests, _Requests] = {}
        """By the requests of a shape the part of them that counts for shares."""
        self._share_cache: dict[str, float] = {}

    def add_usage(self, tenant: str, pod: Pod, times: int = 1) -> None:
        """Count what a tenant's pod holds."""
        self.add_shape_usage(tenant, pod.shape, times)

    def add_shape_usage(self, tenant: str, shape: Shape, times: int) -> None:
        """Count what so many pods of a shape hold."""
        requests = shape.requests
        shared = self._share_requests.get(requests)
        if shared is None:
            if len(self._share_requests) >= _MAX_SHAPES:
                self._share_requests.clear()
            shared = self._share_requests[requests] = tuple(self.pool.share_requests(shape))
        _add_requests(self.usage, tenant, requests, times)
        _add_requests(self.share_usage, tenant, shared, times)
        self._share_cache.pop(tenant, None)

    @cached_property
    def pool_capacity(self) -> MilliResources:
        """What the pool's usable nodes have of each device, of cpu and of memory."""
        return {
            name: sum(node.allocatable.get(name, 0) for node in self.pool.nodes if node.usable)
            for name in (*self.pool.governed, *HOST_RESOURCES)
        }

    def dominant_share(self, tenant: str) -> float:
        """The tenant's dominant share of the pool beyond its guarantee, divided by its weight."""
        found = self._share_cache.get(tenant)
        if found is None:
            found = self._share_cache[tenant] = self._compute_share(tenant)
        return found

    def _compute_share(self, tenant: str) -> float:
        largest, quota = 0.0, self.quotas.get(tenant)
        guarantee = quota.guarantee if quota is not None else _NOTHING
        shared = self.share_usage.get(tenant, _NOTHING)
        for name, total in self.pool_capacity.items():
            # As `beyond_guarantee` tells: shares are asked for after each start.
            over = shared.get(name, 0) - guarantee.get(name, 0)
            if over > 0:
                largest = max(largest, over / max(1, total))
        return largest / self._tenant_weight(tenant)

    def shares_without(self, tenant: str, without: Mapping[str, IntArray], count: int) -> FloatArray:
        """So many shares of the tenant: what each would be if it did not hold so much, by resource."""
        largest: FloatArray = np.zeros(count)
        for name, total in self.pool_capacity.items():
            over = self.beyond_guarantee(tenant, name) - without.get(name, 0)
            np.maximum(largest, over / max(1, total), out=largest)
        return largest / self._tenant_weight(tenant)

    def beyond_guarantee(self, tenant: str, resource: str) -> int:
        """Return how much more of a resource counts for its share than it is guaranteed, in thousandths.

        The number is negative where it uses less.
        """
        quota = self.quotas.get(tenant)
        guarantee = quota.guarantee.get(resource, 0) if quota is not None else 0
        return self.share_usage.get(tenant, {}).get(resource, 0) - guarantee

    def _tenant_weight(self, tenant: str) -> float:
        quota = self.quotas.get(tenant)
        return quota.weight if quota is not None and quota.weight > _LEAST_WEIGHT else _LEAST_WEIGHT

    def shares_by_tenant(self) -> dict[str, float]:
        """The shares of all tenants that have something here."""
        return {tenant: self.dominant_share(tenant) for tenant in sorted(self.usage)}

    def exceeded_limits(self, tenant: str, pods: Iterable[Pod]) -> list[str]:
        """Resources of which the tenant would use more than its limit with these pods."""
        quota = self.quotas.get(tenant)
        return list(self.excess_over_limit(tenant, pods)) if quota is not None and quota.limit else []

    def excess_over_limit(
        self, tenant: str, pods: Iterable[Pod], gone: Sequence[MilliResources] = ()
    ) -> MilliResources:
        """By how much the tenant would be beyond its limit with these pods, if what is named had gone."""
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
        """Whether the tenant, with these pods that are counted already, keeps its limit if what is named had gone."""
        quota = self.quotas.get(tenant)
        if quota is None or not quota.limit:
            return True
        used, asked = self.usage.get(tenant, {}), {name for pod in pods for name, _ in pod.shape.requests}
        return all(
            used.get(name, 0) - sum(each.get(name, 0) for each in gone) <= limit
            for name, limit in quota.limit.items()
            if name in asked
        )


def sum_requests(pods: Iterable[Pod]) -> MilliResources:
    """What the pods ask for together."""
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
