"""Backfill: placement of borrowing gangs beside reserved nodes and the pool's idle reserve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.phases.gang_placement import place_borrowed_last
from vkgateway.scheduler.core.phases.idle_reserve import leaves_reserve
from vkgateway.scheduler.core.phases.pool_choice import fits_guarantee, measure_fit
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import GUARANTEED, Pod


class Placement(NamedTuple):
    """Nodes on which pods can start now, and the gang for which they are reserved, if any."""

    nodes: dict[str, str]
    reserved_for: str = ""


def take_placement(
    state: CycleState, pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]
) -> Placement | None:
    """Take free nodes for these pods that are not reserved for another gang, or are lent; None: they do not fit."""
    nodes = _take_backfill(state, pool_state, pending, pods)
    if nodes is not None:
        return Placement(nodes)
    reservation = pool_state.reservations.nodes
    # The reservation may soon evict what it lends, and with it the pods of the gang that run elsewhere.
    is_whole = pending.gang.part_info is None and not pending.placed_pods
    if reservation is not None and is_whole and reservation.can_lend_to(pending.gang, state.now):
        nodes = _take_nodes(pool_state, pending, pods)
        if nodes is not None:
            return Placement(nodes, state.gangs[reservation.gang].whole_id)
    return None


def start_placed(
    state: CycleState, pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod], place: Placement
) -> None:
    """Start these pods where a place was taken."""
    nodes, may_enter = place.nodes, pending.gang.band is GUARANTEED
    if pending.min_members:
        may_enter = may_enter and pool_state.guarantee.has_no_borrower(pending.running)
    guaranteed = may_enter and pool_state.guarantee.promote_pods(pending.gang, [(pod, nodes[pod.uid]) for pod in pods])
    state.start_pods(pending, pool_state, pods, nodes, guaranteed=guaranteed, behind=place.reserved_for)


def placement_rank(pool_state: PoolState, pending: PendingGang, place: Placement) -> tuple[bool, bool, int, int]:
    """Return a rank, the smaller the better: within the guarantee, not on reserved nodes, and the best fit."""
    return (
        not fits_guarantee(pool_state, pending, place.nodes),
        bool(place.reserved_for),
        *measure_fit(pool_state.node_resources, pending.min_members, place.nodes),
    )


def find_backfill(
    state: CycleState, pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]
) -> dict[str, str] | None:
    """Return nodes that the reservation does not need. Nothing is taken."""
    with pool_state.trial():
        return _take_backfill(state, pool_state, pending, pods)


def _take_backfill(
    state: CycleState, pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]
) -> dict[str, str] | None:
    """Return nodes that the reservation does not need, and take them."""
    reservation = pool_state.reservations.nodes
    with pool_state.trial() as trial:
        nodes = _take_nodes(pool_state, pending, pods)
        if nodes is not None and _may_use_reserved(state, pool_state, pending):
            trial.commit()
            return nodes
    if nodes is None or reservation is None:
        return None
    with pool_state.trial():
        reservation.withhold_needed(pool_state.node_resources)
        nodes = _take_nodes(pool_state, pending, pods)
    if nodes is None:
        reservation.refused_classes.add(pending.equivalence_class)
    else:
        pool_state.add_pods(pods, nodes)
    return nodes


def _may_use_reserved(state: CycleState, pool_state: PoolState, pending: PendingGang) -> bool:
    """Return whether the gang ends before the reservation starts.

    A part of a gang may have to wait for another part, so its end is not known.
    """
    reservation = pool_state.reservations.nodes
    return reservation is None or (
        pending.gang.part_info is None and reservation.can_backfill(pool_state.expected_ends, pending.gang, state.now)
    )


def _take_nodes(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Return free nodes beside the pool's reserve, or nodes on which the gang is within its guarantee; take them. Nodes
    that a reservation withholds do not count as idle. Otherwise later gangs would use up what the first one must
    leave.
    """
    with pool_state.trial() as trial:
        nodes = place_borrowed_last(pool_state, pending, pods)
        if (
            nodes is None
            or leaves_reserve(pool_state, pending, pods)
            or (pods is pending.min_members and fits_guarantee(pool_state, pending, nodes))
        ):
            trial.commit()
            return nodes
    return None
