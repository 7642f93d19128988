"""Which cells are bound where, told by nothing but the pods that run: so that a restart finds what was decided.

Each node gets the smallest set of its tenant's cells that holds the tenant's guaranteed pods there: a single pod shall
not hold a whole node. That is not always what was bound when the pods started. A tenant with cells of 8 and 4 whose
pods of 4 and 4 filled a whole node has one of them left: with 4 bound there, no other node may have room for the 8. So
where not all unused cells could be bound, larger ones are bound in place of smaller ones until they can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from vkgateway.arbiter.guarantees.cell_bindings import CellBindings, TenantCells
from vkgateway.arbiter.guarantees.cell_sizes import CellCounts, round_up_units, smallest_cover, total_units
from vkgateway.arbiter.guarantees.rebinding import enlarge_cells, exchange_cells


def derive_bindings(bindings: CellBindings, order: Sequence[str]) -> None:
    """Bind cells to where they are used; `order` are the tenants, the first granted first.

    Uses must stand in the holdings, and no cell be bound. What no cell can hold stays in excess, and what is unused
    may be too much for the rooms: then cells must be reduced.
    """
    mark, slack = bindings.mark(), list(bindings.cell_slack.slack)
    if _try_derive(bindings, order, generous=False) or _is_hopeless(bindings, slack):
        return
    bindings.undo(mark)
    if not _try_derive(bindings, order, generous=True):
        bindings.undo(mark)
        _try_derive(bindings, order, generous=False)


def _try_derive(bindings: CellBindings, order: Sequence[str], *, generous: bool) -> bool:
    _CoverSearch(bindings, order, generous=generous).bind_all()
    level = bindings.cell_slack.short_level()
    while level is not None and (enlarge_cells(bindings, level) or exchange_cells(bindings, level)):
        level = bindings.cell_slack.short_level()
    return level is None


def _is_hopeless(bindings: CellBindings, slack: list[int]) -> bool:
    """Whether there would be too little room even if no pod ran on a usable node; `slack` is from before any bound."""
    for holding in bindings.cells_by_tenant.values():
        for node, cells in holding.bound_by_node.items():
            if not bindings.cell_slack.usable[node]:
                for level, number in enumerate(cells):
                    for at in range(level, len(slack)):
                        slack[at] += number * bindings.levels[level]
    return min(slack) < 0


class _CoverSearch:
    """Finds cells for what is used, tenant by tenant, and leaves the others' pods the room that they need at least."""

    def __init__(self, bindings: CellBindings, order: Sequence[str], *, generous: bool) -> None:
        self._bindings = bindings
        self._prefer_largest = generous
        """Bind the largest cells that there is room for, not the smallest."""
        self._tenants = [bindings.cells_of(tenant) for tenant in order]
        self._reserved_units: dict[int, int] = defaultdict(int)
        """Units of a node that tenants whose turn has not come will need there."""

    def bind_all(self) -> None:
        """Bind the cells of all tenants."""
        least = [self._least_units(holding) for holding in self._tenants]
        for needs in least:
            self._reserve_units(needs, 1)
        for holding, needs in zip(self._tenants, least, strict=True):
            self._reserve_units(needs, -1)
            self._bind_tenant(holding)

    def _least_units(self, holding: TenantCells) -> dict[int, int]:
        """The fewest units that the tenant's cells can hold its pods in, on each node by itself."""
        levels, least = self._bindings.levels, {}
        for need in set(map(round_up_units, holding.used_by_node.values())):
            cells = smallest_cover(holding.unused, levels, need)
            least[need] = total_units(cells, levels) if cells is not None else need
        return {node: least[round_up_units(used)] for node, used in holding.used_by_node.items()}

    def _reserve_units(self, needs: Mapping[int, int], sign: int) -> None:
        for node, need in needs.items():
            self._reserved_units[node] += sign * need

    def _bind_tenant(self, holding: TenantCells) -> None:
        bindings, mark = self._bindings, self._bindings.mark()
        if self._bind_by_usage(holding):
            return
        missing = self._total_excess(holding)
        in_turn = dict(holding.bound_by_node)
        bindings.undo(mark)
        self._bind_largest_first(holding)
        if self._total_excess(holding) >= missing:
            bindings.undo(mark)
            for node in sorted(in_turn, key=bindings.names.__getitem__):
                bindings.set_bound_cells(holding, node, in_turn[node], holding.used_by_node[node])

    def _total_excess(self, holding: TenantCells) -> int:
        return sum(self._bindings.excess_amount(holding, node) for node in holding.used_by_node)

    def _has_free_units(self, holding: TenantCells, node: int, cells: CellCounts) -> bool:
        tally = self._bindings.cell_slack
        if not tally.usable[node]:
            return True
        return (
            tally.free_units_after(node, self._bindings.bound_cells(holding, node), cells) >= self._reserved_units[node]
        )

    def _bind_by_usage(self, holding: TenantCells) -> bool:
        """A set for each node, the node with the most use first; whether all were found."""
        bindings, complete = self._bindings, True
        rooms, names = bindings.cell_slack.free_units, bindings.names
        for node in sorted(
            holding.used_by_node, key=lambda node: (-holding.used_by_node[node], rooms[node], names[node])
        ):
            used = holding.used_by_node[node]
            ways = bindings.possible_bindings(holding, node, used)
            for cells in reversed(list(ways)) if self._prefer_largest else ways:
                if self._has_free_units(holding, node, cells):
                    bindings.set_bound_cells(holding, node, cells, used)
                    break
            else:
                complete = False
        return complete

    def _bind_largest_first(self, holding: TenantCells) -> None:
        """Each cell, the largest first, to the node that needs the most among those with room for it.

        It finds cells for all pods of a tenant wherever there are some: in any solution, the largest cell can change
        places with what is bound to that node, or with as much of it as the cell is large.
        """
        bindings = self._bindings
        need = {node: round_up_units(used) for node, used in holding.used_by_node.items()}
        for level, size in enumerate(bindings.levels):
            waiting = [(-wanted, bindings.names[node], node) for node, wanted in need.items() if wanted > 0]
            heapify(waiting)
            while waiting and holding.unused[level]:
                _, name, node = heappop(waiting)
                cells = list(bindings.bound_cells(holding, node))
                cells[level] += 1
                if not self._has_free_units(holding, node, cells):
                    continue
                bindings.set_bound_cells(holding, node, cells, holding.used_by_node[node])
                need[node] -= size
                if need[node] > 0:
                    heappush(waiting, (-need[node], name, node))
