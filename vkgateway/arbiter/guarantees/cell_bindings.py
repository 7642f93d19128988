"""Which tenant's cells are bound to which nodes, and what its pods use there; every change can be taken back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vkgateway.arbiter.guarantees.bindability import CellSlack
from vkgateway.arbiter.guarantees.cell_sizes import (
    MILLI_PER_UNIT,
    CellCounts,
    find_covers,
    list_sizes,
    round_up_units,
    smallest_cover,
    total_units,
)


class TenantCells:
    """One tenant's cells in a pool. Nodes are numbers, cells are counts by level."""

    __slots__ = ("bound_by_node", "tenant", "unused", "used_by_node", "version")

    def __init__(self, tenant: str, cells: Sequence[int]) -> None:
        self.tenant = tenant
        self.unused = list(cells)
        self.bound_by_node: dict[int, CellCounts] = {}
        self.used_by_node: dict[int, int] = {}
        """Thousandths that its guaranteed pods use on each node, in cells or not."""
        self.version = 0
        """Grows with each change."""


_Entry = tuple[TenantCells, int, CellCounts | None, int, int]


class CellBindings:
    """All tenants' cells in one pool, with a journal: a trial costs what it touches."""

    def __init__(self, levels: Sequence[int], tally: CellSlack, nodes: Iterable[str]) -> None:
        self.levels = tuple(levels)
        self.cell_slack = tally
        self.names = list(nodes)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.cells_by_tenant: dict[str, TenantCells] = {}
        self._no_cells = [0] * len(self.levels)
        self._journal: list[_Entry] = []
        self._granted_version = self._state_version = self._latest_version = 0

    @property
    def state_version(self) -> tuple[int, int]:
        """What is bound and used, as a number: equal only where nothing differs; what is taken back has its old one."""
        return self._granted_version, self._state_version

    def add_cells(self, tenant: str, cells: Sequence[int]) -> TenantCells:
        """Give a tenant cells, on top of what it has; they are unused."""
        holding = self.cells_of(tenant)
        for level, number in enumerate(cells):
            self.add_unused(holding, level, number)
        return holding

    def cells_of(self, tenant: str) -> TenantCells:
        """A tenant's cells; one that has no quota has none."""
        found = self.cells_by_tenant.get(tenant)
        if found is None:
            found = self.cells_by_tenant[tenant] = TenantCells(tenant, self._no_cells)
        return found

    def add_unused(self, holding: TenantCells, level: int, number: int) -> None:
        """Give a tenant so many unused cells, or take them away where the number is negative; not in the journal."""
        holding.unused[level] += number
        holding.version += 1
        self._granted_version += 1
        self.cell_slack.add_unused(level, number)

    def node_number(self, node: str) -> int:
        """A node's number; one that the pool does not have gets one, and no room."""
        found = self.numbers.get(node)
        if found is None:
            found = self.numbers[node] = self.cell_slack.add_node()
            self.names.append(node)
        return found

    def bound_cells(self, holding: TenantCells, node: int) -> CellCounts:
        """The tenant's cells that are bound to a node; not to be written to."""
        return holding.bound_by_node.get(node, self._no_cells)

    def bound_units(self, holding: TenantCells, node: int) -> int:
        """Units in the tenant's cells that are bound to a node."""
        counts = holding.bound_by_node.get(node)
        return total_units(counts, self.levels) if counts is not None else 0

    def spare_amount(self, holding: TenantCells, node: int) -> int:
        """Thousandths that the tenant may still use inside cells bound to the node."""
        return max(0, self.bound_units(holding, node) * MILLI_PER_UNIT - holding.used_by_node.get(node, 0))

    def excess_amount(self, holding: TenantCells, node: int) -> int:
        """Thousandths that the tenant's pods use on the node beyond its cells there."""
        return max(0, holding.used_by_node.get(node, 0) - self.bound_units(holding, node) * MILLI_PER_UNIT)

    def possible_bindings(self, holding: TenantCells, node: int, used: int) -> Iterator[CellCounts]:
        """What could be bound to the node to hold what is used, from the cells there and the unused ones.

        The last is of those there only: fewer cells may always be bound.
        """
        bound = self.bound_cells(holding, node)
        available = [here + free for here, free in zip(bound, holding.unused, strict=True)]
        yield from find_covers(available, self.levels, round_up_units(used))
        fewer = smallest_cover(bound, self.levels, round_up_units(used))
        if fewer is not None:
            yield fewer

    def can_rebind(self, holding: TenantCells, node: int, cells: Sequence[int]) -> bool:
        """Whether these may be bound to the node in place of what is: with room, and so that the rest can be bound."""
        old, tally = self.bound_cells(holding, node), self.cell_slack
        return tally.allows_change(tally.free_units[node], tally.free_units_after(node, old, cells), old, cells)

    def bind_for_usage(self, holding: TenantCells, node: int, used: int) -> bool:
        """The tenant's pods use so much of the node: bind the cells that hold it with the fewest units to spare.

        False: there is no way that leaves room for everybody's unused cells; then nothing has changed.
        """
        for cells in self.possible_bindings(holding, node, used):
            if self.can_rebind(holding, node, cells):
                self.set_bound_cells(holding, node, cells, used)
                return True
        return False

    def bind_excess(self, holding: TenantCells, node: int) -> None:
        """Bind as many units as can be to what the tenant uses on a node in excess, the largest cells first."""
        need = round_up_units(self.excess_amount(holding, node))
        for level, size in enumerate(self.levels):
            while need >= size and holding.unused[level]:
                cells = list(self.bound_cells(holding, node))
                cells[level] += 1
                if not self.can_rebind(holding, node, cells):
                    break
                self.set_bound_cells(holding, node, cells, holding.used_by_node[node])
                need -= size

    def set_bound_cells(self, holding: TenantCells, node: int, cells: Sequence[int], used: int) -> None:
        """Have just these cells bound to the node, and so much of it used; what was bound there is unused."""
        old = holding.bound_by_node.get(node)
        self._journal.append((holding, node, old, holding.used_by_node.get(node, 0), self._state_version))
        self._latest_version += 1
        self._state_version = self._latest_version
        self._write_node(holding, node, list(cells), used)

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Take back everything since the mark."""
        while len(self._journal) > mark:
            holding, node, cells, used, self._state_version = self._journal.pop()
            self._write_node(holding, node, self._no_cells if cells is None else cells, used)

    def forget_marks(self) -> None:
        """Nothing that was done up to now can be taken back any more; marks from before are void."""
        self._journal.clear()

    def _write_node(self, holding: TenantCells, node: int, cells: CellCounts, used: int) -> None:
        old = self.bound_cells(holding, node)
        holding.version += 1
        if old != cells:
            self.cell_slack.rebind_node(node, old, cells)
            for level, (was, is_) in enumerate(zip(old, cells, strict=True)):
                holding.unused[level] += was - is_
            if any(cells):
                holding.bound_by_node[node] = cells
            else:
                del holding.bound_by_node[node]
        if used:
            holding.used_by_node[node] = used
        else:
            holding.used_by_node.pop(node, None)

    def list_cell_sizes(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Cells as their sizes, the largest first."""
        return tuple(list_sizes(counts, self.levels))
