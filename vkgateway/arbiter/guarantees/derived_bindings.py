"""Cell bindings derived only from the running pods, so that a restart finds the same bindings.

Each node gets the smallest set of its tenant's cells that holds the tenant's guaranteed pods there: a single pod must
not occupy a whole node. These are not always the cells that were bound when the pods started. For example, a tenant has
cells of 8 and 4, and its pods of 4 and 4 filled a whole node. One pod remains. With 4 bound there, no other node may
fit the cell of 8. Therefore larger cells replace smaller ones until all unused cells can be bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from vkgateway.arbiter.guarantees.cell_bindings import CellBindings, TenantCells
from vkgateway.arbiter.guarantees.cell_sizes import CellCounts, round_up_units, smallest_cover, total_units
from vkgateway.arbiter.guarantees.rebinding import enlarge_cells, exchange_cells


def derive_bindings(bindings: CellBindings, order: Sequence[str]) -> None:
    """Bind cells for the recorded usage; `order` lists the tenants, the first granted first.

    The usage must be recorded and no cell bound. Usage that no cell holds stays in excess. If the unused cells do not
    fit afterwards, the cells must be reduced.
    """
    mark, slack = bindings.mark(), list(bindings.cell_slack.slack)
    if _try_derive(bindings, order, prefer_largest=False) or _is_hopeless(bindings, slack):
        return
    bindings.undo(mark)
    if not _try_derive(bindings, order, prefer_largest=True):
        bindings.undo(mark)
        _try_derive(bindings, order, prefer_largest=False)


def _try_derive(bindings: CellBindings, order: Sequence[str], *, prefer_largest: bool) -> bool:
    _CoverSearch(bindings, order, prefer_largest=prefer_largest).bind_all()
    level = bindings.cell_slack.short_level()
    while level is not None and (enlarge_cells(bindings, level) or exchange_cells(bindings, level)):
        level = bindings.cell_slack.short_level()
    return level is None


def _is_hopeless(bindings: CellBindings, slack: list[int]) -> bool:
    """Return whether capacity is short even without pods on usable nodes; `slack` predates any binding."""
    for tenant_cells in bindings.cells_by_tenant.values():
        for node, cells in tenant_cells.bound_by_node.items():
            if not bindings.cell_slack.usable[node]:
                for level, number in enumerate(cells):
                    for lower in range(level, len(slack)):
                        slack[lower] += number * bindings.levels[level]
    return min(slack) < 0


def bind_excess(bindings: CellBindings) -> None:
    """Bind unused cells where pods have none, as far as the other unused cells stay bindable."""
    for tenant_cells in bindings.cells_by_tenant.values():
        nodes = [node for node in tenant_cells.used_by_node if tenant_cells.excess_amount(node)]
        for node in sorted(nodes, key=lambda node: (-tenant_cells.used_by_node[node], bindings.names[node])):
            if not bindings.bind_for_usage(tenant_cells, node, tenant_cells.used_by_node[node]):
                _bind_most(bindings, tenant_cells, node)


def _bind_most(bindings: CellBindings, tenant_cells: TenantCells, node: int) -> None:
    """Bind as many units as possible for the tenant's excess usage on a node, the largest cells first."""
    need = round_up_units(tenant_cells.excess_amount(node))
    for level, size in enumerate(bindings.levels):
        while need >= size and tenant_cells.unused[level]:
            cells = list(tenant_cells.bound_cells(node))
            cells[level] += 1
            if not bindings.can_rebind(tenant_cells, node, cells):
                break
            bindings.set_bound_cells(tenant_cells, node, cells, tenant_cells.used_by_node[node])
            need -= size


def rebind_tenants(bindings: CellBindings, tenants: Collection[str]) -> bool:
    """Bind the cells for these tenants' current usage again, because what decided the bindings may have changed.

    Return False without a change if the bindings are the same or would hold less. A tenant without spare units in bound
    cells keeps its bindings.
    """
    order = [name for name, cells in bindings.cells_by_tenant.items() if name in tenants and cells.has_spare_units()]
    all_cells = list(map(bindings.cells_of, order))
    before, excess = [dict(cells.bound_by_node) for cells in all_cells], _total_excess(all_cells)
    with bindings.trial() as trial:
        _unbind_cells(bindings, all_cells)
        derive_bindings(bindings, order)
        changed = [cells.bound_by_node for cells in all_cells] != before
        if changed and bindings.cell_slack.is_feasible() and _total_excess(all_cells) <= excess:
            trial.commit()
    return trial.is_committed


def allocate_with_rebinding(bindings: CellBindings, tenant: str, amounts: Mapping[str, int]) -> bool:
    """Use amounts of several nodes, with all tenants' cells bound again as the next cycle would.

    This finds a solution where other tenants' cells are bound to nodes that other cells of theirs would hold. Return
    False without a change if a tenant would lose usage or bindable cells even then.
    """
    own_cells = bindings.cells_of(tenant)
    all_cells = list(bindings.cells_by_tenant.values())
    excess = _total_excess(all_cells)
    with bindings.trial() as trial:
        _unbind_cells(bindings, all_cells)
        for name, amount in amounts.items():
            node = bindings.node_number(name)
            used = own_cells.used_by_node.get(node, 0) + amount
            bindings.set_bound_cells(own_cells, node, own_cells.bound_cells(node), used)
        derive_bindings(bindings, list(bindings.cells_by_tenant))
        if bindings.cell_slack.is_feasible() and _total_excess(all_cells) <= excess:
            trial.commit()
    return trial.is_committed


