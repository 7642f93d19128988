"""Test whether a gang fits the unused cells of its tenant, independent of the scheduler that placed the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vkgateway.arbiter.cuts import WHOLE, Counts, pool_levels, quota_cells, smallest_cover, total, units
from vkgateway.arbiter.facts import GUARANTEED, WAITING, Gang, Pool, PoolKey
from vkgateway.simulate.scenario import Scenario


class Entitlement:
    """The cells of all tenants in all pools."""

    def __init__(self, scenario: Scenario) -> None:
        self._pools: dict[PoolKey, Pool] = {pool.key: pool for pool in scenario.pools}
        self._cells: dict[tuple[str, PoolKey], Counts] = {}
        for quota in scenario.quotas:
            pool = self._pools.get(quota.pool)
            if pool is not None and pool.unit:
                self._cells[quota.tenant, quota.pool] = quota_cells(quota, pool.unit, pool_levels(pool))

    def includes(self, gang: Gang, others: Iterable[Gang], pending: Iterable[Gang]) -> bool:
        """Return whether a pending gang fits.

        `others` are the tenant's gangs that may run, `pending` those of them that are older and pending: the ones that
        fit come first.
        """
        key = gang.pools[0]
        cells, pool = self._cells.get((gang.tenant, key)), self._pools[key]
        if gang.band is not GUARANTEED or not cells:
            return False
        used: dict[str, int] = {}
        for pod in (pod for other in others if other.band is GUARANTEED for pod in other.pods):
            if pod.state is not WAITING and pod.pool == key and not pod.borrowed:
                used[pod.node] = used.get(pod.node, 0) + pod.shape.amount(pool.unit)
        left = _Left(cells, pool_levels(pool), used)
        for other in (other for other in pending if other.band is GUARANTEED and other.pools[0] == key):
            left.take(_amounts(other, pool))
        return left.take(_amounts(gang, pool))


def _amounts(gang: Gang, pool: Pool) -> list[int]:
    return sorted((pod.shape.amount(pool.unit) for pod in gang.pods[: gang.minimum]), reverse=True)


class _Left:
    """Cells of a tenant that are not in use, and what is left of those that are."""

    def __init__(self, cells: Counts, levels: Sequence[int], used: Mapping[str, int]) -> None:
        self._levels = levels
        self._unused = list(cells)
        self._spares: list[int] = []
        for amount in sorted(used.values(), reverse=True):
            self._bind(amount)

    def take(self, amounts: Iterable[int]) -> bool:
        """Take what pods request, the largest first; False: they do not all fit, and nothing is taken."""
        unused, spares = list(self._unused), list(self._spares)
        if all(self._fill(amount) or self._bind(amount) for amount in amounts):
            return True
        self._unused, self._spares = unused, spares
        return False

    def _fill(self, amount: int) -> bool:
        fitting = [spare for spare in self._spares if spare >= amount]
        if not fitting:
            return False
        self._spares.remove(min(fitting))
        self._spares.append(min(fitting) - amount)
        return True

    def _bind(self, amount: int) -> bool:
        cells = smallest_cover(self._unused, self._levels, units(amount))
        if cells is None or total(cells, self._levels) > self._levels[0]:
            return False
        self._unused = [have - taken for have, taken in zip(self._unused, cells, strict=True)]
        self._spares.append(total(cells, self._levels) * WHOLE - amount)
        return True
