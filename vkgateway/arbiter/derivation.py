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

from vkgateway.arbiter.bindings import Bindings, Holding
from vkgateway.arbiter.cuts import Counts, smallest_cover, total, units
from vkgateway.arbiter.mending import enlarge, exchange


def derive(bindings: Bindings, order: Sequence[str]) -> None:
    """Bind cells to where they are used; `order` are the tenants, the first granted first.

    Uses must stand in the holdings, and no cell be bound. What no cell can hold stays in excess, and what is unused
    may be too much for the rooms: then cells must be reduced.
    """
    mark, slack = bindings.mark(), list(bindings.tally.slack)
    if _derive(bindings, order, generous=False) or _hopeless(bindings, slack):
        return
    bindings.undo(mark)
    if not _derive(bindings, order, generous=True):
        bindings.undo(mark)
        _derive(bindings, order, generous=False)


def _derive(bindings: Bindings, order: Sequence[str], *, generous: bool) -> bool:
    _Cover(bindings, order, generous=generous).all()
    level = bindings.tally.short()
    while level is not None and (enlarge(bindings, level) or exchange(bindings, level)):
        level = bindings.tally.short()
    return level is None


def _hopeless(bindings: Bindings, slack: list[int]) -> bool:
    """Whether there would be too little room even if no pod ran on a usable node; `slack` is from before any bound."""
    for holding in bindings.holdings.values():
        for node, cells in holding.bound.items():
            if not bindings.tally.usable[node]:
                for level, number in enumerate(cells):
                    for at in range(level, len(slack)):
                        slack[at] += number * bindings.levels[level]
    return min(slack) < 0


class _Cover:
    """Finds cells for what is used, tenant by tenant, and leaves the others' pods the room that they need at least."""

    def __init__(self, bindings: Bindings, order: Sequence[str], *, generous: bool) -> None:
        self._bindings = bindings
        self._generous = generous
        """Bind the largest cells that there is room for, not the smallest."""
        self._order = [bindings.holding(tenant) for tenant in order]
        self._reserved: dict[int, int] = defaultdict(int)
        """Units of a node that tenants whose turn has not come will need there."""

    def all(self) -> None:
        """Bind the cells of all tenants."""
        least = [self._least(holding) for holding in self._order]
        for needs in least:
            self._reserve(needs, 1)
        for holding, needs in zip(self._order, least, strict=True):
            self._reserve(needs, -1)
            self._one(holding)

    def _least(self, holding: Holding) -> dict[int, int]:
        """The fewest units that the tenant's cells can hold its pods in, on each node by itself."""
        levels, least = self._bindings.levels, {}
        for need in set(map(units, holding.used.values())):
            cells = smallest_cover(holding.unused, levels, need)
            least[need] = total(cells, levels) if cells is not None else need
        return {node: least[units(used)] for node, used in holding.used.items()}

    def _reserve(self, needs: Mapping[int, int], sign: int) -> None:
        for node, need in needs.items():
            self._reserved[node] += sign * need

    def _one(self, holding: Holding) -> None:
        bindings, mark = self._bindings, self._bindings.mark()
        if self._in_turn(holding):
            return
        missing = self._excess(holding)
        in_turn = dict(holding.bound)
        bindings.undo(mark)
        self._largest_first(holding)
        if self._excess(holding) >= missing:
            bindings.undo(mark)
            for node in sorted(in_turn, key=bindings.names.__getitem__):
                bindings.put(holding, node, in_turn[node], holding.used[node])

    def _excess(self, holding: Holding) -> int:
        return sum(self._bindings.excess(holding, node) for node in holding.used)

    def _has_room(self, holding: Holding, node: int, cells: Counts) -> bool:
        tally = self._bindings.tally
        if not tally.usable[node]:
            return True
        return tally.room_after(node, self._bindings.bound(holding, node), cells) >= self._reserved[node]

    def _in_turn(self, holding: Holding) -> bool:
        """A set for each node, the node with the most use first; whether all were found."""
        bindings, complete = self._bindings, True
        rooms, names = bindings.tally.rooms, bindings.names
        for node in sorted(holding.used, key=lambda node: (-holding.used[node], rooms[node], names[node])):
            used = holding.used[node]
            ways = bindings.ways(holding, node, used)
            for cells in reversed(list(ways)) if self._generous else ways:
                if self._has_room(holding, node, cells):
                    bindings.put(holding, node, cells, used)
                    break
            else:
                complete = False
        return complete

    def _largest_first(self, holding: Holding) -> None:
        """Each cell, the largest first, to the node that needs the most among those with room for it.

        It finds cells for all pods of a tenant wherever there are some: in any solution, the largest cell can change
        places with what is bound to that node, or with as much of it as the cell is large.
        """
        bindings = self._bindings
        need = {node: units(used) for node, used in holding.used.items()}
        for level, size in enumerate(bindings.levels):
            waiting = [(-wanted, bindings.names[node], node) for node, wanted in need.items() if wanted > 0]
            heapify(waiting)
            while waiting and holding.unused[level]:
                _, name, node = heappop(waiting)
                cells = list(bindings.bound(holding, node))
                cells[level] += 1
                if not self._has_room(holding, node, cells):
                    continue
                bindings.put(holding, node, cells, holding.used[node])
                need[node] -= size
                if need[node] > 0:
                    heappush(waiting, (-need[node], name, node))