def _unbind_cells(bindings: CellBindings, all_cells: Iterable[TenantCells]) -> None:
    for cells in all_cells:
        for node in list(cells.bound_by_node):
            bindings.set_bound_cells(cells, node, cells.no_cells, cells.used_by_node.get(node, 0))


def _total_excess(all_cells: Iterable[TenantCells]) -> int:
    return sum(cells.total_excess() for cells in all_cells)


class _CoverSearch:
    """Search for cells that hold the usage, tenant by tenant.

    The search leaves the units that pods of later tenants need at least.
    """

    def __init__(self, bindings: CellBindings, order: Sequence[str], *, prefer_largest: bool) -> None:
        self._bindings = bindings
        self._prefer_largest = prefer_largest
        """Bind the largest cells that fit, not the smallest."""
        self._tenants = [bindings.cells_of(tenant) for tenant in order]
        self._reserved_units: dict[int, int] = defaultdict(int)
        """Units of a node that tenants later in the order will need there."""

    def bind_all(self) -> None:
        """Bind the cells of all tenants."""
        least = [self._least_units(tenant_cells) for tenant_cells in self._tenants]
        for needs in least:
            self._reserve_units(needs, 1)
        for tenant_cells, needs in zip(self._tenants, least, strict=True):
            self._reserve_units(needs, -1)
            self._bind_tenant(tenant_cells)

    def _least_units(self, tenant_cells: TenantCells) -> dict[int, int]:
        """Return the fewest units of cells that hold the tenant's pods on each node, each node by itself."""
        levels, least = self._bindings.levels, {}
        for need in set(map(round_up_units, tenant_cells.used_by_node.values())):
            cells = smallest_cover(tenant_cells.unused, levels, need)
            least[need] = total_units(cells, levels) if cells is not None else need
        return {node: least[round_up_units(used)] for node, used in tenant_cells.used_by_node.items()}

    def _reserve_units(self, needs: Mapping[int, int], sign: int) -> None:
        for node, need in needs.items():
            self._reserved_units[node] += sign * need

    def _bind_tenant(self, tenant_cells: TenantCells) -> None:
        bindings, mark = self._bindings, self._bindings.mark()
        if self._bind_by_usage(tenant_cells):
            return
        excess = tenant_cells.total_excess()
        by_usage = dict(tenant_cells.bound_by_node)
        bindings.undo(mark)
        self._bind_largest_first(tenant_cells)
        if tenant_cells.total_excess() >= excess:
            bindings.undo(mark)
            for node in sorted(by_usage, key=bindings.names.__getitem__):
                bindings.set_bound_cells(tenant_cells, node, by_usage[node], tenant_cells.used_by_node[node])

    def _has_free_units(self, tenant_cells: TenantCells, node: int, cells: CellCounts) -> bool:
        cell_slack = self._bindings.cell_slack
        if not cell_slack.usable[node]:
            return True
        return cell_slack.free_units_after(node, tenant_cells.bound_cells(node), cells) >= self._reserved_units[node]

    def _bind_by_usage(self, tenant_cells: TenantCells) -> bool:
        """Bind a set for each node, the most used node first; return whether every node has one."""
        bindings, complete = self._bindings, True
        free_units, names = bindings.cell_slack.free_units, bindings.names
        for node in sorted(
            tenant_cells.used_by_node,
            key=lambda node: (-tenant_cells.used_by_node[node], free_units[node], names[node]),
        ):
            used = tenant_cells.used_by_node[node]
            covers = tenant_cells.possible_bindings(node, used)
            for cells in reversed(list(covers)) if self._prefer_largest else covers:
                if self._has_free_units(tenant_cells, node, cells):
                    bindings.set_bound_cells(tenant_cells, node, cells, used)
                    break
            else:
                complete = False
        return complete

    def _bind_largest_first(self, tenant_cells: TenantCells) -> None:
        """Bind each cell, the largest first, to the node that needs the most units and fits it.

        This finds cells for all pods of a tenant whenever a solution exists: in any solution, the largest cell can be
        exchanged with what is bound to that node, or with the same amount of it.
        """
        bindings = self._bindings
        need = {node: round_up_units(used) for node, used in tenant_cells.used_by_node.items()}
        for level, size in enumerate(bindings.levels):
            waiting = [(-wanted, bindings.names[node], node) for node, wanted in need.items() if wanted > 0]
            heapify(waiting)
            while waiting and tenant_cells.unused[level]:
                _, name, node = heappop(waiting)
                cells = list(tenant_cells.bound_cells(node))
                cells[level] += 1
                if not self._has_free_units(tenant_cells, node, cells):
                    continue
                bindings.set_bound_cells(tenant_cells, node, cells, tenant_cells.used_by_node[node])
                need[node] -= size
                if need[node] > 0:
                    heappush(waiting, (-need[node], name, node))
