"""Step 5: what is left goes to gangs that run with their minimum and can use more, pod by pod and in turn."""

from __future__ import annotations

from dataclasses import replace

from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.gang_parts import narrow_to_gang
from vkgateway.arbiter.guarantees.cell_placement import GuaranteedPlacement
from vkgateway.arbiter.phases.borrowing import find_backfill
from vkgateway.arbiter.phases.fair_shares import fair_share
from vkgateway.arbiter.phases.limit_reservations import exceeds_reserved_limit
from vkgateway.arbiter.phases.preemption_plans import allowed_nodes, place_keeping_reserve
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.preemption.eviction_units import select_min_members
from vkgateway.arbiter.queueing.order import queue_order
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import GUARANTEED, NOTIFIED, PLACED, Pod, PoolKey


def grow_gangs(ledger: CycleState) -> None:
    """Start pods beyond the minimum while there is room, one a turn; nobody is evicted for them."""
    names = [name for name in ledger.surplus_gangs if name not in ledger.excluded_gangs]
    growing = {name: ledger.pending_gangs[name] for name in names if _can_grow(ledger, ledger.pending_gangs[name])}
    while growing:
        grown: dict[str, PendingGang] = {}
        asks = [growing[name] for name in sorted(growing)]
        for ask in queue_order(asks, lambda ask: fair_share(ledger, ask), ledger.policy, ledger.now):
            if _start_next(ledger, ask) and len(ask.surplus) > 1:
                grown[ask.gang.id] = replace(ask, surplus=ask.surplus[1:])
        growing = grown


def _can_grow(ledger: CycleState, ask: PendingGang) -> bool:
    """Whether its minimum runs, and nothing of it has just been called in."""
    parts = ask.gang.part_ids
    leaving = any(pod.state is NOTIFIED for name in parts for pod in ledger.gangs[name].pods)
    evicted = any(evict.gang in parts for evict in ledger.evicts)
    waits = any(part.gang.id not in ledger.started for part in ledger.pending_parts(ask.gang))
    return not leaving and not evicted and not waits


def _start_next(ledger: CycleState, ask: PendingGang) -> bool:
    if ask.gang.part_info is not None:
        return any(_start_next_in(ledger, standing, ask) for standing in _pools_for_part(ledger, ask))
    started = ledger.started.get(ask.gang.id)
    standing = started.pool_state if started is not None else next(ledger.usable_pools(ask), None)
    return standing is not None and _start_next_in(ledger, standing, ask)


def _pools_for_part(ledger: CycleState, ask: PendingGang) -> list[PoolState]:
    """Return the pools that are tried for the next pod of a part: as in the next cycle, with what starts now placed."""
    there: dict[str, set[PoolKey]] = {}
    for name in ask.gang.part_ids:
        for pod in ledger.gangs[name].pods:
            key = ledger.pool_by_pod.get(pod.uid) or (pod.pool if pod.state in (PLACED, NOTIFIED) else None)
            if key is not None:
                there.setdefault(pod.role, set()).add(key)
    keys = narrow_to_gang(ask.allowed_pools, ask.surplus[0].role, there)
    clusters = {key[0] for found in there.values() for key in found}
    return [each for each in ledger.usable_pools(ask) if each.pool.key in keys and each.pool.key[0] in clusters]


def _start_next_in(ledger: CycleState, standing: PoolState, ask: PendingGang) -> bool:
    pod, started = ask.surplus[0], ledger.started.get(ask.gang.id)
    if standing.exceeded_limits(ask.tenant, [pod]) or exceeds_reserved_limit(ledger, standing, ask, [pod]):
        return False
    near = replace(ask, running=_placed_pods(ask, standing, started.nodes if started is not None else {}))
    nodes = _take_guaranteed_nodes(standing, near, pod)
    inside = nodes is not None
    if nodes is None:
        nodes = _find_borrowed_nodes(ledger, standing, near, pod)
    if nodes is None:
        return False
    standing.add_pods([pod], nodes)
    ledger.start_pods(ask, standing, [pod], nodes, inside=inside, lent=ask.gang.elastic and not inside)
    return True


def _find_borrowed_nodes(ledger: CycleState, standing: PoolState, ask: PendingGang, pod: Pod) -> dict[str, str] | None:
    """A place in what is free; what is surplus is called in at any time, and so may be in what is reserved."""
    nodes = find_backfill(ledger, standing, ask, [pod])
    if nodes is None and ask.gang.elastic:
        mark = standing.node_resources.mark()
        nodes = place_keeping_reserve(standing, ask, [pod])
        standing.node_resources.undo(mark)
    return nodes


def _placed_pods(ask: PendingGang, standing: PoolState, nodes: dict[str, str]) -> tuple[Pod, ...]:
    """What of the gang has nodes by now."""
    pods = {pod.uid: pod for pod in ask.gang.pods}
    started = (
        replace(pods[uid], node=node, pool=standing.pool.key, borrowed=not standing.is_guaranteed(uid))
        for uid, node in nodes.items()
    )
    return (*ask.running, *started)


def _take_guaranteed_nodes(standing: PoolState, ask: PendingGang, pod: Pod) -> dict[str, str] | None:
    """A place inside the tenant's cells, which are held then. Not while the gang's core borrows: that may have to go,
    and takes along whatever runs beyond it, which then would be work inside its guarantee."""
    if ask.gang.band is not GUARANTEED or not standing.may_use_guarantee(ask.gang, [pod]):
        return None
    if not all(standing.is_guaranteed(one.uid) for one in select_min_members(ask.gang, ask.running)):
        return None
    inside = GuaranteedPlacement(standing.cells, ask.tenant, [pod], among=allowed_nodes(standing, ask))
    nodes = inside(standing.node_resources)
    if nodes is not None:
        inside.commit_placement(nodes)
    return nodes
