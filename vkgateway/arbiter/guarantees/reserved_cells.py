"""Cells reserved for a waiting gang of a tenant, which its later gangs must not use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkgateway.arbiter.guarantees.cells import PoolCells
from vkgateway.arbiter.snapshot import Gang

CellUse = tuple[str, int]
"""Node, and thousandths of the pool's unit used there inside cells."""


@dataclass(frozen=True, slots=True)
class CellReservation:
    """Nominated placement of a gang, and the usage that must end before it starts."""

    gang: Gang
    awaited: Sequence[CellUse]
    """Usage of later gangs of its tenant that must end first."""
    nominated: Sequence[CellUse]
    """Usage of the gang after its start."""
    start: float | None
    """Time at which the awaited usage has ended (seconds since the epoch); None: unknown."""

    def apply_to(self, cells: PoolCells) -> bool:
        """Change the cells to their state after the gang's start; return False if they no longer allow it."""
        tenant = self.gang.tenant
        try:
            for node, amount in self.awaited:
                cells.release_cells(tenant, node, amount)
        except ValueError:
            return False  # Part of the awaited usage has ended or counts as borrowing.
        return all(cells.allocate_cells(tenant, node, amount) for node, amount in self.nominated)
