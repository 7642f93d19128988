"""Amounts of each node that a tenant's cells allow, for all nodes together, grouped by free units."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vkgateway.arbiter.guarantees.cell_bindings import CellBindings, TenantCells
from vkgateway.arbiter.guarantees.cell_sizes import MILLI_PER_UNIT, CellCounts, find_covers, total_units


def usable_amounts(bindings: CellBindings, tenant_cells: TenantCells) -> NDArray[np.int64]:
    """Return the thousandths that the tenant may use on each node in addition to its usage, each node by itself."""
    cell_slack = bindings.cell_slack
    known: dict[tuple[int, ...], int] = {}
    no_cells = [0] * len(bindings.levels)
    kinds = sorted(cell_slack.nodes_by_free_units)
    amounts = np.array(
        [_usable_units(bindings, tenant_cells, free_units, no_cells, known) * MILLI_PER_UNIT for free_units in kinds],
        dtype=np.int64,
    )
    usable: NDArray[np.int64] = amounts[np.searchsorted(kinds, cell_slack.free_array)]
    for node in tenant_cells.used_by_node.keys() | tenant_cells.bound_by_node.keys():
        if cell_slack.usable[node]:
            units = _usable_units(
                bindings, tenant_cells, cell_slack.free_units[node], tenant_cells.bound_cells(node), known
            )
            usable[node] = max(0, units * MILLI_PER_UNIT - tenant_cells.used_by_node.get(node, 0))
    return usable


def _usable_units(
    bindings: CellBindings,
    tenant_cells: TenantCells,
    free_units: int,
    bound: CellCounts,
    known: dict[tuple[int, ...], int],
) -> int:
    """Return the most units that the tenant can have on a node with these free units and bound cells."""
    key = (free_units, *bound)
    if key not in known:
        low = total_units(bound, bindings.levels)
        high = low + min(free_units, total_units(tenant_cells.unused, bindings.levels))
        while low < high:
            middle = (low + high + 1) // 2
            if _can_use(bindings, tenant_cells, free_units, bound, middle):
                low = middle
            else:
                high = middle - 1
        known[key] = low
    return known[key]


def _can_use(bindings: CellBindings, tenant_cells: TenantCells, free_units: int, bound: CellCounts, units: int) -> bool:
    levels = bindings.levels
    available = [
        bound_count + unused_count for bound_count, unused_count in zip(bound, tenant_cells.unused, strict=True)
    ]
    total = free_units + total_units(bound, levels)
    return any(
        bindings.cell_slack.allows_change(free_units, total - total_units(cells, levels), bound, cells)
        for cells in find_covers(available, levels, units)
    )
