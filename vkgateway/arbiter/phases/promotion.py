"""Promotion of running gangs that borrow, and that unused cells of their tenant can hold."""

from __future__ import annotations

from vkgateway.arbiter.pools.pool_state import PoolState
from vkgateway.arbiter.preemption.eviction_units import select_min_members
from vkgateway.arbiter.snapshot import PLACED, Gang


def promotable_gangs(pool_state: PoolState) -> list[Gang]:
    """Return the gangs of the guaranteed band with borrowing pods whose tenant has unused guarantee."""
    return [
        gang
        for gang in pool_state.guarantee.borrowing_gangs()
        if pool_state.guarantee_usage.has_room(gang.tenant, gang)
    ]


def promote_pods(pool_state: PoolState, gang: Gang) -> None:
    """Promote the gang's running pods that unused cells hold where they run. Min members are promoted together or not
    at all, and then the other pods one by one.
    """
    if not pool_state.guarantee_usage.has_room(gang.tenant, gang):
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
