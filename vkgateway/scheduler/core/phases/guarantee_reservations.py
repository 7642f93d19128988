"""Part of a guarantee that is reserved for an aged gang while later gangs of its tenant use it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.guarantees.guarantee_reservation import GuaranteeReservation, NodeUse
from vkgateway.scheduler.core.guarantees.guarantee_sums import may_hold
from vkgateway.scheduler.core.phases.gang_placement import placement_in_guarantee
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.gang_rank import is_ranked_after
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.tenant_usage import sum_requests
from vkgateway.scheduler.core.snapshot import Pod


@dataclass(frozen=True, slots=True)
class _LaterGang:
    """A guaranteed gang that was created later than the waiting gang."""

    started: float
    """Time of its start, in seconds since the epoch."""
    name: str
    pods: tuple[Pod, ...]
    uses: tuple[NodeUse, ...]
    """Its use of the guarantee, by pod."""


def reserve_guarantee(state: CycleState, pools: Iterable[PoolState], pending: PendingGang) -> None:
    """Reserve a part of a guarantee for an aged gang if only later gangs of its tenant block it. Otherwise such gangs
    would fill what others of them leave, and the gang would never start. It may borrow until then.
    """
    if not state.has_aged(pending.gang):
        return
    for pool_state in pools:
        if pending.tenant in pool_state.reservations.guarantees:
            return
        found = _find_reservation(state, pool_state, pending)
        if found is not None:
            pool_state.reservations.reserve_guarantee(found)
            return


def _find_reservation(state: CycleState, pool_state: PoolState, pending: PendingGang) -> GuaranteeReservation | None:
    """Return what is free once the first of the later gangs have ended, the oldest first, as few as suffice. So each
    cycle reserves the same part, even if other gangs start in the rest.
    """
    later, unit = _later_gangs(state, pool_state, pending), pool_state.pool.unit_resource
    held = sum(pod.shape.amount_of(unit) for each in later for pod in each.pods)
    needed = sum(pod.shape.amount_of(unit) for pod in pending.min_members)
    if not later or pool_state.guarantees.units_left(pending.tenant) + held < needed:
        return None
    nominated_by = cache(lambda count: _nominated_uses(pool_state, pending, later[:count]))
    if nominated_by(len(later)) is None:
        return None
    number = bisect_left(range(len(later)), True, key=lambda count: nominated_by(count) is not None)
    leaves, nominated = later[:number], nominated_by(number)
    assert nominated is not None
    ends = [pool_state.expected_ends.end_of(pod.uid) for each in leaves for pod in each.pods]
    known = [end for end in ends if end is not None]
    return GuaranteeReservation(
        gang=pending.gang,
        awaited=tuple(hold for each in leaves for hold in each.uses),
        nominated=tuple(nominated),
        start=max(known, default=state.now) if len(known) == len(ends) else None,
    )


def _nominated_uses(pool_state: PoolState, pending: PendingGang, leaves: Sequence[_LaterGang]) -> list[NodeUse] | None:
    """Return where the gang fits after the end of these later gangs and of all borrowing pods; None: nowhere."""
    quota, unit = pool_state.tenant_usage.quotas.get(pending.tenant), pool_state.pool.unit_resource
    if quota is None:
        return None
    with pool_state.trial():
        pool_state.remove_evictable()
        for each in leaves:
            for pod, (node, amount) in zip(each.pods, each.uses, strict=True):
                pool_state.guarantees.release(pending.tenant, node, amount)
                if pod.uid not in pool_state.terminating_pods and node in pool_state.node_resources.nodes:
                    pool_state.node_resources.remove_pods(node, pod.shape)
        gone = sum_requests(pod for each in leaves for pod in each.pods)
        found = None
        if may_hold(pool_state.guarantee_usage, quota, pending.gang, pending.min_members, freed=gone):
            placement = placement_in_guarantee(pool_state, pending, pending.min_members)
            nodes = placement(pool_state.node_resources)
            found = (
                [(nodes[pod.uid], pod.shape.amount_of(unit)) for pod in pending.min_members]
                if nodes is not None
                else None
            )
    return found


def _later_gangs(state: CycleState, pool_state: PoolState, ahead: PendingGang) -> list[_LaterGang]:
    """Return the tenant's later gangs that are inside its guarantee, or will be, in the order of their starts."""
    names = {*pool_state.gang_index.guaranteed.get(ahead.tenant, ()), *state.guaranteed_starts.get(ahead.tenant, ())}
    unit, found = pool_state.pool.unit_resource, []
    for name in sorted(names):
        gang = state.gangs[name]
        if not is_ranked_after(gang, ahead.gang):
            continue
        given = _assigned_nodes(state, pool_state, name)
        nodes = [(pod, pod.node if pool_state.gang_index.has_pod(pod) else given.get(pod.uid, "")) for pod in gang.pods]
        held = [(pod, node) for pod, node in nodes if node and pool_state.guarantee.is_guaranteed(pod.uid)]
        if held:
            since = max(pod.since if pool_state.gang_index.has_pod(pod) else state.now for pod, _ in held)
            holds = tuple((node, pod.shape.amount_of(unit)) for pod, node in held)
            found.append(_LaterGang(since, name, tuple(pod for pod, _ in held), holds))
    return sorted(found, key=lambda each: (each.started, each.name))


def _assigned_nodes(state: CycleState, pool_state: PoolState, name: str) -> Mapping[str, str]:
    """Return the nodes of a gang that starts in this pool, or is planned for it."""
    start, plan = state.started.get(name), state.plans.get(name)
    if start is not None and start.pool_state is pool_state:
        return start.nodes
    return plan.nodes if plan is not None and plan.pool == pool_state.pool.key else {}
