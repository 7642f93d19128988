"""What a tenant's limit leaves, kept for its own gang that is ahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import Pod


def reserve_limit(ledger: CycleState, pools: Iterable[PoolState], ask: PendingGang) -> None:
    """Keep a limit for a gang that has waited for long, if only what its tenant brought after it uses that up."""
    if not ledger.has_aged(ask.gang):
        return
    for standing in pools:
        if standing.exceeded_limits(ask.tenant, ask.min_members) and _is_blocked_by_later_work(standing, ask):
            standing.limit_reservations.setdefault(ask.tenant, ask.gang.id)
            return


def exceeds_reserved_limit(ledger: CycleState, standing: PoolState, ask: PendingGang, pods: Sequence[Pod]) -> bool:
    """Whether these pods would use up what their tenant's limit leaves for its own gang that is ahead of them.

    Who will have gone in time does not; but times may prove wrong again and again, so a gang that has waited for long
    depends on nobody's.
    """
    if not standing.limit_reservations and standing.reservation is None:
        return False
    ahead = ledger.pending_gangs.get(standing.limit_reservations.get(ask.tenant, ""))
    if ahead is not None and ahead is not ask:
        missing = standing.exceeded_limits(ask.tenant, [*ahead.min_members, *pods])
        return any(pod.shape.amount_of(name) for pod in pods for name in missing)
    kept = standing.reservation
    ahead = ledger.pending_gangs.get(kept.gang) if kept is not None else None
    if kept is None or ahead is None or ahead is ask or ahead.tenant != ask.tenant:
        return False
    if not ledger.has_aged(ahead.gang) and kept.can_backfill(standing.expected_ends, ask.gang, ledger.now):
        return False
    return bool(standing.exceeded_limits(ask.tenant, [*ahead.min_members, *pods]))


def _is_blocked_by_later_work(standing: PoolState, ask: PendingGang) -> bool:
    gone = {name: held.item(0) for name, held in standing.discounted_usage_of(ask.gang).items()}
    return not standing.excess_over_limit(ask.tenant, ask.min_members, [gone])
