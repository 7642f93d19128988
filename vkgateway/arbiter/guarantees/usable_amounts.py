"""How much of each node a tenant's cells would let it use: for all nodes at once, as it depends on little but room."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vkgateway.arbiter.guarantees.cell_bindings import CellBindings, TenantCells
from vkgateway.arbiter.guarantees.cell_sizes import MILLI_PER_UNIT, CellCounts, find_covers, total_units


def usable_amounts(bindings: CellBindings, holding: TenantCells) -> NDArray[np.int64]:
    """Thousandths that the tenant may use on each node of the pool on top of what it uses there, each by itself."""
    tally = bindings.cell_slack
    known: dict[tuple[int, ...], int] = {}
    none = [0] * len(bindings.levels)
    kinds = sorted(tally.nodes_by_free_units)
    free = np.array(
        [_usable_units(bindings, holding, room, none, known) * MILLI_PER_UNIT for room in kinds], dtype=np.int64
    )
    most: NDArray[np.int64] = free[np.searchsorted(kinds, tally.free_array)]
    for node in holding.used_by_node.keys() | holding.bound_by_node.keys():
        if tally.usable[node]:
            units = _usable_units(bindings, holding, tally.free_units[node], bindings.bound_cells(holding, node), known)
            most[node] = max(0, units * MILLI_PER_UNIT - holding.used_by_node.get(node, 0))
    return most


def _usable_units(
    bindings: CellBindings, holding: TenantCells, room: int, bound: CellCounts, known: dict[tuple[int, ...], int]
) -> int:
    """The most units that the tenant can have on a node with so much room left, where these cells are bound."""
    key = (room, *bound)
    if key not in known:
        low = total_units(bound, bindings.levels)
        high = low + min(room, total_units(holding.unused, bindings.levels))
        while low < high:
            middle = (low + high + 1) // 2
            if _can_use(bindings, holding, room, bound, middle):
                low = middle
            else:
                high = middle - 1
        known[key] = low
    return known[key]


def _can_use(bindings: CellBindings, holding: TenantCells, room: int, bound: CellCounts, units: int) -> bool:
    levels = bindings.levels
    available = [here + free for here, free in zip(bound, holding.unused, strict=True)]
    whole = room + total_units(bound, levels)
    return any(
        bindings.cell_slack.allows_change(room, whole - total_units(cells, levels), bound, cells)
        for cells in find_covers(available, levels, units)
    )
