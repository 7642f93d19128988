"""Which of several pools a gang goes to: inside its guarantee, where the least is lost, and where it fits best.

Of pools that are equal in all of this it is the one that its tenant likes best: they are tried in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import GUARANTEED, PLACED, Pod
from vkgateway.arbiter.inside import Inside, hold_where_placed
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.plans import Making, inside_of
from vkgateway.arbiter.room import Room
from vkgateway.arbiter.standing import Standing

T = TypeVar("T")
PlaceInside = tuple[Standing, Inside, Mapping[str, str]]
"""A pool, what places the gang there inside its guarantee, and by pods' uids the nodes that it found."""


def best(found: Sequence[T], rank: Callable[[T], Any]) -> T:
    """The first of those of the smallest rank, which is not asked for where there is only one."""
    return found[0] if len(found) == 1 else min(found, key=rank)


def fit(room: Room, pods: Sequence[Pod], nodes: Mapping[str, str]) -> tuple[int, int]:
    """How many whole nodes the pods would break into, and the thousandths of the unit left over on all their nodes.

    The room is as it is without them.
    """
    unit, whole = room.pool.unit, room.whole
    asked: dict[str, int] = {}
    for pod in pods:
        name = nodes[pod.uid]
        asked[name] = asked.get(name, 0) + pod.shape.amount(unit)
    broken = left = 0
    for name, amount in asked.items():
        free = room.free(name).get(unit, 0)
        broken += amount > 0 and free >= whole
        left += max(0, free - amount)
    return broken, left


def fits_inside(standing: Standing, ask: Ask, nodes: Mapping[str, str]) -> bool:
    """Whether its tenant's cells would hold the gang's core there."""
    if ask.gang.band is not GUARANTEED or not standing.allows_inside(ask.gang, ask.core):
        return False
    mark = standing.cells.mark()
    placed = [(pod, nodes[pod.uid]) for pod in ask.core]
    held = hold_where_placed(standing.cells, ask.tenant, standing.pool.unit, placed)
    standing.cells.undo(mark)
    return held


def places_inside(pools: Iterable[Standing], ask: Ask) -> Iterator[PlaceInside]:
    """A place for the gang's core inside its guarantee in each pool that has one now; all are left as they were."""
    for standing in pools:
        if not standing.beyond_limit(ask.tenant, ask.core):
            inside = inside_of(standing, ask, ask.core)
            nodes = inside(standing.room)
            if nodes is not None:
                yield standing, inside, nodes


def start_at_best(ledger: Ledger, ask: Ask, places: Sequence[PlaceInside]) -> None:
    """Start the gang's core where it fits best."""
    standing, inside, nodes = best(places, lambda each: fit(each[0].room, ask.core, each[2]))
    inside.commit(nodes)
    standing.take(ask.core, nodes)
    ledger.start(ask, standing, ask.core, nodes, inside=True)


def cost(standing: Standing, ask: Ask, making: Making, now: float) -> tuple[bool, bool, float, int, int]:
    """What it costs to make this room: whether anybody goes inside its minimum run time, whether anybody goes at all,
    the GPU-seconds that are lost, and how the core then fits."""
    protected = any(_is_protected(standing, evict.gang, now) for evict in making.evicts)
    mark = standing.room.mark()
    standing.give(_leaving(standing, making))
    there = fit(standing.room, ask.core, making.choice.nodes)
    standing.room.undo(mark)
    return protected, bool(making.evicts), sum(evict.lost for evict in making.evicts), *there


def _leaving(standing: Standing, making: Making) -> Iterator[Pod]:
    """Whose room it takes."""
    going = {uid for evict in making.evicts for uid in evict.pods}
    for name in {evict.gang: None for evict in making.evicts}:
        yield from (pod for pod in standing.gangs[name].pods if pod.uid in going)
    told = {pod.uid: pod for _, pod in making.told}
    yield from (told.get(uid) or standing.leaving[uid] for uid in making.choice.awaits if uid not in going)


def _is_protected(standing: Standing, gang: str, now: float) -> bool:
    known = standing.gangs[gang]
    since = [pod.since for pod in known.pods if pod.state is PLACED and standing.has(pod)]
    return bool(since) and min(since) + known.minimum_run > now
