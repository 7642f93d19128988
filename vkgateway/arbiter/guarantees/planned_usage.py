"""Usage inside cells that plans of earlier cycles nominate."""

from __future__ import annotations

from collections.abc import Sequence

from vkgateway.arbiter.guarantees.cells import PlacedAmount, PoolCells
from vkgateway.arbiter.snapshot import WAITING, Gang, Pool, Quota


class PlannedUsage:
    """Nominated usage by gang. Cells count it as running, so that no other gang takes them."""

    def __init__(self) -> None:
        self._amounts: dict[str, list[PlacedAmount]] = {}
        self.counted_gangs: set[str] = set()
        """Gangs whose plan the cells of the last `derive_cells` contain."""

    def amounts_of(self, gang: str) -> Sequence[PlacedAmount]:
        """Return what a gang's plan nominates."""
        return self._amounts[gang]

    def set_plan(self, gang: Gang, pool: Pool) -> bool:
        """Record what a gang's plan nominates in the pool, or that it no longer does; return whether this changed."""
        plan = gang.plan
        if plan is None and gang.id not in self._amounts:
            return False
        amounts = []
        if plan is not None and not plan.borrowed and plan.pool == pool.key:
            waiting = (pod for pod in gang.pods if pod.state is WAITING and pod.uid in plan.nodes)
            unit = pool.unit_resource
            amounts = [(gang.tenant, plan.nodes[pod.uid], pod.shape.amount_of(unit)) for pod in waiting]
        if amounts == self._amounts.get(gang.id, []):
            return False
        if not amounts:
            return self.remove_plan(gang.id)
        self._amounts[gang.id] = amounts
        return True

    def remove_plan(self, gang: str) -> bool:
        """Remove the plan of a gang; return whether it had one."""
        return self._amounts.pop(gang, None) is not None

    def derive_cells(self, pool: Pool, quotas: Sequence[Quota], placed: Sequence[PlacedAmount]) -> PoolCells:
        """Return the cells with plans counted as running, if that fits.

        Plans on nodes that accept no pods are dropped and hold no cells.
        """
        usable = {node.name for node in pool.nodes if node.usable} if self._amounts else set()
        self.counted_gangs = {
            gang for gang, amounts in self._amounts.items() if all(node in usable for _, node, _ in amounts)
        }
        if self.counted_gangs:
            planned = [each for gang in sorted(self.counted_gangs) for each in self._amounts[gang] if each[2]]
            cells = PoolCells(pool, quotas, [*placed, *planned])
            tenants = {tenant for tenant, _, _ in (*placed, *planned)}
            if not cells.guarantee_losses and not any(cells.excess_by_node(tenant) for tenant in tenants):
                return cells
            self.counted_gangs = set()
        return PoolCells(pool, quotas, placed)
