"""Placement of the pods of a pending gang: on its allowed nodes, in free capacity or inside its guarantee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkgateway.scheduler.core.capacity.node_fit import BoolArray
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.phases.idle_reserve import leaves_reserve
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Pod


def allowed_nodes(
    pool_state: PoolState, pending: PendingGang, nodes: Mapping[str, str] | None = None
) -> BoolArray | None:
    """Return the mask of nodes for the gang's other pods, near the placed pods or these nodes; None: all nodes."""
    level = pending.gang.required_level
    if not level:
        return None
    there = [pod.node for pod in pending.placed_pods if pod.node in pool_state.node_resources.nodes] or list(
        (nodes or {}).values()
    )
    return pool_state.node_resources.nodes.domain_mask(there[0], level) if there else None


def place_borrowed(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Place these pods, which borrow, in free capacity; None: they do not fit. Among equal nodes, those without
    guaranteed pods come first: guaranteed pods start beside others without evictions.
    """
    return _place_among(pool_state, pending, pods, allowed_nodes(pool_state, pending))


def place_borrowed_last(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Place these pods as `place_borrowed` does. In a pool with a reserve, nodes with guaranteed pods are used last:
    guaranteed pods start there without evictions.
    """
    if pool_state.facts.idle_reserve:
        allowed = pool_state.node_resources.nodes.mask_of(allowed_nodes(pool_state, pending))
        nodes = _place_among(pool_state, pending, pods, allowed & pool_state.guarantee.unused_nodes)
        if nodes is not None:
            return nodes
    return place_borrowed(pool_state, pending, pods)


def _place_among(
    pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod], among: BoolArray | None
) -> dict[str, str] | None:
    return place_pods(
        pool_state.node_resources,
        pods,
        required_level=pending.gang.required_level,
        preferred_level=pending.gang.preferred_level,
        among=among,
        preferred_nodes=pool_state.guarantee.unused_nodes,
    )


def place_keeping_reserve(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Place these pods as `place_borrowed` does; None also if the gang would use the pool's reserve."""
    with pool_state.trial() as trial:
        nodes = place_borrowed_last(pool_state, pending, pods)
        if nodes is None or leaves_reserve(pool_state, pending, pods):
            trial.commit()
            return nodes
    return None


def placement_in_guarantee(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> GuaranteedPlacement:
    """Return the placement search for these pods inside their tenant's guarantee."""
    gang = pending.gang
    return GuaranteedPlacement(
        pool_state.guarantees,
        pending.tenant,
        pods,
        required_level=gang.required_level,
        preferred_level=gang.preferred_level,
        among=allowed_nodes(pool_state, pending),
        reservation=pool_state.guarantee.reserved_ahead(gang),
    )
