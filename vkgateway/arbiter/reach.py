"""How much of each node a tenant's cells would let it use: for all nodes at once, as it depends on little but room."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vkgateway.arbiter.bindings import Bindings, Holding
from vkgateway.arbiter.cuts import WHOLE, Counts, covers, total


def reach(bindings: Bindings, holding: Holding) -> NDArray[np.int64]:
    """Thousandths that the tenant may use on each node of the pool on top of what it uses there, each by itself."""
    tally = bindings.tally
    known: dict[tuple[int, ...], int] = {}
    none = [0] * len(bindings.levels)
    kinds = sorted(tally.kinds)
    free = np.array([_units(bindings, holding, room, none, known) * WHOLE for room in kinds], dtype=np.int64)
    most: NDArray[np.int64] = free[np.searchsorted(kinds, tally.array)]
    for node in holding.used.keys() | holding.bound.keys():
        if tally.usable[node]:
            units = _units(bindings, holding, tally.rooms[node], bindings.bound(holding, node), known)
            most[node] = max(0, units * WHOLE - holding.used.get(node, 0))
    return most


def _units(bindings: Bindings, holding: Holding, room: int, bound: Counts, known: dict[tuple[int, ...], int]) -> int:
    """The most units that the tenant can have on a node with so much room left, where these cells are bound."""
    key = (room, *bound)
    if key not in known:
        low = total(bound, bindings.levels)
        high = low + min(room, total(holding.unused, bindings.levels))
        while low < high:
            middle = (low + high + 1) // 2
            if _can_have(bindings, holding, room, bound, middle):
                low = middle
            else:
                high = middle - 1
        known[key] = low
    return known[key]


def _can_have(bindings: Bindings, holding: Holding, room: int, bound: Counts, units: int) -> bool:
    levels = bindings.levels
    available = [here + free for here, free in zip(bound, holding.unused, strict=True)]
    whole = room + total(bound, levels)
    return any(
        bindings.tally.permits(room, whole - total(cells, levels), bound, cells)
        for cells in covers(available, levels, units)
    )
