"""Reservations in a pool for pending gangs, which each round makes again."""

from __future__ import annotations

from collections.abc import Collection

from vkgateway.scheduler.core.capacity.forecast import Reservation
from vkgateway.scheduler.core.guarantees.guarantee_reservation import GuaranteeReservation
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.snapshot import Gang


class PoolReservations:
    """Reservations of nodes, of tenants' limits and of tenants' guarantees."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.nodes: Reservation | None = None
        """Nodes for the first borrowing gang that does not fit."""
        self.limits: dict[str, str] = {}
        """By tenant, its aged gang for which the rest of its limit is reserved."""
        self.guarantees: dict[str, GuaranteeReservation] = {}
        """By tenant, what is reserved of its guarantee for its aged gang."""
        self.held: dict[str, Gang] = {}
        """By tenant, a gang for whose lost members a part of its guarantee is held; the part counts as used."""

    def clear(self) -> None:
        """Drop all reservations."""
        self.nodes = None
        self.limits.clear()
        self.guarantees = {}
        self.held.clear()

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

    def reserve_guarantee(self, reservation: GuaranteeReservation) -> None:
        """Reserve a part of a guarantee for a gang of the tenant."""
        self._journal.record(self._set_guarantees, dict(self.guarantees))
        self.guarantees[reservation.gang.tenant] = reservation

    def release_guarantee(self, gang: Gang) -> bool:
        """Drop the reservation of a guarantee that is for this gang; return whether there was one."""
        reservation = self.guarantees.get(gang.tenant)
        if reservation is None or reservation.gang is not gang:
            return False
        self._journal.record(self._set_guarantees, dict(self.guarantees))
        del self.guarantees[gang.tenant]
        return True

    def _set_guarantees(self, reservations: dict[str, GuaranteeReservation]) -> None:
        self.guarantees = reservations
