"""Use of guarantees: borrowing gangs are promoted where they run, and pending gangs start, by eviction if needed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.guarantees.guarantee_sums import may_hold, may_hold_any
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement, GuaranteeReservation, NodeUse
from vkgateway.scheduler.core.phases.feasibility import is_impossible
from vkgateway.scheduler.core.phases.gang_placement import placement_in_guarantee
from vkgateway.scheduler.core.phases.multi_pool_gangs import place_parts, undecided_parts
from vkgateway.scheduler.core.phases.plan_search import CandidatePlan, find_candidate_plan
from vkgateway.scheduler.core.phases.pool_choice import (
    guaranteed_placements,
    plan_in_best_pool,
    start_in_best_pool,
)
from vkgateway.scheduler.core.phases.tenant_preemption import yields_to_planned
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.preemption.eviction_units import select_min_members
from vkgateway.scheduler.core.queueing.gang_rank import is_ranked_after, priority_key
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.tenant_usage import sum_requests
from vkgateway.scheduler.core.snapshot import GUARANTEED, PLACED, WAITING, Gang, Pod


def start_guaranteed_gangs(state: CycleState) -> None:
    """Start gangs inside their tenants' guarantees, or plan them by eviction; tenants do not wait for each other. A
    running gang that borrows is queued, too: it is promoted if the guarantee holds it when its rank is reached.
    """
    queue = _build_queue(state)
    _promote_first(state, queue)
    failed_classes: set[tuple[str, int]] = set()
    for entry in queue:
        pending = entry.pending_gang
        if pending is None:
            if entry.pool_state is not None:
                _promote_pods(entry.pool_state, entry.gang)
        elif (pending.tenant, pending.equivalence_class) not in failed_classes:
            (_schedule_gang if pending.gang.part_info is None else _schedule_parts)(state, pending, failed_classes)


def _promote_first(state: CycleState, queue: Sequence[_QueueEntry]) -> None:
    """Promote running gangs that come before all pending gangs that may use the same guarantee. Promotion precedes
    evictions, or another tenant's guarantee could reclaim pods that guarantees hold already.
    """
    left = {entry.gang.tenant for entry in queue if entry.pending_gang is None}
    for entry in queue if left else ():
        tenant, pending = entry.gang.tenant, entry.pending_gang
        if tenant not in left:
            continue
        if pending is None:
            if entry.pool_state is not None:
                _promote_pods(entry.pool_state, entry.gang)
        elif _may_use_guarantee(state, pending):
            left.discard(tenant)


def _promotable_gangs(pool_state: PoolState) -> list[Gang]:
    """Return the gangs of the guaranteed band with borrowing pods whose tenant has unused guarantee."""
    return [gang for gang in pool_state.guarantee.borrowing_gangs() if may_hold_any(pool_state.guarantee_usage, gang)]


def _promote_pods(pool_state: PoolState, gang: Gang) -> None:
    """Promote the gang's running pods that the guarantee holds where they run. Min members are promoted together or not
    at all, and then the other pods one by one.
    """
    if not may_hold_any(pool_state.guarantee_usage, gang):
        return
    placed = [pod for pod in gang.pods if pool_state.gang_index.has_pod(pod) and pod.state is PLACED]
    core = select_min_members(gang, placed)
    chosen = {pod.uid for pod in core}
    missing = [pod for pod in core if not pool_state.guarantee.is_guaranteed(pod.uid)]
    if missing and not pool_state.guarantee.promote_pods(gang, [(pod, pod.node) for pod in missing]):
        return
    for pod in sorted(placed, key=lambda pod: (pod.rank, pod.uid)):
        if pod.uid not in chosen and not pool_state.guarantee.is_guaranteed(pod.uid):
            pool_state.guarantee.promote_pods(gang, [(pod, pod.node)])


def _may_use_guarantee(state: CycleState, pending: PendingGang) -> bool:
    """Return whether a pending gang uses or reserves the guarantee before later gangs of its tenant."""
    if state.has_aged(pending.gang) or pending.gang.short:
        return True
    pools = (pool_state for pool_state in state.usable_pools(pending) if not is_impossible(pool_state, pending))
    return any(pool_state.guarantee.has_guarantee_left(pending.gang, pending.min_members) for pool_state in pools)


class _QueueEntry(NamedTuple):
    """A pending gang, or a running gang that borrows, with its pool."""

    gang: Gang
    pending_gang: PendingGang | None = None
    pool_state: PoolState | None = None


def _build_queue(state: CycleState) -> list[_QueueEntry]:
    entries = [_QueueEntry(pending.gang, pending) for pending in state.guaranteed_gangs()]
    entries += [
        _QueueEntry(gang, None, pool_state)
        for pool_state in state.pool_states.values()
        for gang in _promotable_gangs(pool_state)
    ]
    return sorted(
        entries, key=lambda entry: (entry.gang.tenant, priority_key(entry.gang), entry.pending_gang is not None)
    )


def _schedule_gang(state: CycleState, pending: PendingGang, failed_classes: set[tuple[str, int]]) -> None:
    possible = [
        pool_state
        for pool_state in state.usable_pools(pending)
        if _is_possible(state, pool_state, pending) and pool_state.guarantee.has_no_borrower(pending.running)
    ]
    pools = [
        pool_state
        for pool_state in possible
        if pool_state.guarantee.has_guarantee_left(pending.gang, pending.min_members)
    ]
    if _start_now(state, pools, pending):
        return
    if _evict_cheapest(state, pools, pending):
        failed_classes.clear()
    else:
        reserve_guarantee(state, possible, pending)
        hold_for_pending(possible, pending)
        failed_classes.add((pending.tenant, pending.equivalence_class))


def _schedule_parts(state: CycleState, pending: PendingGang, failed_classes: set[tuple[str, int]]) -> None:
    """Start or plan all parts of a gang inside the guarantees of their pools."""
    parts = undecided_parts(state, pending)
    evicts = len(state.evicts)
    failed = (
        place_parts(state, parts, lambda pools, part: start_within_guarantee(state, pools, part)) if parts else None
    )
    if failed is not None:
        possible = [each for each in state.usable_pools(failed) if not is_impossible(each, failed)]
        reserve_guarantee(state, possible, failed)
        for part in parts:
            hold_for_pending([each for each in state.usable_pools(part) if not is_impossible(each, part)], part)
        failed_classes.update((part.tenant, part.equivalence_class) for part in parts)
    elif len(state.evicts) > evicts:
        failed_classes.clear()


def start_within_guarantee(state: CycleState, pools: Iterable[PoolState], pending: PendingGang) -> bool:
    """Start a gang in one of these pools inside its tenant's guarantee, or plan that by evicting others."""
    possible = (pool_state for pool_state in pools if _is_possible(state, pool_state, pending))
    allowed = [
        pool_state
        for pool_state in possible
        if pool_state.guarantee.has_guarantee_left(pending.gang, pending.min_members)
    ]
    return _start_now(state, allowed, pending) or _evict_cheapest(state, allowed, pending)


