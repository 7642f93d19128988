"""Places of lost members: a short gang keeps its part of the guarantee until its controller has replaced them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import GUARANTEED, WAITING, Gang, Pod


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
