"""Bindings of tenants' cells to nodes, and the tenants' usage there; every change can be undone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vkgateway.arbiter.guarantees.bindability import CellSlack
from vkgateway.arbiter.guarantees.cell_sizes import (
    MILLI_PER_UNIT,
    CellCounts,
    find_covers,
    round_up_units,
    smallest_cover,
    total_units,
)
from vkgateway.arbiter.trial import Trial


class TenantCells:
    """Cells of one tenant in a pool. Nodes are numbers, cells are counts by level."""

    __slots__ = ("_levels", "bound_by_node", "no_cells", "unused", "used_by_node", "version")

    def __init__(self, levels: Sequence[int]) -> None:
        self._levels = levels
        self.no_cells: CellCounts = [0] * len(levels)
        """Counts of no cell at any level; read-only."""
        self.unused = list(self.no_cells)
        self.bound_by_node: dict[int, CellCounts] = {}
        self.used_by_node: dict[int, int] = {}
        """Thousandths that its guaranteed pods use on each node, inside cells or not."""
        self.version = 0
        """Grows with each change."""

    def all_cells(self) -> CellCounts:
        """Return its cells, bound or not."""
        return [sum(counts) for counts in zip(self.unused, *self.bound_by_node.values(), strict=True)]

    def bound_cells(self, node: int) -> CellCounts:
        """Return its cells that are bound to a node; read-only."""
        return self.bound_by_node.get(node, self.no_cells)

    def bound_units(self, node: int) -> int:
        """Return the units of its cells that are bound to a node."""
        counts = self.bound_by_node.get(node)
        return total_units(counts, self._levels) if counts is not None else 0

    def spare_amount(self, node: int) -> int:
        """Return the thousandths that it may still use inside its cells bound to the node."""
        return max(0, self.bound_units(node) * MILLI_PER_UNIT - self.used_by_node.get(node, 0))

    def has_spare_units(self) -> bool:
        """Return whether it may still use a whole unit inside its cells bound to any node."""
        return any(self.spare_amount(node) >= MILLI_PER_UNIT for node in self.bound_by_node)

    def excess_amount(self, node: int) -> int:
        """Return the thousandths that its pods use on the node beyond its cells there."""
        return max(0, self.used_by_node.get(node, 0) - self.bound_units(node) * MILLI_PER_UNIT)

    def total_excess(self) -> int:
        """Return the thousandths that its pods use beyond its cells on all nodes."""
        return sum(map(self.excess_amount, self.used_by_node))

    def possible_bindings(self, node: int, used: int) -> Iterator[CellCounts]:
        """Yield sets of its bound and unused cells that hold this usage of the node.

        The last set contains only cells bound there: binding fewer cells is always possible.
        """
        bound = self.bound_cells(node)
        available = [bound_count + unused_count for bound_count, unused_count in zip(bound, self.unused, strict=True)]
        yield from find_covers(available, self._levels, round_up_units(used))
        fewer = smallest_cover(bound, self._levels, round_up_units(used))
        if fewer is not None:
            yield fewer


_Entry = tuple[TenantCells, int, CellCounts | None, int, int]


class CellBindings:
    """Cells of all tenants in one pool, with a journal: undoing a trial costs what it changed."""

    def __init__(self, levels: Sequence[int], cell_slack: CellSlack, nodes: Iterable[str]) -> None:
        self.levels = tuple(levels)
        self.cell_slack = cell_slack
        self.names = list(nodes)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.cells_by_tenant: dict[str, TenantCells] = {}
        """In the order of the grants; tenants without a guarantee last."""
        self._journal: list[_Entry] = []
        self._granted_version = self._state_version = self._latest_version = 0

    @property
    def state_version(self) -> tuple[int, int]:
        """Version of bindings and usage: equal versions mean equal state, and an undo restores the old version."""
        return self._granted_version, self._state_version

    def add_cells(self, tenant: str, cells: Sequence[int]) -> None:
        """Add unused cells to a tenant."""
        tenant_cells = self.cells_of(tenant)
        for level, count in enumerate(cells):
            self.add_unused(tenant_cells, level, count)

    def cells_of(self, tenant: str) -> TenantCells:
        """Return a tenant's cells; a tenant without a quota has none."""
        found = self.cells_by_tenant.get(tenant)
        if found is None:
            found = self.cells_by_tenant[tenant] = TenantCells(self.levels)
        return found

    def add_unused(self, tenant_cells: TenantCells, level: int, count: int) -> None:
        """Change the number of a tenant's unused cells; the journal does not record it."""
        tenant_cells.unused[level] += count
        tenant_cells.version += 1
        self._granted_version += 1
        self.cell_slack.add_unused(level, count)

    def node_number(self, node: str) -> int:
        """Return a node's number; a node outside the pool gets a number without free units."""
        found = self.numbers.get(node)
        if found is None:
            found = self.numbers[node] = self.cell_slack.add_node()
            self.names.append(node)
        return found

    def can_rebind(self, tenant_cells: TenantCells, node: int, cells: Sequence[int]) -> bool:
        """Return whether these cells can replace the bound ones: they fit, and the unused cells stay bindable."""
        old, cell_slack = tenant_cells.bound_cells(node), self.cell_slack
        return cell_slack.allows_change(
            cell_slack.free_units[node], cell_slack.free_units_after(node, old, cells), old, cells
        )

    def bind_for_usage(self, tenant_cells: TenantCells, node: int, used: int) -> bool:
        """Bind the cells that hold this usage of the node with the fewest spare units.

        Return False without a change if no choice keeps the unused cells of all tenants bindable.
        """
        for cells in tenant_cells.possible_bindings(node, used):
            if self.can_rebind(tenant_cells, node, cells):
                self.set_bound_cells(tenant_cells, node, cells, used)
                return True
        return False

    def set_bound_cells(self, tenant_cells: TenantCells, node: int, cells: Sequence[int], used: int) -> None:
        """Bind exactly these cells to the node and set its usage; cells bound before become unused."""
        old = tenant_cells.bound_by_node.get(node)
        self._journal.append((tenant_cells, node, old, tenant_cells.used_by_node.get(node, 0), self._state_version))
        self._latest_version += 1
        self._state_version = self._latest_version
        self._write_node(tenant_cells, node, list(cells), used)

    def mark(self) -> int:
        """Return a mark for `undo`."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Undo all changes since the mark."""
        while len(self._journal) > mark:
            tenant_cells, node, cells, used, self._state_version = self._journal.pop()
            self._write_node(tenant_cells, node, tenant_cells.no_cells if cells is None else cells, used)

    def trial(self) -> Trial:
        """Return a trial: changes in its `with` block are undone unless the block commits them."""
        return Trial(self)

    def forget_marks(self) -> None:
        """Keep all changes so far: earlier marks become invalid."""
        self._journal.clear()

    def _write_node(self, tenant_cells: TenantCells, node: int, cells: CellCounts, used: int) -> None:
        old = tenant_cells.bound_cells(node)
        tenant_cells.version += 1
        if old != cells:
            self.cell_slack.rebind_node(node, old, cells)
            for level, (old_count, new_count) in enumerate(zip(old, cells, strict=True)):
                tenant_cells.unused[level] += old_count - new_count
            if any(cells):
                tenant_cells.bound_by_node[node] = cells
            else:
                del tenant_cells.bound_by_node[node]
        if used:
            tenant_cells.used_by_node[node] = used
        else:
            tenant_cells.used_by_node.pop(node, None)
