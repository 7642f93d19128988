"""Which tenant's cells are bound to which nodes, and what its pods use there; every change can be taken back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vkgateway.arbiter.cuts import WHOLE, Counts, covers, listed, smallest_cover, total, units
from vkgateway.arbiter.tally import Tally


class Holding:
    """One tenant's cells in a pool. Nodes are numbers, cells are counts by level."""

    __slots__ = ("bound", "tenant", "unused", "used", "version")

    def __init__(self, tenant: str, cells: Sequence[int]) -> None:
        self.tenant = tenant
        self.unused = list(cells)
        self.bound: dict[int, Counts] = {}
        self.used: dict[int, int] = {}
        """Thousandths that its guaranteed pods use on each node, in cells or not."""
        self.version = 0
        """Grows with each change."""


_Entry = tuple[Holding, int, Counts | None, int, int]


class Bindings:
    """All tenants' cells in one pool, with a journal: a trial costs what it touches."""

    def __init__(self, levels: Sequence[int], tally: Tally, nodes: Iterable[str]) -> None:
        self.levels = tuple(levels)
        self.tally = tally
        self.names = list(nodes)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.holdings: dict[str, Holding] = {}
        self._none = [0] * len(self.levels)
        self._journal: list[_Entry] = []
        self._given = self._state = self._latest = 0

    @property
    def state(self) -> tuple[int, int]:
        """What is bound and used, as a number: equal only where nothing differs; what is taken back has its old one."""
        return self._given, self._state

    def add_cells(self, tenant: str, cells: Sequence[int]) -> Holding:
        """Give a tenant cells, on top of what it has; they are unused."""
        holding = self.holding(tenant)
        for level, number in enumerate(cells):
            self.add_unused(holding, level, number)
        return holding

    def holding(self, tenant: str) -> Holding:
        """A tenant's cells; one that has no quota has none."""
        found = self.holdings.get(tenant)
        if found is None:
            found = self.holdings[tenant] = Holding(tenant, self._none)
        return found

    def add_unused(self, holding: Holding, level: int, number: int) -> None:
        """Give a tenant so many unused cells, or take them away where the number is negative; not in the journal."""
        holding.unused[level] += number
        holding.version += 1
        self._given += 1
        self.tally.want(level, number)

    def number(self, node: str) -> int:
        """A node's number; one that the pool does not have gets one, and no room."""
        found = self.numbers.get(node)
        if found is None:
            found = self.numbers[node] = self.tally.add_node()
            self.names.append(node)
        return found

    def bound(self, holding: Holding, node: int) -> Counts:
        """The tenant's cells that are bound to a node; not to be written to."""
        return holding.bound.get(node, self._none)

    def size(self, holding: Holding, node: int) -> int:
        """Units in the tenant's cells that are bound to a node."""
        counts = holding.bound.get(node)
        return total(counts, self.levels) if counts is not None else 0

    def spare(self, holding: Holding, node: int) -> int:
        """Thousandths that the tenant may still use inside cells bound to the node."""
        return max(0, self.size(holding, node) * WHOLE - holding.used.get(node, 0))

    def excess(self, holding: Holding, node: int) -> int:
        """Thousandths that the tenant's pods use on the node beyond its cells there."""
        return max(0, holding.used.get(node, 0) - self.size(holding, node) * WHOLE)

    def ways(self, holding: Holding, node: int, used: int) -> Iterator[Counts]:
        """What could be bound to the node to hold what is used, from the cells there and the unused ones.

        The last is of those there only: fewer cells may always be bound.
        """
        bound = self.bound(holding, node)
        available = [here + free for here, free in zip(bound, holding.unused, strict=True)]
        yield from covers(available, self.levels, units(used))
        fewer = smallest_cover(bound, self.levels, units(used))
        if fewer is not None:
            yield fewer

    def permits(self, holding: Holding, node: int, cells: Sequence[int]) -> bool:
        """Whether these may be bound to the node in place of what is: with room, and so that the rest can be bound."""
        old, tally = self.bound(holding, node), self.tally
        return tally.permits(tally.rooms[node], tally.room_after(node, old, cells), old, cells)

    def settle(self, holding: Holding, node: int, used: int) -> bool:
        """The tenant's pods use so much of the node: bind the cells that hold it with the fewest units to spare.

        False: there is no way that leaves room for everybody's unused cells; then nothing has changed.
        """
        for cells in self.ways(holding, node, used):
            if self.permits(holding, node, cells):
                self.put(holding, node, cells, used)
                return True
        return False

    def settle_part(self, holding: Holding, node: int) -> None:
        """Bind as many units as can be to what the tenant uses on a node in excess, the largest cells first."""
        need = units(self.excess(holding, node))
        for level, size in enumerate(self.levels):
            while need >= size and holding.unused[level]:
                cells = list(self.bound(holding, node))
                cells[level] += 1
                if not self.permits(holding, node, cells):
                    break
                self.put(holding, node, cells, holding.used[node])
                need -= size

    def put(self, holding: Holding, node: int, cells: Sequence[int], used: int) -> None:
        """Have just these cells bound to the node, and so much of it used; what was bound there is unused."""
        old = holding.bound.get(node)
        self._journal.append((holding, node, old, holding.used.get(node, 0), self._state))
        self._latest += 1
        self._state = self._latest
        self._write(holding, node, list(cells), used)

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Take back everything since the mark."""
        while len(self._journal) > mark:
            holding, node, cells, used, self._state = self._journal.pop()
            self._write(holding, node, self._none if cells is None else cells, used)

    def commit(self) -> None:
        """Nothing that was done up to now can be taken back any more; marks from before are void."""
        self._journal.clear()

    def _write(self, holding: Holding, node: int, cells: Counts, used: int) -> None:
        old = self.bound(holding, node)
        holding.version += 1
        if old != cells:
            self.tally.rebind(node, old, cells)
            for level, (was, is_) in enumerate(zip(old, cells, strict=True)):
                holding.unused[level] += was - is_
            if any(cells):
                holding.bound[node] = cells
            else:
                del holding.bound[node]
        if used:
            holding.used[node] = used
        else:
            holding.used.pop(node, None)

    def shown(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Cells as their sizes, the largest first."""
        return tuple(listed(counts, self.levels))
