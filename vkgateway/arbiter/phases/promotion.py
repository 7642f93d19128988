"""Running work that borrows and has a place in its tenant's unused cells: it counts as inside them from then on."""

from __future__ import annotations

from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.preemption.eviction_units import select_min_members
from vkgateway.arbiter.snapshot import PLACED, Gang


def promotable_gangs(standing: PoolState) -> list[Gang]:
    """Gangs of the guaranteed band of which something runs and borrows, where their tenant's cells have room."""
    return [gang for gang in standing.borrowing_gangs() if standing.guarantee_usage.has_room(gang.tenant, gang)]


def promote_pods(standing: PoolState, gang: Gang) -> None:
    """What of it runs is inside from now on, where unused cells hold it as it stands.

    First its core, all of it or none; then its other pods one by one.
    """
    if not standing.guarantee_usage.has_room(gang.tenant, gang):
        return
    placed = [pod for pod in gang.pods if standing.has_pod(pod) and pod.state is PLACED]
    core = select_min_members(gang, placed)
    chosen = {pod.uid for pod in core}
    missing = [pod for pod in core if not standing.is_guaranteed(pod.uid)]
    if missing and not standing.promote_pods(gang, [(pod, pod.node) for pod in missing]):
        return
    for pod in sorted(placed, key=lambda pod: (pod.rank, pod.uid)):
        if pod.uid not in chosen and not standing.is_guaranteed(pod.uid):
            standing.promote_pods(gang, [(pod, pod.node)])
