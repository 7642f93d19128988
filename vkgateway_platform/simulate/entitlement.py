"""Test whether a gang fits the unused cells of its tenant, independent of the scheduler that placed the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vkgateway.scheduler.core.guarantees.cell_sizes import (
    MILLI_PER_UNIT,
    CellCounts,
    pool_levels,
    quota_cells,
    round_up_units,
    smallest_cover,
    total_units,
)
from vkgateway.scheduler.core.snapshot import GUARANTEED, WAITING, Gang, Pool, PoolKey
from vkgateway_platform.simulate.scenario import Scenario


class Entitlement:
    """The cells of all tenants in all pools."""

    def __init__(self, scenario: Scenario) -> None:
        self._pools: dict[PoolKey, Pool] = {pool.key: pool for pool in scenario.pools}
        self._cells: dict[tuple[str, PoolKey], CellCounts] = {}
        for quota in scenario.quotas:
            pool = self._pools.get(quota.pool)
            if pool is not None and pool.unit_resource:
                self._cells[quota.tenant, quota.pool] = quota_cells(quota, pool.unit_resource, pool_levels(pool))

    def fits_guarantee(self, gang: Gang, others: Iterable[Gang], pending: Iterable[Gang]) -> bool:
        """Return whether a pending gang fits.

        `others` are the tenant's gangs that may run, `pending` those of them that are older, and pending or borrowing:
        the ones that fit come first.
        """
        key = gang.pools[0]
        cells, pool = self._cells.get((gang.tenant, key)), self._pools[key]
        if gang.band is not GUARANTEED or not cells:
            return False
        used: dict[str, int] = {}
        for pod in (pod for other in others if other.band is GUARANTEED for pod in other.pods):
            if pod.state is not WAITING and pod.pool == key and not pod.borrowed:
                used[pod.node] = used.get(pod.node, 0) + pod.shape.amount_of(pool.unit_resource)
        left = _FreeCells(cells, pool_levels(pool), used)
        for other in (other for other in pending if other.band is GUARANTEED and other.pools[0] == key):
            left.allocate_pods(_pod_amounts(other, pool))
        return left.allocate_pods(_pod_amounts(gang, pool))


def _pod_amounts(gang: Gang, pool: Pool) -> list[int]:
    return sorted((pod.shape.amount_of(pool.unit_resource) for pod in gang.pods[: gang.minimum]), reverse=True)


class _FreeCells:
    """Unused cells of a tenant, and the remainders of partly used ones."""

    def __init__(self, cells: CellCounts, levels: Sequence[int], used: Mapping[str, int]) -> None:
        self._levels = levels
        self._unused = list(cells)
        self._left = total_units(cells, levels) * MILLI_PER_UNIT - sum(used.values())
        """Thousandths in all cells that are not used, also by pods on more nodes than there are cells."""
        self._free_in_bound: list[int] = []
        for amount in sorted(used.values(), reverse=True):
            self._bind_cell(amount)

    def allocate_pods(self, amounts: Iterable[int]) -> bool:
        """Allocate the requests of pods, the largest first.

        Return False, and allocate nothing, if they do not all fit.
        """
        amounts = list(amounts)
        unused, spares = list(self._unused), list(self._free_in_bound)
        if sum(amounts) <= self._left and all(
            self._fill_bound(amount) or self._bind_cell(amount) for amount in amounts
        ):
            self._left -= sum(amounts)
            return True
        self._unused, self._free_in_bound = unused, spares
        return False

    def _fill_bound(self, amount: int) -> bool:
        fitting = [spare for spare in self._free_in_bound if spare >= amount]
        if not fitting:
            return False
        self._free_in_bound.remove(min(fitting))
        self._free_in_bound.append(min(fitting) - amount)
        return True

    def _bind_cell(self, amount: int) -> bool:
        cells = smallest_cover(self._unused, self._levels, round_up_units(amount))
        if cells is None or total_units(cells, self._levels) > self._levels[0]:
            return False
        self._unused = [have - taken for have, taken in zip(self._unused, cells, strict=True)]
        self._free_in_bound.append(total_units(cells, self._levels) * MILLI_PER_UNIT - amount)
        return True