def _is_possible(state: CycleState, pool_state: PoolState, pending: PendingGang) -> bool:
    return not is_impossible(pool_state, pending) and not yields_to_planned(state, pool_state, pending)


def _start_now(state: CycleState, pools: Sequence[PoolState], pending: PendingGang) -> bool:
    """Start the gang where it fits best in free capacity; return whether it fits."""
    places = list(guaranteed_placements(pools, pending))
    if places:
        start_in_best_pool(state, pending, places)
    return bool(places)


def _evict_cheapest(state: CycleState, pools: Sequence[PoolState], pending: PendingGang) -> bool:
    """Plan the gang where its victims lose least; return whether any plan is possible."""

    def find_plan(pool_state: PoolState) -> CandidatePlan | None:
        placement = placement_in_guarantee(pool_state, pending, pending.min_members)
        candidates = pool_state.victims.preemption_candidates
        return find_candidate_plan(state, pool_state, pending, candidates, placement=placement)

    return plan_in_best_pool(state, pools, pending, find_plan)


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


def hold_places(state: CycleState) -> None:
    """Use guarantees, and free capacity there, for the members that short gangs miss, for this round.

    Without a hold, other gangs start in the place before the replacement exists: they have a pod already, and the
    controller needs seconds or minutes. The older gang comes first, as in the queue.
    """
    for gang in sorted(state.losing_gangs.values(), key=lambda gang: (gang.created, gang.id)):
        if gang.band is GUARANTEED and gang.id not in state.excluded_gangs:
            _hold_lost(state, gang)


