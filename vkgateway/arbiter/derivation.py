"""Which cells are bound where, told by nothing but the pods that run: so that a restart finds what was decided.

Each node gets the smallest set of its tenant's cells that holds the tenant's guaranteed pods there: a single pod shall
not hold a whole node. That is not always what was bound when the pods started. A tenant with cells of 8 and 4 whose
pods of 4 and 4 filled a whole node has one of them left: with 4 bound there, no other node may have room for the 8. So
where not all unused cells could be bound, larger ones are bound in place of smaller ones until they can.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from vkgateway.arbiter.bindings import Bindings, Holding
from vkgateway.arbiter.cuts import Counts, units


def derive(bindings: Bindings, order: Iterable[str]) -> None:
    """Bind cells to where they are used; `order` are the tenants, the first granted first.

    Uses must stand in the holdings, and no cell be bound. What no cell can hold stays in excess, and what is unused
    may be too much for the rooms: then cells must be reduced.
    """
    for tenant in order:
        _cover(bindings, bindings.holding(tenant))
    level = bindings.tally.short()
    while level is not None and _enlarge(bindings, level):
        level = bindings.tally.short()


def _cover(bindings: Bindings, holding: Holding) -> None:
    mark = bindings.mark()
    if _cover_smallest(bindings, holding):
        return
    missing = _excess(bindings, holding)
    smallest = dict(holding.bound)
    bindings.undo(mark)
    _cover_largest_first(bindings, holding)
    if _excess(bindings, holding) >= missing:
        bindings.undo(mark)
        for node in sorted(smallest, key=bindings.names.__getitem__):
            bindings.put(holding, node, smallest[node], holding.used[node])


def _excess(bindings: Bindings, holding: Holding) -> int:
    return sum(bindings.excess(holding, node) for node in holding.used)


def _cover_smallest(bindings: Bindings, holding: Holding) -> bool:
    """The smallest set for each node, the node with the most use first; whether all were found."""
    complete = True
    rooms, names = bindings.tally.rooms, bindings.names
    for node in sorted(holding.used, key=lambda node: (-holding.used[node], rooms[node], names[node])):
        used = holding.used[node]
        for cells in bindings.ways(holding, node, used):
            if bindings.has_room(holding, node, cells):
                bindings.put(holding, node, cells, used)
                break
        else:
            complete = False
    return complete


def _cover_largest_first(bindings: Bindings, holding: Holding) -> None:
    """Each cell, the largest first, to the node that needs the most among those with room for it.

    It finds cells for all pods of a tenant wherever there are some: in any solution, the largest cell can change
    places with what is bound to that node, or with as much of it as the cell is large.
    """
    need = {node: units(used) for node, used in holding.used.items()}
    for level in range(len(bindings.levels)):
        waiting = [(-units_, bindings.names[node], node) for node, units_ in need.items() if units_ > 0]
        heapify(waiting)
        while waiting and holding.unused[level]:
            _, name, node = heappop(waiting)
            cells = list(bindings.bound(holding, node))
            cells[level] += 1
            if not bindings.has_room(holding, node, cells):
                continue
            bindings.put(holding, node, cells, holding.used[node])
            need[node] -= bindings.levels[level]
            if need[node] > 0:
                heappush(waiting, (-need[node], name, node))


def _enlarge(bindings: Bindings, level: int) -> bool:
    """Bind larger cells in place of smaller ones while that helps at a level where room is short; whether any did."""
    helped = False
    for tenant in sorted(bindings.holdings):
        holding = bindings.holdings[tenant]
        for node in sorted(holding.bound, key=bindings.names.__getitem__):
            if bindings.tally.slack[level] >= 0:
                return True
            helped |= _enlarge_on(bindings, holding, node, level)
    return helped


def _enlarge_on(bindings: Bindings, holding: Holding, node: int, level: int) -> bool:
    used = holding.used[node]
    for cells in bindings.ways(holding, node, used):
        if bindings.has_room(holding, node, cells) and _helps(bindings, holding, node, cells, level):
            bindings.put(holding, node, cells, used)
            return True
    return False


def _helps(bindings: Bindings, holding: Holding, node: int, cells: Counts, level: int) -> bool:
    """Whether binding these instead makes room at the level, and leaves no other level short of room that was not."""
    tally, old = bindings.tally, bindings.bound(holding, node)
    changes = tally.changes(tally.rooms[node], tally.room_after(node, old, cells), old, cells)
    return changes[level] > 0 and all(
        change >= 0 or slack + change >= 0 for slack, change in zip(tally.slack, changes, strict=True)
    )
