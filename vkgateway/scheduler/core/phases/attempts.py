"""Memory of failed attempts: what failed for one gang is not tried again for an equal gang."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang

T = TypeVar("T")


class Attempts:
    """Failed attempts of a phase in which free capacity only shrinks, until `clear`."""

    def __init__(self, state: CycleState) -> None:
        self._state = state
        self._failed: set[Hashable] = set()

    def clear(self) -> None:
        """Drop all failures: more capacity is free."""
        self._failed.clear()

    def has_failed(self, key: Hashable) -> bool:
        """Return whether an attempt with this key has failed."""
        return key in self._failed

    def add_failed(self, key: Hashable) -> None:
        """Record a failed attempt."""
        self._failed.add(key)

    def try_once(
        self, question: Hashable, pool_state: PoolState, pending: PendingGang, attempt: Callable[[], T | None]
    ) -> T | None:
        """Return the result of an attempt, unless it failed for an equal gang. A unique gang has no equals."""
        if pending.gang.part_info is not None:
            return attempt()  # What is free for it may be another part's in the next attempt.
        key: Hashable = question, pool_state.pool.key, pending.equivalence_class
        if key in self._failed and not self._is_unique_in(pool_state, pending):
            return None
        found = attempt()
        if found is None and not self._is_unique_in(pool_state, pending):
            self._failed.add(key)
        return found

    def is_unique(self, pending: PendingGang) -> bool:
        """Return whether the gang has no equals, because some of its pods run or victims terminate for it."""
        return any(self._is_unique_in(pool_state, pending) for pool_state in self._state.usable_pools(pending))

    def _is_unique_in(self, pool_state: PoolState, pending: PendingGang) -> bool:
        name = pending.gang.whole_id
        return (
            bool(pending.placed_pods)
            or name in pool_state.victims.backfilled_gangs
            or bool(self._state.notified.for_gang(name, pool_state))
        )
