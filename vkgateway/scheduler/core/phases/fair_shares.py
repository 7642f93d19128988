"""Shares of tenants beyond their guarantees, as they count for each pending gang."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import FloatArray, IntArray
from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.gang_rank import is_ranked_after
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.pending_table import PendingTable
from vkgateway.scheduler.core.snapshot import Gang, Pod, PoolKey


def fair_share(state: CycleState, pending: PendingGang) -> float:
    """Return the tenant's fair share in the gang's preferred pool; of a gang in parts, the largest share."""
    preferred = _preferred_pools(state, pending)
    if len(preferred) == 1:
        return preferred[0].tenant_usage.dominant_share(pending.tenant)
    return (
        max([pool_state.tenant_usage.dominant_share(pending.tenant) for pool_state in preferred]) if preferred else 0.0
    )


class CurrentShares:
    """The tenants' shares as they are now, for the queue order of the gangs in a table."""

    def __init__(self, state: CycleState, table: PendingTable) -> None:
        self._cycle_state = state
        self._table = table

    def share_of(self, pending: PendingGang) -> float:
        """Return the share that counts for a gang."""
        return fair_share(self._cycle_state, pending)

    def shares_of(self, at: IntArray) -> FloatArray:
        """Return the shares for several gangs of one tenant with the same pools, given as indices of the table."""
        return np.full(len(at), fair_share(self._cycle_state, self._table.pending_gangs[at.item(0)]))


class FairShares(CurrentShares):
    """The tenants' shares for the queue order of all pending gangs.

    For a gang that has waited for the age cap, usage that its tenant added later does not count: otherwise a stream of
    small gangs would delay a large one forever. The tenant gains nothing, since that usage counts for its other gangs.
    Terminating pods do not count either: the gang waits for their capacity.

    Of the past share, only what the tenant used before the gang was created may count. It is not known apart from the
    rest, but it is at most 1, decayed over the time that the gang waits. So the past delays no gang forever either.
    """

    def __init__(self, state: CycleState, started: Iterable[tuple[Gang, Pod]] = ()) -> None:
        """`started`: borrowing pods that start in this cycle."""
        super().__init__(state, state.pending_table)
        self._started: dict[str, list[tuple[Gang, Pod]]] = {}
        for gang, pod in started:
            self._started.setdefault(gang.tenant, []).append((gang, pod))

    def share_of(self, pending: PendingGang) -> float:
        """Return the share that counts for a gang."""
        if not self._cycle_state.has_aged(pending.gang):
            return super().share_of(pending)
        return max(
            (self._aged_share(pending.gang, pool_state) for pool_state in _preferred_pools(self._cycle_state, pending)),
            default=0.0,
        )

    def _aged_share(self, gang: Gang, pool_state: PoolState) -> float:
        without = pool_state.usage_by_age.discounted_usage_of(gang)
        for other, pod in self._started.get(gang.tenant, ()):
            if is_ranked_after(other, gang):
                for name, amount in pool_state.pool.share_requests(pod.shape):
                    without[name] += amount
        past = self._aged_past(pool_state, gang.tenant, np.array([gang.created]))
        return pool_state.tenant_usage.shares_without(gang.tenant, without, past).item(0)

    def _aged_past(self, pool_state: PoolState, tenant: str, created: FloatArray) -> FloatArray:
        """Return the past share that counts for each of a tenant's aged gangs, given their creation times."""
        past = pool_state.tenant_usage.past_share(tenant)
        if not past:
            return np.zeros(len(created))
        waited = np.maximum(0.0, self._cycle_state.now - created)
        found: FloatArray = np.minimum(past, 2.0 ** (-waited / self._cycle_state.policy.half_life))
        return found

    def shares_of(self, at: IntArray) -> FloatArray:
        """Return the shares for several gangs of one tenant with the same pools, given as indices of the table."""
        state, table = self._cycle_state, self._table
        first, found = table.pending_gangs[at.item(0)], super().shares_of(at)
        aged = at[state.now - table.created_times[at] >= state.policy.age_cap]
        if not len(aged):
            return found
        shares: FloatArray = np.zeros(len(aged))
        for pool_state in _preferred_pools(state, first):
            without = pool_state.usage_by_age.discounted_usage(
                first.tenant, table.created_times[aged], table.is_low[aged], table.base_priorities[aged]
            )
            past = self._aged_past(pool_state, first.tenant, table.created_times[aged])
            np.maximum(shares, pool_state.tenant_usage.shares_without(first.tenant, without, past), out=shares)
        found[np.isin(at, aged)] = shares
        return found


def _preferred_pools(state: CycleState, pending: PendingGang) -> list[PoolState]:
    """Return the first pool that the gang's tenant may use; one for each part of a gang in several pools."""
    if pending.gang.part_info is None:
        first = _first_usable(state, pending, pending.allowed_pools)
        return [first] if first is not None else []
    found = (_first_usable(state, pending, pools) for pools in pending.part_pools)
    return [pool_state for pool_state in found if pool_state is not None]


def _first_usable(state: CycleState, pending: PendingGang, pools: Iterable[PoolKey]) -> PoolState | None:
    for key in pools:
        pool_state = state.pool_states.get(key)
        if pool_state is not None and pending.tenant in pool_state.tenant_usage.quotas:
            return pool_state
    return None
