"""What each tenant uses of a pool: its share beyond its guarantee, and what its limit leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from vkgateway.arbiter.facts import Pod, Pool, Quota, Shape
from vkgateway.arbiter.fitting import FloatArray, IntArray
from vkgateway.model.requests import Milli
from vkgateway.translate.governed import HOST_RESOURCES

_LEAST_WEIGHT = 1e-6
_SHAPES = 4096
_NOTHING: Milli = {}

_Requests = tuple[tuple[str, int], ...]


class Accounts:
    """Sums by tenant, in thousandths."""

    def __init__(self, pool: Pool, quotas: Iterable[Quota]) -> None:
        self.pool = pool
        self.quotas: dict[str, Quota] = {quota.tenant: quota for quota in quotas if quota.pool == pool.key}
        self.used: dict[str, Milli] = {}
        """What each tenant's pods hold, and what is planned for them."""
        self.shared: dict[str, Milli] = {}
        """The part of `used` that counts for a tenant's share: see `Pool.shared_by`."""
        self._shared_of: dict[_Requests, _Requests] = {}
        """By the requests of a shape the part of them that counts for shares."""
        self._shares: dict[str, float] = {}

    def count(self, tenant: str, pod: Pod, times: int = 1) -> None:
        """Count what a tenant's pod holds."""
        self.count_shape(tenant, pod.shape, times)

    def count_shape(self, tenant: str, shape: Shape, times: int) -> None:
        """Count what so many pods of a shape hold."""
        requests = shape.requests
        shared = self._shared_of.get(requests)
        if shared is None:
            if len(self._shared_of) >= _SHAPES:
                self._shared_of.clear()
            shared = self._shared_of[requests] = tuple(self.pool.shared_by(shape))
        _add(self.used, tenant, requests, times)
        _add(self.shared, tenant, shared, times)
        self._shares.pop(tenant, None)

    @cached_property
    def total(self) -> Milli:
        """What the pool's usable nodes have of each device, of cpu and of memory."""
        return {
            name: sum(node.allocatable.get(name, 0) for node in self.pool.nodes if node.usable)
            for name in (*self.pool.governed, *HOST_RESOURCES)
        }

    def share(self, tenant: str) -> float:
        """The tenant's dominant share of the pool beyond its guarantee, divided by its weight."""
        found = self._shares.get(tenant)
        if found is None:
            found = self._shares[tenant] = self._share(tenant)
        return found

    def _share(self, tenant: str) -> float:
        largest, quota = 0.0, self.quotas.get(tenant)
        guarantee = quota.guarantee if quota is not None else _NOTHING
        shared = self.shared.get(tenant, _NOTHING)
        for name, total in self.total.items():
            # As `beyond_guarantee` tells: shares are asked for after each start.
            over = shared.get(name, 0) - guarantee.get(name, 0)
            if over > 0:
                largest = max(largest, over / max(1, total))
        return largest / self._weight(tenant)

    def shares_without(self, tenant: str, without: Mapping[str, IntArray], count: int) -> FloatArray:
        """So many shares of the tenant: what each would be if it did not hold so much, by resource."""
        largest: FloatArray = np.zeros(count)
        for name, total in self.total.items():
            over = self.beyond_guarantee(tenant, name) - without.get(name, 0)
            np.maximum(largest, over / max(1, total), out=largest)
        return largest / self._weight(tenant)

    def beyond_guarantee(self, tenant: str, resource: str) -> int:
        """Return how much more of a resource counts for its share than it is guaranteed, in thousandths.

        The number is negative where it uses less.
        """
        quota = self.quotas.get(tenant)
        guarantee = quota.guarantee.get(resource, 0) if quota is not None else 0
        return self.shared.get(tenant, {}).get(resource, 0) - guarantee

    def _weight(self, tenant: str) -> float:
        quota = self.quotas.get(tenant)
        return quota.weight if quota is not None and quota.weight > _LEAST_WEIGHT else _LEAST_WEIGHT

    def over(self) -> dict[str, float]:
        """The shares of all tenants that have something here."""
        return {tenant: self.share(tenant) for tenant in sorted(self.used)}

    def beyond_limit(self, tenant: str, pods: Iterable[Pod]) -> list[str]:
        """Resources of which the tenant would use more than its limit with these pods."""
        quota = self.quotas.get(tenant)
        return list(self.missing_of_limit(tenant, pods)) if quota is not None and quota.limit else []

    def missing_of_limit(self, tenant: str, pods: Iterable[Pod], gone: Sequence[Milli] = ()) -> Milli:
        """By how much the tenant would be beyond its limit with these pods, if what is named had gone."""
        quota = self.quotas.get(tenant)
        if quota is None or not quota.limit:
            return {}
        asked, used = total_of(pods), self.used.get(tenant, {})
        missing = {
            name: used.get(name, 0) + asked[name] - sum(each.get(name, 0) for each in gone) - limit
            for name, limit in sorted(quota.limit.items())
            if asked.get(name, 0) > 0
        }
        return {name: amount for name, amount in missing.items() if amount > 0}

    def within_limit(self, tenant: str, pods: Iterable[Pod], gone: Sequence[Milli] = ()) -> bool:
        """Whether the tenant, with these pods that are counted already, keeps its limit if what is named had gone."""
        quota = self.quotas.get(tenant)
        if quota is None or not quota.limit:
            return True
        used, asked = self.used.get(tenant, {}), {name for pod in pods for name, _ in pod.shape.requests}
        return all(
            used.get(name, 0) - sum(each.get(name, 0) for each in gone) <= limit
            for name, limit in quota.limit.items()
            if name in asked
        )


def total_of(pods: Iterable[Pod]) -> Milli:
    """What the pods ask for together."""
    total: Milli = {}
    for pod in pods:
        for name, amount in pod.shape.requests:
            total[name] = total.get(name, 0) + amount
    return total


def _add(sums: dict[str, Milli], tenant: str, requests: _Requests, times: int) -> None:
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
