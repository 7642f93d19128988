"""How far tenants are beyond their guarantees, as it counts for each of their gangs that wait for their turn."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from vkgateway.arbiter.capacity.node_fit import FloatArray, IntArray
from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.order import is_ranked_after
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import Gang, Pod, PoolKey


def fair_share(ledger: CycleState, ask: PendingGang) -> float:
    """The tenant's share in the pool that the gang likes best; the largest of those of its parts."""
    liked = _preferred_pools(ledger, ask)
    if len(liked) == 1:
        return liked[0].dominant_share(ask.tenant)
    return max([standing.dominant_share(ask.tenant) for standing in liked]) if liked else 0.0


class FairShares:
    """The shares by which those that wait have their turns.

    Against a gang that has waited for the age cap does not count what its own tenant brought after it: else small work
    that flows past it would put off its turn for ever. The tenant gets no more by it, for against all its other gangs
    it counts. Nor does what leaves: its room is what the gang waits for.
    """

    def __init__(self, ledger: CycleState, started: Iterable[tuple[Gang, Pod]] = ()) -> None:
        """`started`: pods that have just been started, and borrow."""
        self._cycle_state = ledger
        self._started: dict[str, list[tuple[Gang, Pod]]] = {}
        for gang, pod in started:
            self._started.setdefault(gang.tenant, []).append((gang, pod))

    def share_of(self, ask: PendingGang) -> float:
        """The share that counts for a gang."""
        if not self._cycle_state.has_aged(ask.gang):
            return fair_share(self._cycle_state, ask)
        return max(
            (self._aged_share(ask.gang, standing) for standing in _preferred_pools(self._cycle_state, ask)), default=0.0
        )

    def _aged_share(self, gang: Gang, standing: PoolState) -> float:
        without = standing.discounted_usage_of(gang)
        for other, pod in self._started.get(gang.tenant, ()):
            if is_ranked_after(other, gang):
                for name, amount in standing.pool.share_requests(pod.shape):
                    without[name] += amount
        return standing.shares_without(gang.tenant, without, 1).item(0)

    def shares_of(self, at: IntArray) -> FloatArray:
        """The same for several at once, as indices of `AcceptedSpecs.pending_table`: of one tenant, and for the same
        pools.
        """
        ledger, needy = self._cycle_state, self._cycle_state.pending_table
        first = needy.pending_gangs[at.item(0)]
        found: FloatArray = np.full(len(at), fair_share(ledger, first))
        aged = at[ledger.now - needy.created_times[at] >= ledger.policy.age_cap]
        if not len(aged):
            return found
        shares: FloatArray = np.zeros(len(aged))
        for standing in _preferred_pools(ledger, first):
            without = standing.discounted_usage(
                first.tenant, needy.created_times[aged], needy.is_low[aged], needy.base_priorities[aged]
            )
            np.maximum(shares, standing.shares_without(first.tenant, without, len(aged)), out=shares)
        found[np.isin(at, aged)] = shares
        return found


def _preferred_pools(ledger: CycleState, ask: PendingGang) -> list[PoolState]:
    """The pool that it likes best of those that its tenant may use; for each part of its gang one."""
    if ask.gang.part_info is None:
        first = _first_usable(ledger, ask, ask.allowed_pools)
        return [first] if first is not None else []
    found = (_first_usable(ledger, ask, pools) for pools in ask.part_pools)
    return [standing for standing in found if standing is not None]


def _first_usable(ledger: CycleState, ask: PendingGang, pools: Iterable[PoolKey]) -> PoolState | None:
    for key in pools:
        standing = ledger.pool_states.get(key)
        if standing is not None and standing.is_usable_by(ask):
            return standing
    return None
