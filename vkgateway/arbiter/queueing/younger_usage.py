"""What tenants' borrowing gangs hold of a pool by when they came: how much of it came after a gang that waits."""

from __future__ import annotations

import numpy as np

from vkgateway.arbiter.capacity.node_fit import BoolArray, FloatArray, IntArray
from vkgateway.arbiter.preemption.candidates import PreemptionCandidates
from vkgateway.arbiter.snapshot import Pool
from vkgateway.translate.governed import HOST_RESOURCES


class UsageByAge:
    """What runs and borrows at one moment, and can be called in."""

    def __init__(self, evictable: PreemptionCandidates, pool: Pool) -> None:
        table = evictable.as_table()
        lots = np.flatnonzero(table.alive)
        lots = lots[np.lexsort((table.created[lots], table.tenant[lots]))]
        self._created: FloatArray = table.created[lots]
        self._low = table.low[lots]
        self._priority = np.array([*evictable.priority_values(), 0], dtype=np.int64)[table.priority[lots]]
        columns = evictable.resource_columns()
        self._usage: dict[str, IntArray] = {}
        # Devices bring cpu and memory along: those count only for pods without devices, as in
        # `ConnectionPool.share_requests`.
        bare = table.units == 0 if pool.unit_resource else np.ones(len(table.alive), dtype=bool)
        for resource in (*pool.governed, *HOST_RESOURCES):
            held = np.zeros(len(table.alive), dtype=np.int64)
            if resource in columns and columns[resource] < len(table.row_freed):
                np.add.at(held, table.row_candidate, table.row_freed[columns[resource]])
            if resource in HOST_RESOURCES:
                held[~bare] = 0
            self._usage[resource] = held[lots]
        tenants = [*evictable.tenant_names()]
        bounds = table.tenant[lots].searchsorted(np.arange(len(tenants) + 1)).tolist()
        self._rows_by_tenant = {tenant: slice(*bounds[at : at + 2]) for at, tenant in enumerate(tenants)}

    def usage_after(
        self, tenant: str, created: FloatArray, low: BoolArray, priority: FloatArray
    ) -> dict[str, IntArray]:
        """By resource, for each of a tenant's gangs that wait, what those hold that came after it and are no better.

        Better is who is of the guaranteed band, or in the same band of a higher priority.
        """
        mine = self._rows_by_tenant.get(tenant, slice(0, 0))
        found = {resource: np.zeros(len(created), dtype=np.int64) for resource in self._usage}
        for is_low, least in set(zip(low.tolist(), priority.tolist(), strict=True)):
            asking = (low == is_low) & (priority == least)
            no_better = (self._low[mine] > is_low) | ((self._low[mine] == is_low) & (self._priority[mine] <= least))
            at = self._created[mine][no_better].searchsorted(created[asking], side="right")
            for resource, held in self._usage.items():
                sums = np.concatenate([[0], np.cumsum(held[mine][no_better])])
                found[resource][asking] = sums[-1] - sums[at]
        return found
