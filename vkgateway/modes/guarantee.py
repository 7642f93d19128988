"""Guarantees as sums: which gangs of a pool run inside their tenant's guarantee, and what its limit leaves.

Other schedulers than the arbiter know no cells.
"""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.arbiter.snapshot import Gang, Pod, PoolKey, Quota, Snapshot
from vkgateway.model.requests import MilliResources

_Key = tuple[str, PoolKey]


class GuaranteeSums:
    """Sums of the requests of placed pods by tenant and pool, in thousandths."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._quotas: dict[_Key, Quota] = {(quota.tenant, quota.pool): quota for quota in snapshot.quotas}
        self._inside: dict[_Key, MilliResources] = {}
        for gang in snapshot.gangs:
            for pod in gang.pods:
                if pod.pool is not None:
                    self.count(gang.tenant, pod.pool, (pod,), borrowed=pod.borrowed)

    def count(self, tenant: str, pool: PoolKey, pods: Iterable[Pod], *, borrowed: bool) -> None:
        """Count placed pods; borrowing pods use no guarantee."""
        if not borrowed:
            total = self._inside.setdefault((tenant, pool), {})
            for pod in pods:
                for name, amount in pod.shape.requests:
                    total[name] = total.get(name, 0) + amount

    def fits_guarantee(self, gang: Gang, pods: Iterable[Pod]) -> bool:
        """Return whether pods fit the rest of the guarantee, in each resource that the guarantee names."""
        key = gang.tenant, gang.pools[0]
        quota = self._quotas.get(key)
        if quota is None or not any(quota.guarantee.values()):
            return False
        total = dict(self._inside.get(key, {}))
        named = False
        for pod in pods:
            for name, amount in pod.shape.requests:
                total[name] = total.get(name, 0) + amount
                named = named or name in quota.guarantee
        return named and all(total.get(name, 0) <= amount for name, amount in quota.guarantee.items())
