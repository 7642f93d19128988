"""Cells that a tenant's gang waits for and will be placed in: its later gangs must leave it just these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkgateway.arbiter.guarantees.cells import PoolCells
from vkgateway.arbiter.snapshot import Gang

CellUse = tuple[str, int]
"""A node, and thousandths of the pool's unit that are used there inside cells."""


@dataclass(frozen=True, slots=True)
class CellReservation:
    """The nominated placement of a gang, and what it waits for."""

    gang: Gang
    awaited: Sequence[CellUse]
    """What later gangs of its tenant hold, that must end first."""
    nominated: Sequence[CellUse]
    """What the gang will hold."""
    start: float | None
    """When all that has ended (seconds since the epoch); None: not known."""

    def apply_to(self, cells: PoolCells) -> bool:
        """Change the cells to what they are once the gang has started; False: they no longer allow it."""
        tenant = self.gang.tenant
        try:
            for node, amount in self.awaited:
                cells.release_cells(tenant, node, amount)
        except ValueError:
            return False  # Some of it has left by now, or counts as borrowing.
        return all(cells.allocate_cells(tenant, node, amount) for node, amount in self.nominated)
