"""Start and reservation for the parts of one borrowing gang in several pools."""

from __future__ import annotations

from collections.abc import Sequence

from vkgateway.scheduler.core.capacity.forecast import Reservation
from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.phases.backfill import find_backfill
from vkgateway.scheduler.core.phases.gang_borrowing import GangBorrowing
from vkgateway.scheduler.core.phases.guaranteed_starts import start_within_guarantee
from vkgateway.scheduler.core.phases.limit_reservations import reserve_limit
from vkgateway.scheduler.core.phases.multi_pool_gangs import place_parts
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import GUARANTEED


class PartBorrowing:
    """Scheduling of all parts of a gang of which at least one borrows."""

    def __init__(self, state: CycleState, gangs: GangBorrowing) -> None:
        self._state = state
        self._gangs = gangs

    def start_together(self, parts: Sequence[PendingGang]) -> bool:
        """Start or plan all parts, inside guarantees where that is possible; else beside what is left of them.

        The nodes on which one part is inside its guarantee may be the only ones for another part.
        """
        ways = (
            (self._start_guaranteed_or_borrow, self._start_borrowing)
            if parts[0].gang.band is GUARANTEED
            else (self._start_borrowing,)
        )
        return any(place_parts(self._state, parts, way) is None for way in ways)

    def _start_guaranteed_or_borrow(self, pools: Sequence[PoolState], pending: PendingGang) -> bool:
        return start_within_guarantee(self._state, pools, pending) or self._start_borrowing(pools, pending)

    def _start_borrowing(self, pools: Sequence[PoolState], pending: PendingGang) -> bool:
        there = {pool_state.pool.key for pool_state in pools}
        allowed = [pool_state for pool_state in self._gangs.pools_within_limit(pending) if pool_state.pool.key in there]
        return self._gangs.start_now(allowed, pending) or self._gangs.reclaim_capacity(allowed, pending)

    def reserve_parts(self, parts: Sequence[PendingGang]) -> None:
        """Reserve nodes for each part that does not fit, and for the others what they need when these can start."""
        pools = {part.gang.id: list(self._gangs.pools_within_limit(part)) for part in parts}
        for part in parts:
            if not pools[part.gang.id]:
                reserve_limit(self._state, self._gangs.feasible_pools(part), part)
        if not all(pools.values()):
            return
        free = {part.gang.id: self._find_free_nodes(part, pools[part.gang.id]) for part in parts}
        short = [part for part in parts if free[part.gang.id] is None]
        found = {part.gang.id: self._gangs.earliest_reservation(part, pools[part.gang.id]) for part in short}
        aged = self._state.has_aged(parts[0].gang)
        if not short or not (aged or all(found.values())):
            return
        starts = [each[1].start if each is not None else None for each in found.values()]
        known = [start for start in starts if start is not None]
        last = max(known) if len(known) == len(starts) else None
        for part in parts:
            place = free[part.gang.id]
            if place is not None:
                pool_state, nodes = place
                found[part.gang.id] = (
                    pool_state,
                    Reservation.for_gang(part.gang, part.min_members, nodes, last, ends=pool_state.expected_ends),
                )
        for each in found.values():
            if each is not None and each[0].reservations.nodes is None:
                each[0].reservations.reserve_nodes(each[1])

    def _find_free_nodes(
        self, part: PendingGang, pools: Sequence[PoolState]
    ) -> tuple[PoolState, dict[str, str]] | None:
        """Return where a part fits now, beside what is reserved."""
        for pool_state in pools:
            nodes = find_backfill(self._state, pool_state, part, part.min_members)
            if nodes is not None:
                return pool_state, nodes
        return None
