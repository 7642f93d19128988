"""Guarantees as cells: the cells that tenants can still bind, where, and the amounts that they may use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vkgateway.arbiter.decisions import GuaranteeLoss
from vkgateway.arbiter.guarantees.bindability import CellSlack
from vkgateway.arbiter.guarantees.cell_bindings import CellBindings, TenantCells
from vkgateway.arbiter.guarantees.cell_sizes import (
    MILLI_PER_UNIT,
    CellCounts,
    pool_levels,
    quota_cells,
    total_units,
    units_for_cells,
)
from vkgateway.arbiter.guarantees.derived_bindings import derive_bindings
from vkgateway.arbiter.guarantees.reduction import GuaranteeClaim, reduce_cells, restore_cells
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
        self._pool, unit, pool_quotas = pool.key, pool.unit_resource, _sort_by_grant(pool, quotas)
        self.levels = pool_levels(pool)
        """Cell sizes, the largest first."""
        free_units = [units_for_cells(node, unit) for node in pool.nodes]
        cell_slack = CellSlack(self.levels, free_units, [node.usable for node in pool.nodes])
        self._bindings = bindings = CellBindings(self.levels, cell_slack, (node.name for node in pool.nodes))
        self._usable_cache: dict[str, tuple[tuple[int, int], NDArray[np.int64]]] = {}
        """Last result of `usable_amounts` by tenant, with the state version that it belongs to."""
        for quota in pool_quotas:
            bindings.add_cells(quota.tenant, quota_cells(quota, unit, self.levels))
        self._granted_cells = {
            tenant: list(tenant_cells.unused) for tenant, tenant_cells in bindings.cells_by_tenant.items()
        }
        for tenant, node, amount in placed:
            used, number = bindings.cells_of(tenant).used_by_node, bindings.node_number(node)
            used[number] = used.get(number, 0) + amount
        self._tenant_order = order = list(dict.fromkeys([*self._granted_cells, *sorted(bindings.cells_by_tenant)]))
        derive_bindings(bindings, order)
        self._bind_excess(order)
        self._losses: tuple[GuaranteeLoss, ...] = ()
        if not cell_slack.is_feasible():
            self._reduce_cells(pool_quotas, order)
        bindings.forget_marks()

    def _reduce_cells(self, quotas: Iterable[Quota], order: Sequence[str]) -> None:
        bindings = self._bindings
        before = {tenant: self._held_cells(tenant) for tenant in self._granted_cells}
        claims = {
            quota.tenant: GuaranteeClaim(
                quota.tenant, total_units(before[quota.tenant], self.levels), quota.weight, quota.granted
            )
            for quota in quotas
        }
        reduce_cells(bindings, claims)
        self._bind_excess(order)
        # A restored cell may hold pods on unusable nodes, which leaves capacity for more.
        while restore_cells(bindings, claims):
            self._bind_excess(order)
        self._losses = tuple(
            GuaranteeLoss(
                pool=self._pool,
                tenant=tenant,
                units=claim.lost_units,
                asked=self._counts_by_size(before[tenant]),
                held=self._counts_by_size(held),
            )
            for tenant, claim in sorted(claims.items())
            if (held := self._held_cells(tenant)) != before[tenant]
        )

    def _bind_excess(self, order: Iterable[str]) -> None:
        """Bind unused cells where pods have none, as far as the other unused cells stay bindable."""
        bindings = self._bindings
        for tenant_cells in map(bindings.cells_of, order):
            nodes = [node for node in tenant_cells.used_by_node if bindings.excess_amount(tenant_cells, node)]
            for node in sorted(nodes, key=lambda node: (-tenant_cells.used_by_node[node], bindings.names[node])):
                if not bindings.bind_for_usage(tenant_cells, node, tenant_cells.used_by_node[node]):
                    bindings.bind_excess(tenant_cells, node)

    def _held_cells(self, tenant: str) -> CellCounts:
        tenant_cells = self._bindings.cells_of(tenant)
        counts = list(tenant_cells.unused)
        for bound in tenant_cells.bound_by_node.values():
            counts = [count + bound_count for count, bound_count in zip(counts, bound, strict=True)]
        return counts

    def _counts_by_size(self, counts: CellCounts) -> dict[int, int]:
        return {size: count for size, count in zip(self.levels, counts, strict=True) if count}

    # Queries

    def guarantee_losses(self) -> tuple[GuaranteeLoss, ...]:
        """Return the guarantees that were reduced, by tenant; empty while all cells fit."""
        return self._losses

    def unused_cells(self, tenant: str) -> dict[int, int]:
        """Return the number of the tenant's unbound cells by size."""
        tenant_cells = self._tenant_cells(tenant)
        return self._counts_by_size(tenant_cells.unused) if tenant_cells is not None else {}

    def tenant_version(self, tenant: str) -> int:
        """Return a number that grows with each change of the tenant's cells."""
        tenant_cells = self._tenant_cells(tenant)
        return tenant_cells.version if tenant_cells is not None else 0

    def bound_cells(self, tenant: str) -> dict[str, tuple[int, ...]]:
        """Return the sizes of the tenant's bound cells by node, the largest first."""
        tenant_cells, names = self._tenant_cells(tenant), self._bindings.names
        if tenant_cells is None:
            return {}
        return {
            names[node]: self._bindings.list_cell_sizes(tenant_cells.bound_by_node[node])
            for node in sorted(tenant_cells.bound_by_node)
        }

    def bound_nodes(self) -> set[str]:
        """Return the nodes with bound cells of any tenant."""
        names = self._bindings.names
        return {
            names[node]
            for tenant_cells in self._bindings.cells_by_tenant.values()
            for node in tenant_cells.bound_by_node
        }

    def spare_amount(self, tenant: str, node: str) -> int:
        """Return the thousandths that the tenant may still use inside its cells bound to a node."""
        tenant_cells, node_number = self._find_cells(tenant, node)
        if tenant_cells is None or not self._bindings.cell_slack.usable[node_number]:
            return 0
        return self._bindings.spare_amount(tenant_cells, node_number)

    def excess_by_node(self, tenant: str) -> dict[str, int]:
        """Return the thousandths that the tenant's guaranteed pods use beyond its cells, by node, where positive.

        Pods of this amount count as borrowing; the caller removes them with `release_cells`.
        """
        tenant_cells, bindings = self._tenant_cells(tenant), self._bindings
        if tenant_cells is None:
            return {}
        nodes = sorted(tenant_cells.used_by_node, key=bindings.names.__getitem__)
        return {
            bindings.names[node]: excess for node in nodes if (excess := bindings.excess_amount(tenant_cells, node))
        }

    def can_bind(self, tenant: str, size: int, node: str) -> bool:
        """Return whether the tenant has an unused cell of this size that can be bound to the node."""
        tenant_cells, node_number = self._find_cells(tenant, node)
        if tenant_cells is None or size not in self.levels or not self._bindings.cell_slack.usable[node_number]:
            return False
        level = self.levels.index(size)
        return tenant_cells.unused[level] > 0 and self._bindings.can_rebind(
            tenant_cells, node_number, self._with_added_cell(tenant_cells, node_number, level)
        )

    def usable_amounts(self, tenant: str) -> NDArray[np.int64]:
        """Return the thousandths that `allocate_cells` would allow the tenant on each node of the pool.

        The order is that of the pool's nodes. Each node counts by itself: use on one may reduce others. The array is
        read-only.
        """
        tenant_cells = self._tenant_cells(tenant)
        if tenant_cells is None:
            return np.zeros(len(self._bindings.cell_slack.free_array), dtype=np.int64)
        version, cached = self._bindings.state_version, self._usable_cache.get(tenant)
        if cached is None or cached[0] != version:
            cached = self._usable_cache[tenant] = version, usable_amounts(self._bindings, tenant_cells)
        return cached[1]

    # Changes

    def allocate_cells(self, tenant: str, node: str, amount: int) -> bool:
        """Use thousandths of a node: inside the cells bound there, or by binding cells for it.

        The cells with the fewest spare units are bound, if necessary in place of those bound there. Return False
        without a change if the tenant's cells do not allow it.
        """
        tenant_cells, node_number = self._find_cells(tenant, node)
        if tenant_cells is None or not self._bindings.cell_slack.usable[node_number]:
            return False
        used = tenant_cells.used_by_node.get(node_number, 0) + amount
        if amount <= self._bindings.spare_amount(tenant_cells, node_number):
            self._bindings.set_bound_cells(
                tenant_cells, node_number, self._bindings.bound_cells(tenant_cells, node_number), used
            )
            return True
        return self._bindings.bind_for_usage(tenant_cells, node_number, used)

    def release_cells(self, tenant: str, node: str, amount: int) -> None:
        """Record that a guaranteed pod left a node or borrows from now on, and unbind the cells that it leaves empty.

        Raises:
            ValueError: The tenant's guaranteed pods use less than this amount there.
        """
        tenant_cells, node_number = self._find_cells(tenant, node)
        used = (tenant_cells.used_by_node.get(node_number, 0) if tenant_cells is not None else 0) - amount
        if tenant_cells is None or used < 0:
            raise ValueError(f"{tenant} uses less than {amount} thousandths of {node}")
        if not self._bindings.bind_for_usage(tenant_cells, node_number, used):
            self._bindings.set_bound_cells(
                tenant_cells, node_number, self._bindings.bound_cells(tenant_cells, node_number), used
            )

    def rebind_tenants(self, tenants: Collection[str]) -> bool:
        """Bind the cells for these tenants' current usage again, because what decided the bindings may have changed.

        Return False without a change if the bindings are the same or would hold less. A tenant without spare units in
        bound cells keeps its bindings.
        """
        bindings, mark = self._bindings, self._bindings.mark()
        order = [
            tenant for tenant in self._tenant_order if tenant in tenants and self._has_spare(bindings.cells_of(tenant))
        ]
        all_cells = [bindings.cells_of(tenant) for tenant in order]
        before, excess = [dict(tenant_cells.bound_by_node) for tenant_cells in all_cells], self._total_excess(all_cells)
        for tenant_cells in all_cells:
            for node in list(tenant_cells.bound_by_node):
                bindings.set_bound_cells(
                    tenant_cells, node, [0] * len(self.levels), tenant_cells.used_by_node.get(node, 0)
                )
        derive_bindings(bindings, order)
        changed = [tenant_cells.bound_by_node for tenant_cells in all_cells] != before
        if changed and bindings.cell_slack.is_feasible() and self._total_excess(all_cells) <= excess:
            return True
        bindings.undo(mark)
        return False

    def allocate_with_rebinding(self, tenant: str, amounts: Mapping[str, int]) -> bool:
        """Use amounts of several nodes, with all tenants' cells bound again as the next cycle would.

        This finds a solution where other tenants' cells are bound to nodes that other cells of theirs would hold.
        Return False without a change if a tenant would lose usage or bindable cells even then.
        """
        bindings, mark = self._bindings, self._bindings.mark()
        own_cells = bindings.cells_of(tenant)
        all_cells = [bindings.cells_of(name) for name in self._tenant_order]
        excess = self._total_excess([*all_cells, own_cells])
        for tenant_cells in all_cells:
            for node in list(tenant_cells.bound_by_node):
                bindings.set_bound_cells(
                    tenant_cells, node, [0] * len(self.levels), tenant_cells.used_by_node.get(node, 0)
                )
        for name, amount in amounts.items():
            node = bindings.node_number(name)
            bindings.set_bound_cells(
                own_cells,
                node,
                bindings.bound_cells(own_cells, node),
                own_cells.used_by_node.get(node, 0) + amount,
            )
        derive_bindings(bindings, self._tenant_order)
        if bindings.cell_slack.is_feasible() and self._total_excess([*all_cells, own_cells]) <= excess:
            return True
        bindings.undo(mark)
        return False

    def _has_spare(self, tenant_cells: TenantCells) -> bool:
        return any(
            self._bindings.spare_amount(tenant_cells, node) >= MILLI_PER_UNIT for node in tenant_cells.bound_by_node
        )

    def _total_excess(self, all_cells: Iterable[TenantCells]) -> int:
        return sum(
            self._bindings.excess_amount(tenant_cells, node)
            for tenant_cells in all_cells
            for node in tenant_cells.used_by_node
        )

    def mark(self) -> int:
        """Return a mark for `undo`."""
        return self._bindings.mark()

    def undo(self, mark: int) -> None:
        """Undo all changes since the mark, at the cost of those changes."""
        self._bindings.undo(mark)

    def trial(self) -> Trial:
        """Return a trial: changes in its `with` block are undone unless the block commits them."""
        return Trial(self)

    def _tenant_cells(self, tenant: str) -> TenantCells | None:
        return self._bindings.cells_by_tenant.get(tenant)

    def _find_cells(self, tenant: str, node: str) -> tuple[TenantCells | None, int]:
        node_number = self._bindings.numbers.get(node)
        return (self._tenant_cells(tenant), node_number) if node_number is not None else (None, -1)

    def _with_added_cell(self, tenant_cells: TenantCells, node: int, level: int) -> CellCounts:
        cells = list(self._bindings.bound_cells(tenant_cells, node))
        cells[level] += 1
        return cells


def _sort_by_grant(pool: Pool, quotas: Iterable[Quota]) -> list[Quota]:
    return sorted(
        (quota for quota in quotas if quota.pool == pool.key), key=lambda quota: (quota.granted, quota.tenant)
    )
