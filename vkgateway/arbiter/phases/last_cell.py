"""A tenant's last unused cell of the largest size, which small gangs leave to large ones where they fit elsewhere."""

from __future__ import annotations

from collections.abc import Collection

from vkgateway.arbiter.pools.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang


def last_cell_waste(pool_state: PoolState, pending: PendingGang) -> float:
    """Return the units that the gang would leave over in the last unused cell; 0: it need not bind that one.

    It need not where a smaller unused cell holds it. It must where the bound cells have too little to spare.
    """
    cells, unit = pool_state.cells, pool_state.pool.unit_resource
    unused, largest = cells.unused_cells(pending.tenant), max(cells.levels, default=0)
    needed = sum(pod.shape.amount_of(unit) for pod in pending.min_members) / 1000
    if unused.get(largest, 0) != 1 or not 0 < needed < largest:
        return 0.0
    if any(needed <= size < largest for size in unused):
        return 0.0
    spare = sum(cells.spare_amount(pending.tenant, node) for node in cells.bound_cells(pending.tenant)) / 1000
    return largest - needed if spare >= needed else 0.0


def keeps_bound_cells(pool_state: PoolState, pending: PendingGang, nodes: Collection[str]) -> bool:
    """Return whether the gang was planned for cells in use on these nodes, to leave the last unused one alone."""
    return last_cell_waste(pool_state, pending) > 0 and pool_state.cells.bound_cells(pending.tenant).keys() >= set(
        nodes
    )
