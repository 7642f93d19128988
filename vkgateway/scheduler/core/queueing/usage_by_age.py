"""Usage of a pool by borrowing gangs, by the time of their creation."""

from __future__ import annotations

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import BoolArray, FloatArray, IntArray
from vkgateway.scheduler.core.capacity.terminating_pods import TerminatingPods
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.snapshot import LOW, Gang, Pool
from vkgateway.scheduler.governed import HOST_RESOURCES


class UsageByAge:
    """Usage of reclaimable and of terminating pods at one moment."""

    def __init__(self, candidates: PreemptionCandidates, pool: Pool, terminating_pods: TerminatingPods) -> None:
        self._terminating_pods = terminating_pods
        table = candidates.rows.as_table()
        rows = np.flatnonzero(table.alive)
        rows = rows[np.lexsort((table.created[rows], table.tenant[rows]))]
        self._created: FloatArray = table.created[rows]
        self._low = table.low[rows]
        self._priority = np.array([*table.priorities, 0], dtype=np.int64)[table.priority[rows]]
        self._usage: dict[str, IntArray] = {}
        # CPU and memory count only for pods without devices, as in `Pool.share_requests`.
        bare = table.units == 0 if pool.unit_resource else np.ones(len(table.alive), dtype=bool)
        for resource in (*pool.governed, *HOST_RESOURCES):
            usage = np.zeros(len(table.alive), dtype=np.int64)
            column = table.resources.get(resource, len(table.row_freed))
            if column < len(table.row_freed):
                np.add.at(usage, table.row_candidate, table.row_freed[column])
            if resource in HOST_RESOURCES:
                usage[~bare] = 0
            self._usage[resource] = usage[rows]
        self._sums_after: dict[tuple[str, bool, int], tuple[FloatArray, dict[str, IntArray]]] = {}
        bounds = table.tenant[rows].searchsorted(np.arange(len(table.tenants) + 1)).tolist()
        self._rows_by_tenant = {tenant: slice(*bounds[at : at + 2]) for tenant, at in table.tenants.items()}

    def discounted_usage_of(self, gang: Gang) -> dict[str, IntArray]:
        """Return `discounted_usage` for one gang."""
        created, low, priority = np.array([gang.created]), np.array([gang.band is LOW]), np.array([gang.priority])
        return self.discounted_usage(gang.tenant, created, low, priority)

    def discounted_usage(
        self, tenant: str, created: FloatArray, low: BoolArray, priority: FloatArray
    ) -> dict[str, IntArray]:
        """Return by resource, for each of a tenant's aged gangs, the usage that does not count against it.

        That is the usage of terminating pods, and of borrowing pods of later gangs without a higher rank.
        """
        leaving = self._terminating_pods.usage_of(tenant)
        found = self._usage_after(tenant, created, low, priority)
        return {resource: usage + leaving.get(resource, 0) for resource, usage in found.items()}

    def _usage_after(
        self, tenant: str, created: FloatArray, low: BoolArray, priority: FloatArray
    ) -> dict[str, IntArray]:
        """Return by resource, for each of a tenant's pending gangs, the usage of later gangs without a higher rank."""
        found = {resource: np.zeros(len(created), dtype=np.int64) for resource in self._usage}
        for is_low, least in set(zip(low.tolist(), priority.tolist(), strict=True)):
            times, sums = self._sum_after(tenant, is_low=is_low, least=least)
            asking = (low == is_low) & (priority == least)
            at = times.searchsorted(created[asking], side="right")
            for resource, usage in found.items():
                usage[asking] = sums[resource][at]
        return found

    def _sum_after(self, tenant: str, *, is_low: bool, least: int) -> tuple[FloatArray, dict[str, IntArray]]:
        """Return the creation times of a tenant's gangs without a higher rank than this, and what those from each of
        them on use, by resource.
        """
        found = self._sums_after.get((tenant, is_low, least))
        if found is None:
            mine = self._rows_by_tenant.get(tenant, slice(0, 0))
            no_better = (self._low[mine] > is_low) | ((self._low[mine] == is_low) & (self._priority[mine] <= least))
            sums = {
                resource: np.concatenate([np.cumsum(usage[mine][no_better][::-1])[::-1], [0]])
                for resource, usage in self._usage.items()
            }
            found = self._sums_after[tenant, is_low, least] = self._created[mine][no_better], sums
        return found
