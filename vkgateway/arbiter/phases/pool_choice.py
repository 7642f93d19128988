"""Which of several pools a gang goes to: inside its guarantee, where the least is lost, and where it fits best.

Of pools that are equal in all of this it is the one that its tenant likes best: they are tried in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.guarantees.cell_placement import GuaranteedPlacement, allocate_placed
from vkgateway.arbiter.phases.preemption_plans import CandidatePlan, placement_in_guarantee
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import GUARANTEED, PLACED, Pod

T = TypeVar("T")
PoolPlacement = tuple[PoolState, GuaranteedPlacement, Mapping[str, str]]
"""A pool, what places the gang there inside its guarantee, and by pods' uids the nodes that it found."""


def pick_best(found: Sequence[T], rank: Callable[[T], Any]) -> T:
    """The first of those of the smallest rank, which is not asked for where there is only one."""
    return found[0] if len(found) == 1 else min(found, key=rank)


def measure_fit(room: NodeResources, pods: Sequence[Pod], nodes: Mapping[str, str]) -> tuple[int, int]:
    """How many whole nodes the pods would break into, and the thousandths of the unit left over on all their nodes.

    The room is as it is without them.
    """
    unit, whole = room.pool.unit_resource, room.largest_node_units
    asked: dict[str, int] = {}
    for pod in pods:
        name = nodes[pod.uid]
        asked[name] = asked.get(name, 0) + pod.shape.amount_of(unit)
    broken = left = 0
    for name, amount in asked.items():
        free = room.free_on_node(name).get(unit, 0)
        broken += amount > 0 and free >= whole
        left += max(0, free - amount)
    return broken, left


def fits_guarantee(standing: PoolState, ask: PendingGang, nodes: Mapping[str, str]) -> bool:
    """Whether its tenant's cells would hold the gang's core there."""
    if ask.gang.band is not GUARANTEED or not standing.may_use_guarantee(ask.gang, ask.min_members):
        return False
    mark = standing.cells.mark()
    placed = [(pod, nodes[pod.uid]) for pod in ask.min_members]
    held = allocate_placed(standing.cells, ask.tenant, standing.pool.unit_resource, placed)
    standing.cells.undo(mark)
    return held


def guaranteed_placements(pools: Iterable[PoolState], ask: PendingGang) -> Iterator[PoolPlacement]:
    """A place for the gang's core inside its guarantee in each pool that has one now; all are left as they were."""
    for standing in pools:
        if not standing.exceeded_limits(ask.tenant, ask.min_members):
            inside = placement_in_guarantee(standing, ask, ask.min_members)
            nodes = inside(standing.node_resources)
            if nodes is not None:
                yield standing, inside, nodes


def start_in_best_pool(ledger: CycleState, ask: PendingGang, places: Sequence[PoolPlacement]) -> None:
    """Start the gang's core where it fits best."""
    standing, inside, nodes = pick_best(
        places, lambda each: measure_fit(each[0].node_resources, ask.min_members, each[2])
    )
    inside.commit_placement(nodes)
    standing.add_pods(ask.min_members, nodes)
    ledger.start_pods(ask, standing, ask.min_members, nodes, inside=True)


def preemption_cost(
    standing: PoolState, ask: PendingGang, making: CandidatePlan, now: float
) -> tuple[bool, bool, float, int, int]:
    """What it costs to make this room: whether anybody goes inside its minimum run time, whether anybody goes at all,
    the GPU-seconds that are lost, and how the core then fits."""
    protected = any(_is_protected(standing, evict.gang, now) for evict in making.evicts)
    mark = standing.node_resources.mark()
    standing.remove_pods(_freed_pods(standing, making))
    there = measure_fit(standing.node_resources, ask.min_members, making.victim_choice.nodes)
    standing.node_resources.undo(mark)
    return protected, bool(making.evicts), sum(evict.lost for evict in making.evicts), *there


def _freed_pods(standing: PoolState, making: CandidatePlan) -> Iterator[Pod]:
    """Whose room it takes."""
    going = {uid for evict in making.evicts for uid in evict.pods}
    for name in {evict.gang: None for evict in making.evicts}:
        yield from (pod for pod in standing.gangs[name].pods if pod.uid in going)
    told = {pod.uid: pod for _, pod in making.notified}
    yield from (
        told.get(uid) or standing.terminating_pods[uid] for uid in making.victim_choice.awaited_pods if uid not in going
    )


def _is_protected(standing: PoolState, gang: str, now: float) -> bool:
    known = standing.gangs[gang]
    since = [pod.since for pod in known.pods if pod.state is PLACED and standing.has_pod(pod)]
    return bool(since) and min(since) + known.minimum_run > now