def hold_for_pending(pools: Iterable[PoolState], pending: PendingGang) -> None:
    """Use what is left of the guarantee in the first of these pools for the min members of a short gang that cannot
    start yet. Otherwise other gangs would take each part of its place that becomes free. Nodes stay free for borrowing:
    the gang may wait for long, and evicts borrowing pods when its turn comes.
    """
    if not pending.gang.short:
        return
    for pool_state in pools:
        quota, unit = pool_state.tenant_usage.quotas[pending.tenant], pool_state.pool.unit_resource
        needed = sum(pod.shape.amount_of(unit) for pod in pending.min_members)
        if unit and needed <= quota.guarantee.get(unit, 0):
            if pool_state.reservations.held.get(pending.tenant) is not pending.gang:
                _hold_pods(pool_state, pending.gang, pending.min_members, nodes=False)
            return


def _hold_lost(state: CycleState, gang: Gang) -> None:
    """Hold the places of a gang's lost members, and of its pending pods, which cannot start without those."""
    lost = [pod for pod in gang.lost if pod.deadline > state.now and not pod.borrowed]
    pools = dict.fromkeys(pod.pool for pod in lost if pod.pool is not None)
    for number, key in enumerate(pools):
        pool_state = state.pool_states.get(key)
        if pool_state is not None and gang.tenant in pool_state.tenant_usage.quotas:
            waiting = [pod for pod in gang.pods if pod.state is WAITING] if not number else []
            _hold_pods(pool_state, gang, [*(pod for pod in lost if pod.pool == key), *waiting], nodes=True)


def _hold_pods(pool_state: PoolState, gang: Gang, pods: Iterable[Pod], *, nodes: bool) -> None:
    """Hold the places of pods, as far as the guarantee has them; with `nodes`, free capacity there, too."""
    for pod in sorted(pods, key=lambda pod: (pod.rank, pod.uid)):
        place = replace(pod, uid=f"place of {pod.uid}")
        node = _use_guarantee(pool_state, gang, place)
        if node is None:
            continue
        pool_state.reservations.held.setdefault(gang.tenant, gang)
        with pool_state.trial() as trial:
            pool_state.node_resources.add_pods(node, place.shape)
            if nodes and pool_state.fits_on_nodes([place], {place.uid: node}):
                trial.commit()


def _use_guarantee(pool_state: PoolState, gang: Gang, pod: Pod) -> str | None:
    """Use the guarantee for the place of a pod: on its old node, else on the best free node, else where borrowing pods
    make room. Return the node; None: the guarantee does not hold it.
    """
    if not pool_state.guarantee.has_guarantee_left(gang, [pod]):
        return None
    node: str | None = pod.node
    if not pool_state.guarantees.use(gang.tenant, pod.node, pod.shape.amount_of(pool_state.pool.unit_resource)):
        node = _find_node(pool_state, gang, pod)
    if node is not None:
        pool_state.guarantee.mark_guaranteed(gang.tenant, [pod], gang=gang.id)
        pool_state.tenant_usage.add_usage(gang.tenant, pod.shape, 1)
    return node


def _find_node(pool_state: PoolState, gang: Gang, pod: Pod) -> str | None:
    """Return a node inside the guarantee: in free capacity, else where borrowing pods make room. Use the guarantee."""
    placement = GuaranteedPlacement(pool_state.guarantees, gang.tenant, [pod])
    nodes = placement(pool_state.node_resources)
    if nodes is None:
        with pool_state.trial():
            pool_state.remove_evictable()
            nodes = placement(pool_state.node_resources)
    if nodes is None:
        return None
    placement.commit_placement(nodes, pool_state.pool.unit_resource)
    return nodes[pod.uid]
