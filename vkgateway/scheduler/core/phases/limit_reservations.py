"""Reservation of the rest of a tenant's limit for its aged gang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Pod


def reserve_limit(state: CycleState, pools: Iterable[PoolState], pending: PendingGang) -> None:
    """Reserve a limit for an aged gang, if only later usage of its tenant uses that limit up."""
    if not state.has_aged(pending.gang):
        return
    for pool_state in pools:
        if pool_state.tenant_usage.exceeded_limits(pending.tenant, pending.min_members) and _is_blocked_by_later_work(
            pool_state, pending
        ):
            pool_state.reservations.reserve_limit(pending.tenant, pending.gang.id)
            return


def exceeds_reserved_limit(state: CycleState, pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> bool:
    """Return whether these pods would use what the tenant's limit leaves for a gang that comes first. Pods that end
    before that gang starts do not count. Such times can be wrong again and again, so they count for an aged gang.
    """
    if not pool_state.reservations.limits and pool_state.reservations.nodes is None:
        return False
    ahead = state.pending_gangs.get(pool_state.reservations.limits.get(pending.tenant, ""))
    if ahead is not None and ahead is not pending:
        missing = pool_state.tenant_usage.exceeded_limits(pending.tenant, [*ahead.min_members, *pods])
        return any(pod.shape.amount_of(name) for pod in pods for name in missing)
    reservation = pool_state.reservations.nodes
    ahead = state.pending_gangs.get(reservation.gang) if reservation is not None else None
    if reservation is None or ahead is None or ahead is pending or ahead.tenant != pending.tenant:
        return False
    if not state.has_aged(ahead.gang) and reservation.can_backfill(pool_state.expected_ends, pending.gang, state.now):
        return False
    return bool(pool_state.tenant_usage.exceeded_limits(pending.tenant, [*ahead.min_members, *pods]))


def _is_blocked_by_later_work(pool_state: PoolState, pending: PendingGang) -> bool:
    discounted = {
        name: held.item(0) for name, held in pool_state.usage_by_age.discounted_usage_of(pending.gang).items()
    }
    return not pool_state.tenant_usage.excess_over_limit(pending.tenant, pending.min_members, [discounted])
