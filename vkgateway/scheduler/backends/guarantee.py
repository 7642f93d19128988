"""Guarantees and limits as sums: which gangs run inside their tenant's guarantee, and which would exceed its limit.

Other schedulers than the arbiter know no cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from vkgateway.api.requests import MilliResources, render_milli
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.amounts import pool_capacity
from vkgateway.scheduler.backends.attempt import Wait
from vkgateway.scheduler.core.decisions import GuaranteeLoss, PendingReason
from vkgateway.scheduler.core.guarantees.cell_sizes import MILLI_PER_UNIT
from vkgateway.scheduler.core.reasons.budget_texts import budget_text
from vkgateway.scheduler.core.snapshot import GUARANTEED, Gang, Pod, Pool, PoolKey, Quota, Snapshot

_Key = tuple[str, PoolKey]


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
        if not unit or not spec.scheduling.has_guarantees:
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


class UsageSums:
    """Sums of the requests of placed pods by tenant and pool, in thousandths."""

    def __init__(self, snapshot: Snapshot, specs: Mapping[PoolKey, PoolSpec]) -> None:
        self._quotas: dict[_Key, Quota] = {
            (quota.tenant, quota.pool): quota
            for quota in snapshot.quotas
            if specs[quota.pool].scheduling.has_guarantees
        }
        self._limits: dict[_Key, MilliResources] = {(each.tenant, each.pool): each.limit for each in snapshot.quotas}
        self._used: dict[_Key, MilliResources] = {}
        self._inside: dict[_Key, MilliResources] = {}
        """Of pods inside guarantees."""
        for gang in snapshot.gangs:
            for pod in gang.pods:
                if pod.pool is not None:
                    self.count(gang.tenant, pod.pool, (pod,), borrowed=pod.borrowed)

    def count(self, tenant: str, pool: PoolKey, pods: Iterable[Pod], *, borrowed: bool) -> None:
        """Count placed pods; borrowing pods use no guarantee."""
        pods = tuple(pods)
        _add_requests(self._used.setdefault((tenant, pool), {}), pods)
        if not borrowed:
            _add_requests(self._inside.setdefault((tenant, pool), {}), pods)

    def fits_guarantee(self, gang: Gang, pods: Iterable[Pod]) -> bool:
        """Return whether pods fit the rest of the guarantee, in each resource that the guarantee names.

        Low work uses no guarantee, and queues of administrators have none.
        """
        key = gang.tenant, gang.pools[0]
        quota = self._quotas.get(key)
        if gang.band is not GUARANTEED or quota is None or not any(quota.guarantee.values()):
            return False
        total = dict(self._inside.get(key, {}))
        requested = _add_requests(total, pods)
        named = not requested.isdisjoint(quota.guarantee)
        return named and all(total.get(name, 0) <= amount for name, amount in quota.guarantee.items())

    def budget_wait(self, gang: Gang, pods: Iterable[Pod], now: float, *, by_queue: bool = False) -> Wait | None:
        """Return why pods that do not fit the guarantee may not start; None: no used-up budget stops them.

        `by_queue`: to the queue of a scheduler, all pods of the tenant use its guarantee first.
        """
        pods, key = tuple(pods), (gang.tenant, gang.pools[0])
        quota = self._quotas.get(key)
        if quota is None or quota.may_borrow(pods):
            return None
        if by_queue:
            guarantee = {name: quota.guarantee.get(name, 0) for name in quota.stopped}
            fits = not _exceeded(guarantee, self._used.get(key, {}), pods)
        else:
            fits = self.fits_guarantee(gang, pods)
        if fits:
            return None
        band = GUARANTEED if by_queue else gang.band
        text = budget_text(quota, pods, now, band=band)
        if band is GUARANTEED:
            inside = (self._used if by_queue else self._inside).get(key, {})
            in_use = (
                f"{render_milli({name: inside.get(name, 0)})} of {quota.guarantee.get(name, 0) / MILLI_PER_UNIT:.10g}"
                for name in quota.stopped
            )
            text += f"; in use of the guarantee: {', '.join(in_use)}"
        return Wait(PendingReason.BUDGET, text)

    def over_limit(self, gang: Gang, pods: Iterable[Pod]) -> str:
        """Return the limits of a gang's tenant that pods would exceed, as `nvidia.com/gpu 8`; empty: none."""
        return self.over(self._limit_of(gang), gang, pods)

    def above_limit(self, gang: Gang, pods: Iterable[Pod]) -> str:
        """Return the limits of a gang's tenant that pods alone would exceed; empty: none."""
        return _exceeded(self._limit_of(gang), {}, pods)

    def over(self, limit: MilliResources, gang: Gang, pods: Iterable[Pod]) -> str:
        """Return those of other limits that pods of a gang's tenant would exceed; empty: none."""
        return _exceeded(limit, self._used.get((gang.tenant, gang.pools[0]), {}), pods)

    def _limit_of(self, gang: Gang) -> MilliResources:
        return self._limits.get((gang.tenant, gang.pools[0]), {})


def _exceeded(limit: MilliResources, used: MilliResources, pods: Iterable[Pod]) -> str:
    total = dict(used)
    requested = _add_requests(total, pods)
    return render_milli({name: most for name, most in limit.items() if name in requested and total[name] > most})


def _add_requests(total: MilliResources, pods: Iterable[Pod]) -> set[str]:
    """Add the requests of pods to a sum; return the requested resources."""
    requested: set[str] = set()
    for pod in pods:
        for name, amount in pod.shape.requests:
            total[name] = total.get(name, 0) + amount
            requested.add(name)
    return requested
