"""Guarantees as sums: what a pool offers, and which gangs run inside their tenant's guarantee.

Other schedulers than the arbiter know no cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from vkgateway.arbiter.decisions import GuaranteeLoss
from vkgateway.arbiter.guarantees.cell_sizes import MILLI_PER_UNIT
from vkgateway.arbiter.snapshot import GUARANTEED, Gang, Pod, Pool, PoolKey, Quota, Snapshot
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.model.requests import MilliResources

_Key = tuple[str, PoolKey]
_ALWAYS_OFFERED: Final = ("cpu", "memory")
"""Resources that nearly every pod requests, also while the pool has no node."""
_NEVER_OFFERED: Final = frozenset({"pods"})


def pool_capacity(pool: Pool, spec: PoolSpec) -> MilliResources:
    """Return the sum of the usable nodes' resources, of devices without those that other pods use."""
    total: MilliResources = dict.fromkeys(_ALWAYS_OFFERED, 0)
    skipped = _NEVER_OFFERED | set(spec.passed_through)
    for node in pool.nodes:
        for name, amount in node.allocatable.items():
            if name not in skipped:
                taken = node.used.get(name, 0) if name in pool.governed else 0
                total[name] = total.get(name, 0) + (max(0, amount - taken) if node.usable else 0)
    return dict(sorted(total.items()))


def nominal_guarantees(pool: Pool, spec: PoolSpec, quotas: Sequence[Quota]) -> dict[str, MilliResources]:
    """Return the guarantee of each tenant in every resource of a pool.

    A guarantee of devices includes the same share of all resources that it does not name, of what other guarantees
    leave. Without cpu and memory, a scheduler would count each gang as borrowing that requests them.
    """
    capacity = pool_capacity(pool, spec)
    left = {
        name: max(0, amount - sum(max(0, quota.guarantee.get(name, 0)) for quota in quotas))
        for name, amount in capacity.items()
    }
    return {
        quota.tenant: {
            name: max(0, quota.guarantee[name])
            if name in quota.guarantee
            else _device_share(pool, capacity, quota, left[name])
            for name in capacity
        }
        for quota in quotas
    }


def _device_share(pool: Pool, capacity: MilliResources, quota: Quota, amount: int) -> int:
    """Return the part of an amount that corresponds to the guaranteed part of the pool's devices."""
    unit = pool.unit_resource
    guaranteed, total = max(0, quota.guarantee.get(unit, 0)), capacity.get(unit, 0)
    return amount * min(guaranteed, total) // total if total else 0


def guarantee_losses(snapshot: Snapshot, specs: Mapping[PoolKey, PoolSpec]) -> Iterator[GuaranteeLoss]:
    """Yield the guarantees that the usable nodes cannot hold, as sums of each pool's first device.

    The guarantee that was granted last is reduced first. Queues of administrators have no known guarantees.
    """
    for pool in snapshot.pools:
        unit, spec = pool.unit_resource, specs[pool.key]
        if not unit or not spec.scheduling.manage_queues:
            continue
        left = pool_capacity(pool, spec).get(unit, 0)
        quotas = (quota for quota in snapshot.quotas if quota.pool == pool.key)
        for quota in sorted(quotas, key=lambda quota: (quota.granted, quota.tenant)):
            asked = max(0, quota.guarantee.get(unit, 0))
            held = min(asked, left)
            left -= held
            if held < asked:
                units, rest = -(-asked // MILLI_PER_UNIT), held // MILLI_PER_UNIT
                yield GuaranteeLoss(
                    pool=pool.key,
                    tenant=quota.tenant,
                    units=units - rest,
                    asked={1: units},
                    held={1: rest},
                    is_sum=True,
                )


def sum_requests(pods: Iterable[Pod]) -> MilliResources:
    """Return the sum of the requests of pods."""
    total: MilliResources = {}
    for pod in pods:
        for name, amount in pod.shape.requests:
            total[name] = total.get(name, 0) + amount
    return total


class GuaranteeSums:
    """Sums of the requests of placed pods by tenant and pool, in thousandths."""

    def __init__(self, snapshot: Snapshot, specs: Mapping[PoolKey, PoolSpec]) -> None:
        self._quotas: dict[_Key, Quota] = {
            (quota.tenant, quota.pool): quota for quota in snapshot.quotas if specs[quota.pool].scheduling.manage_queues
        }
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
        """Return whether pods fit the rest of the guarantee, in each resource that the guarantee names.

        Low work uses no guarantee, and queues of administrators have none.
        """
        key = gang.tenant, gang.pools[0]
        quota = self._quotas.get(key)
        if gang.band is not GUARANTEED or quota is None or not any(quota.guarantee.values()):
            return False
        total = dict(self._inside.get(key, {}))
        named = False
        for pod in pods:
            for name, amount in pod.shape.requests:
                total[name] = total.get(name, 0) + amount
                named = named or name in quota.guarantee
        return named and all(total.get(name, 0) <= amount for name, amount in quota.guarantee.items())
