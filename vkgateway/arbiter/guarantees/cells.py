"""Guarantees as cells: the cells that tenants can still bind, where, and the amounts that they may use."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from vkgateway.arbiter.decisions import GuaranteeLoss
from vkgateway.arbiter.guarantees.bindability import CellSlack
from vkgateway.arbiter.guarantees.cell_bindings import CellBindings, TenantCells
from vkgateway.arbiter.guarantees.cell_sizes import (
    MILLI_PER_UNIT,
    counts_by_size,
    list_sizes,
    pool_levels,
    quota_cells,
    total_units,
    units_for_cells,
)
from vkgateway.arbiter.guarantees.derived_bindings import bind_excess, derive_bindings
from vkgateway.arbiter.guarantees.reduction import reduce_guarantees
from vkgateway.arbiter.guarantees.usable_amounts import usable_amounts
from vkgateway.arbiter.snapshot import Pool, Quota
from vkgateway.arbiter.trial import Trial

PlacedAmount = tuple[str, str, int]
"""Placed guaranteed pod: tenant, node, and requested thousandths of the pool's unit."""


class PoolCells:
    """Cells of one pool, derived from its nodes, its quotas and the placed guaranteed pods.

    Invariant: after each change, all unused cells can be bound at the same time. A change that would break this is
    refused. Equal input gives equal cells. Within a cycle, `allocate_cells` and `release_cells` update them; the next
    cycle derives them again. No other module stores which cells hold which pods.

    Cell sizes are whole units (GPUs); amounts that pods use are thousandths. Unknown nodes and tenants have no cells.
    """

    def __init__(self, pool: Pool, quotas: Iterable[Quota], placed: Iterable[PlacedAmount] = ()) -> None:
        unit, placed = pool.unit_resource, list(placed)
        self.levels = pool_levels(pool)
        """Cell sizes, the largest first."""
        free_units = [units_for_cells(node, unit) for node in pool.nodes]
        cell_slack = CellSlack(self.levels, free_units, [node.usable for node in pool.nodes])
        self.bindings = bindings = CellBindings(self.levels, cell_slack, (node.name for node in pool.nodes))
        self._usable_cache: dict[str, tuple[tuple[int, int], NDArray[np.int64]]] = {}
        """Last result of `usable_amounts` by tenant, with the state version that it belongs to."""
        self._units_left_cache: dict[str, tuple[int, int]] = {}
        """Last result of `units_left` by tenant, with the version of the tenant's cells that it belongs to."""
        pool_quotas = sorted(
            (quota for quota in quotas if quota.pool == pool.key), key=lambda quota: (quota.granted, quota.tenant)
        )
        for quota in pool_quotas:
            bindings.add_cells(quota.tenant, quota_cells(quota, unit, self.levels))
        for tenant in sorted({tenant for tenant, _, _ in placed}):
            bindings.cells_of(tenant)
        for tenant, node, amount in placed:
            used, number = bindings.cells_of(tenant).used_by_node, bindings.node_number(node)
            used[number] = used.get(number, 0) + amount
        derive_bindings(bindings, list(bindings.cells_by_tenant))
        bind_excess(bindings)
        self.guarantee_losses: tuple[GuaranteeLoss, ...] = ()
        """Guarantees that were reduced, by tenant; empty while all cells fit."""
        if not cell_slack.is_feasible():
            self.guarantee_losses = reduce_guarantees(bindings, pool.key, pool_quotas)
        bindings.forget_marks()

    # Queries

    def unused_cells(self, tenant: str) -> dict[int, int]:
        """Return the number of the tenant's unbound cells by size."""
        tenant_cells = self.bindings.cells_by_tenant.get(tenant)
        return counts_by_size(tenant_cells.unused, self.levels) if tenant_cells is not None else {}

    def units_left(self, tenant: str) -> int:
        """Return the thousandths of the unit that the tenant's cells can still take, bound or not."""
        tenant_cells = self.bindings.cells_by_tenant.get(tenant)
        if tenant_cells is None:
            return 0
        cached = self._units_left_cache.get(tenant)
        if cached is None or cached[0] != tenant_cells.version:
            usable = self.bindings.cell_slack.usable
            spare = sum(tenant_cells.spare_amount(node) for node in tenant_cells.bound_by_node if usable[node])
            amount = total_units(tenant_cells.unused, self.levels) * MILLI_PER_UNIT + spare
            cached = self._units_left_cache[tenant] = tenant_cells.version, amount
        return cached[1]

    def used_amount(self, tenant: str) -> int:
        """Return the thousandths that the tenant's guaranteed and planned pods use."""
        tenant_cells = self.bindings.cells_by_tenant.get(tenant)
        return sum(tenant_cells.used_by_node.values()) if tenant_cells is not None else 0

    def placed_amounts(self) -> list[PlacedAmount]:
        """Return what the cells hold now, from which equal cells can be derived."""
        names = self.bindings.names
        return [
            (tenant, names[node], amount)
            for tenant, tenant_cells in self.bindings.cells_by_tenant.items()
            for node, amount in sorted(tenant_cells.used_by_node.items())
            if amount
        ]

    def bound_cells(self, tenant: str) -> dict[str, tuple[int, ...]]:
        """Return the sizes of the tenant's bound cells by node, the largest first."""
        tenant_cells, names = self.bindings.cells_by_tenant.get(tenant), self.bindings.names
        if tenant_cells is None:
            return {}
        return {
            names[node]: tuple(list_sizes(tenant_cells.bound_by_node[node], self.levels))
            for node in sorted(tenant_cells.bound_by_node)
        }

    def bound_nodes(self) -> set[str]:
        """Return the nodes with bound cells of any tenant."""
        names = self.bindings.names
        return {
            names[node]
            for tenant_cells in self.bindings.cells_by_tenant.values()
            for node in tenant_cells.bound_by_node
        }

    def spare_amount(self, tenant: str, node: str) -> int:
        """Return the thousandths that the tenant may still use inside its cells bound to a node."""
        tenant_cells, node_number = self._find_cells(tenant, node)
        if tenant_cells is None or not self.bindings.cell_slack.usable[node_number]:
            return 0
        return tenant_cells.spare_amount(node_number)

    def excess_by_node(self, tenant: str) -> dict[str, int]:
        """Return the thousandths that the tenant's guaranteed pods use beyond its cells, by node, where positive.

        Pods of this amount count as borrowing; the caller removes them with `release_cells`.
        """
        tenant_cells, bindings = self.bindings.cells_by_tenant.get(tenant), self.bindings
        if tenant_cells is None:
            return {}
        nodes = sorted(tenant_cells.used_by_node, key=bindings.names.__getitem__)
        return {bindings.names[node]: excess for node in nodes if (excess := tenant_cells.excess_amount(node))}

    def usable_amounts(self, tenant: str) -> NDArray[np.int64]:
        """Return the thousandths that `allocate_cells` would allow the tenant on each node of the pool.

        The order is that of the pool's nodes. Each node counts by itself: use on one may reduce others. The array is
        read-only.
        """
        tenant_cells = self.bindings.cells_by_tenant.get(tenant)
        if tenant_cells is None:
            return np.zeros(len(self.bindings.cell_slack.free_array), dtype=np.int64)
        version, cached = self.bindings.state_version, self._usable_cache.get(tenant)
        if cached is None or cached[0] != version:
            cached = self._usable_cache[tenant] = version, usable_amounts(self.bindings, tenant_cells)
        return cached[1]

    # Changes

    def allocate_cells(self, tenant: str, node: str, amount: int) -> bool:
        """Use thousandths of a node: inside the cells bound there, or by binding cells for it.

        The cells with the fewest spare units are bound, if necessary in place of those bound there. Return False
        without a change if the tenant's cells do not allow it.
        """
        tenant_cells, node_number = self._find_cells(tenant, node)
        if tenant_cells is None or not self.bindings.cell_slack.usable[node_number]:
            return False
        used = tenant_cells.used_by_node.get(node_number, 0) + amount
        if amount <= tenant_cells.spare_amount(node_number):
            self.bindings.set_bound_cells(tenant_cells, node_number, tenant_cells.bound_cells(node_number), used)
            return True
        return self.bindings.bind_for_usage(tenant_cells, node_number, used)

    def release_cells(self, tenant: str, node: str, amount: int) -> None:
        """Record that a guaranteed pod left a node or borrows from now on, and unbind the cells that it leaves empty.

        Raises:
            ValueError: The tenant's guaranteed pods use less than this amount there.
        """
        tenant_cells, node_number = self._find_cells(tenant, node)
        used = (tenant_cells.used_by_node.get(node_number, 0) if tenant_cells is not None else 0) - amount
        if tenant_cells is None or used < 0:
            raise ValueError(f"{tenant} uses less than {amount} thousandths of {node}")
        if not self.bindings.bind_for_usage(tenant_cells, node_number, used):
            self.bindings.set_bound_cells(tenant_cells, node_number, tenant_cells.bound_cells(node_number), used)

    def trial(self) -> Trial:
        """Return a trial: changes in its `with` block are undone unless the block commits them."""
        return self.bindings.trial()

    def _find_cells(self, tenant: str, node: str) -> tuple[TenantCells | None, int]:
        node_number = self.bindings.numbers.get(node)
        return (self.bindings.cells_by_tenant.get(tenant), node_number) if node_number is not None else (None, -1)
