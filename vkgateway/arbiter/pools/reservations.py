"""Reservations in a pool for pending gangs, which each round makes again."""

from __future__ import annotations

from collections.abc import Collection

from vkgateway.arbiter.capacity.forecast import Reservation
from vkgateway.arbiter.guarantees.reserved_cells import CellReservation
from vkgateway.arbiter.snapshot import Gang


class PoolReservations:
    """Reservations of nodes, of tenants' limits and of tenants' cells."""

    def __init__(self) -> None:
        self.nodes: Reservation | None = None
        """Nodes for the first borrowing gang that does not fit."""
        self.limits: dict[str, str] = {}
        """By tenant, its aged gang for which the rest of its limit is reserved."""
        self.cells: dict[str, CellReservation] = {}
        """By tenant, the cells that are reserved for its aged gang."""

    def clear(self) -> None:
        """Drop all reservations."""
        self.nodes = None
        self.limits.clear()
        self.cells = {}

    def reserve_nodes(self, reservation: Reservation) -> None:
        """Reserve nodes for a gang."""
        self.nodes = reservation

    def release_nodes(self, gangs: Collection[str]) -> None:
        """Drop the reservation of nodes if it is for one of these gangs."""
        if self.nodes is not None and self.nodes.gang in gangs:
            self.nodes = None

    def reserve_limit(self, tenant: str, gang: str) -> None:
        """Reserve what is left of a tenant's limit for a gang, unless it is reserved already."""
        self.limits.setdefault(tenant, gang)

    def reserve_cells(self, reservation: CellReservation) -> None:
        """Reserve cells for a gang of their tenant."""
        self.cells[reservation.gang.tenant] = reservation

    def release_cells(self, gang: Gang) -> bool:
        """Drop the reservation of cells that is for this gang; return whether there was one."""
        reservation = self.cells.get(gang.tenant)
        if reservation is None or reservation.gang is not gang:
            return False
        del self.cells[gang.tenant]
        return True

    def save_cells(self) -> dict[str, CellReservation]:
        """Return the reservations of cells."""
        return dict(self.cells)

    def restore_cells(self, saved: dict[str, CellReservation]) -> None:
        """Go back to earlier reservations of cells."""
        self.cells = saved
