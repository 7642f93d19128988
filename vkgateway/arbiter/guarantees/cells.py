"""Guarantees as cells: what tenants may still bind, where, and what they may use there."""

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

PlacedAmount = tuple[str, str, int]
"""A guaranteed pod that is placed: its tenant, its node, and thousandths of the pool's unit that it asks for."""


class PoolCells:
    """The cells of one pool, counted from its nodes, its tenants' quotas and the guaranteed pods that are placed.

    The invariant: after each change, all unused cells could be bound at once. A change that would break it is refused.
    Equal input gives equal cells. What was placed earlier in a cycle is carried on by `allocate_cells` and
    `release_cells`; the next cycle counts again. Where pods stand and what cells they are in is not kept anywhere else.

    Sizes of cells are whole units (GPUs), amounts that pods use are thousandths. Nodes and tenants that are not known
    have nothing.
    """

    def __init__(self, pool: Pool, quotas: Iterable[Quota], placed: Iterable[PlacedAmount] = ()) -> None:
        self._pool, unit, mine = pool.key, pool.unit_resource, _sort_by_grant(pool, quotas)
        self.levels = pool_levels(pool)
        """Sizes of cells, the largest first."""
        rooms = [units_for_cells(node, unit) for node in pool.nodes]
        tally = CellSlack(self.levels, rooms, [node.usable for node in pool.nodes])
        self._bindings = bindings = CellBindings(self.levels, tally, (node.name for node in pool.nodes))
        self._usable_cache: dict[str, tuple[tuple[int, int], NDArray[np.int64]]] = {}
        """What `usable_amounts` told last, and of which state."""
        for quota in mine:
            bindings.add_cells(quota.tenant, quota_cells(quota, unit, self.levels))
        self._granted_cells = {tenant: list(holding.unused) for tenant, holding in bindings.cells_by_tenant.items()}
        for tenant, node, amount in placed:
            used, number = bindings.cells_of(tenant).used_by_node, bindings.node_number(node)
            used[number] = used.get(number, 0) + amount
        self._tenant_order = order = list(dict.fromkeys([*self._granted_cells, *sorted(bindings.cells_by_tenant)]))
        derive_bindings(bindings, order)
        self._bind_excess(order)
        self._losses: tuple[GuaranteeLoss, ...] = ()
        if not tally.is_feasible():
            self._reduce_cells(mine, order)
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
        # What is given back may hold pods on nodes that are not usable, and so leave room for more.
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
        """Bind what is unused to where pods have no cell, as far as all the rest can still be bound."""
        bindings = self._bindings
        for holding in map(bindings.cells_of, order):
            nodes = [node for node in holding.used_by_node if bindings.excess_amount(holding, node)]
            for node in sorted(nodes, key=lambda node: (-holding.used_by_node[node], bindings.names[node])):
                if not bindings.bind_for_usage(holding, node, holding.used_by_node[node]):
                    bindings.bind_excess(holding, node)

    def _held_cells(self, tenant: str) -> CellCounts:
        holding = self._bindings.cells_of(tenant)
        counts = list(holding.unused)
        for bound in holding.bound_by_node.values():
            counts = [one + more for one, more in zip(counts, bound, strict=True)]
        return counts

    def _counts_by_size(self, counts: CellCounts) -> dict[int, int]:
        return {size: number for size, number in zip(self.levels, counts, strict=True) if number}

    # Questions

    def guarantee_losses(self) -> tuple[GuaranteeLoss, ...]:
        """Whose cells had to be reduced when they were counted, by tenant; nobody's while all cells fit."""
        return self._losses

    def unused_cells(self, tenant: str) -> dict[int, int]:
        """The tenant's cells that are not bound: how many of each size."""
        holding = self._tenant_cells(tenant)
        return self._counts_by_size(holding.unused) if holding is not None else {}

    def tenant_version(self, tenant: str) -> int:
        """A number that grows with each change of what the tenant holds."""
        holding = self._tenant_cells(tenant)
        return holding.version if holding is not None else 0

    def bound_cells(self, tenant: str) -> dict[str, tuple[int, ...]]:
        """The nodes that the tenant's cells are bound to, with the cells' sizes, the largest first."""
        holding, names = self._tenant_cells(tenant), self._bindings.names
        if holding is None:
            return {}
        return {
            names[node]: self._bindings.list_cell_sizes(holding.bound_by_node[node])
            for node in sorted(holding.bound_by_node)
        }

    def bound_nodes(self) -> set[str]:
        """The nodes that anybody's cells are bound to."""
        names = self._bindings.names
        return {names[node] for holding in self._bindings.cells_by_tenant.values() for node in holding.bound_by_node}

    def spare_amount(self, tenant: str, node: str) -> int:
        """Thousandths that the tenant may still use on a node inside the cells that are bound there."""
        holding, number = self._find_cells(tenant, node)
        if holding is None or not self._bindings.cell_slack.usable[number]:
            return 0
        return self._bindings.spare_amount(holding, number)

    def excess_by_node(self, tenant: str) -> dict[str, int]:
        """Thousandths that the tenant's guaranteed pods use on nodes beyond its cells there, where they do.

        So many of its pods there count as borrowed from now on; whoever decides which takes them out by
        `release_cells`.
        """
        holding, bindings = self._tenant_cells(tenant), self._bindings
        if holding is None:
            return {}
        nodes = sorted(holding.used_by_node, key=bindings.names.__getitem__)
        return {bindings.names[node]: over for node in nodes if (over := bindings.excess_amount(holding, node))}

    def can_bind(self, tenant: str, size: int, node: str) -> bool:
        """Whether the tenant has an unused cell of this size that may be bound to the node."""
        holding, number = self._find_cells(tenant, node)
        if holding is None or size not in self.levels or not self._bindings.cell_slack.usable[number]:
            return False
        level = self.levels.index(size)
        return holding.unused[level] > 0 and self._bindings.can_rebind(
            holding, number, self._with_added_cell(holding, number, level)
        )

    def usable_amounts(self, tenant: str) -> NDArray[np.int64]:
        """Thousandths that the tenant may start to use on each node of the pool, as `allocate_cells` would allow.

        In the order of the pool's nodes, and for each node by itself: what is taken on one may be missing on others.
        Not to be written to.
        """
        holding = self._tenant_cells(tenant)
        if holding is None:
            return np.zeros(len(self._bindings.cell_slack.free_array), dtype=np.int64)
        now, known = self._bindings.state_version, self._usable_cache.get(tenant)
        if known is None or known[0] != now:
            known = self._usable_cache[tenant] = now, usable_amounts(self._bindings, holding)
        return known[1]

    # Changes

    def allocate_cells(self, tenant: str, node: str, amount: int) -> bool:
        """Start to use so many thousandths of a node: inside cells bound there, or in what is bound there for it.

        Bound is what has the fewest units to spare, be it in place of what was bound there. False, and nothing has
        changed: the tenant's cells do not allow it there.
        """
        holding, number = self._find_cells(tenant, node)
        if holding is None or not self._bindings.cell_slack.usable[number]:
            return False
        used = holding.used_by_node.get(number, 0) + amount
        if amount <= self._bindings.spare_amount(holding, number):
            self._bindings.set_bound_cells(holding, number, self._bindings.bound_cells(holding, number), used)
            return True
        return self._bindings.bind_for_usage(holding, number, used)

    def release_cells(self, tenant: str, node: str, amount: int) -> None:
        """A guaranteed pod has gone from a node, or borrows from now on; cells that it leaves empty are let go.

        Raises:
            ValueError: the tenant's guaranteed pods use less than that there.
        """
        holding, number = self._find_cells(tenant, node)
        used = (holding.used_by_node.get(number, 0) if holding is not None else 0) - amount
        if holding is None or used < 0:
            raise ValueError(f"{tenant} uses less than {amount} thousandths of {node}")
        if not self._bindings.bind_for_usage(holding, number, used):
            self._bindings.set_bound_cells(holding, number, self._bindings.bound_cells(holding, number), used)

    def bind_cell(self, tenant: str, size: int, node: str) -> None:
        """Bind an unused cell to a node, on top of those that are bound there; `use` or `allocate_cells` then fill it.

        Raises:
            ValueError: `can_bind` does not allow it.
        """
        if not self.can_bind(tenant, size, node):
            raise ValueError(f"{tenant} may not bind a cell of {size} to {node}")
        holding, number = self._bindings.cells_of(tenant), self._bindings.node_number(node)
        cells = self._with_added_cell(holding, number, self.levels.index(size))
        self._bindings.set_bound_cells(holding, number, cells, holding.used_by_node.get(number, 0))

    def rebind_tenants(self, tenants: Collection[str]) -> bool:
        """Bind what these tenants use now as if they had nothing bound: what it was bound in view of may be so no more.

        False: that is just what is bound, or would hold less; then nothing has changed. Whoever has nothing to spare in
        cells that are bound keeps them as they are.
        """
        bindings, mark = self._bindings, self._bindings.mark()
        order = [
            tenant for tenant in self._tenant_order if tenant in tenants and self._has_spare(bindings.cells_of(tenant))
        ]
        holdings = [bindings.cells_of(tenant) for tenant in order]
        before, missing = [dict(holding.bound_by_node) for holding in holdings], self._total_excess(holdings)
        for holding in holdings:
            for node in list(holding.bound_by_node):
                bindings.set_bound_cells(holding, node, [0] * len(self.levels), holding.used_by_node.get(node, 0))
        derive_bindings(bindings, order)
        others = [holding.bound_by_node for holding in holdings] != before
        if others and bindings.cell_slack.is_feasible() and self._total_excess(holdings) <= missing:
            return True
        bindings.undo(mark)
        return False

    def allocate_with_rebinding(self, tenant: str, amounts: Mapping[str, int]) -> bool:
        """Like `allocate_cells` for several nodes at once, with everybody's cells bound anew, as they will be when next
        counted.

        So it is found where cells of others are bound to nodes that would do as well with other cells of theirs. False,
        and nothing has changed: then, too, somebody would not have what it has, or might not bind what it does not use.
        """
        bindings, mark = self._bindings, self._bindings.mark()
        mine = bindings.cells_of(tenant)
        holdings = [bindings.cells_of(name) for name in self._tenant_order]
        missing = self._total_excess([*holdings, mine])
        for holding in holdings:
            for node in list(holding.bound_by_node):
                bindings.set_bound_cells(holding, node, [0] * len(self.levels), holding.used_by_node.get(node, 0))
        for name, amount in amounts.items():
            node = bindings.node_number(name)
            bindings.set_bound_cells(
                mine, node, bindings.bound_cells(mine, node), mine.used_by_node.get(node, 0) + amount
            )
        derive_bindings(bindings, self._tenant_order)
        if bindings.cell_slack.is_feasible() and self._total_excess([*holdings, mine]) <= missing:
            return True
        bindings.undo(mark)
        return False

    def _has_spare(self, holding: TenantCells) -> bool:
        return any(self._bindings.spare_amount(holding, node) >= MILLI_PER_UNIT for node in holding.bound_by_node)

    def _total_excess(self, holdings: Iterable[TenantCells]) -> int:
        return sum(self._bindings.excess_amount(holding, node) for holding in holdings for node in holding.used_by_node)

    def mark(self) -> int:
        """A point to come back to by `undo`."""
        return self._bindings.mark()

    def undo(self, mark: int) -> None:
        """Take back every change since the mark; this costs what the changes did."""
        self._bindings.undo(mark)

    def _tenant_cells(self, tenant: str) -> TenantCells | None:
        return self._bindings.cells_by_tenant.get(tenant)

    def _find_cells(self, tenant: str, node: str) -> tuple[TenantCells | None, int]:
        number = self._bindings.numbers.get(node)
        return (self._tenant_cells(tenant), number) if number is not None else (None, -1)

    def _with_added_cell(self, holding: TenantCells, node: int, level: int) -> CellCounts:
        cells = list(self._bindings.bound_cells(holding, node))
        cells[level] += 1
        return cells


def _sort_by_grant(pool: Pool, quotas: Iterable[Quota]) -> list[Quota]:
    return sorted(
        (quota for quota in quotas if quota.pool == pool.key), key=lambda quota: (quota.granted, quota.tenant)
    )
