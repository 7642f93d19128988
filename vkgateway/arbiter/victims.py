"""Whom to evict for a gang: the smallest loss that lets it start, nobody without need, and where it then goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from vkgateway.arbiter.cheapest import Ground, Group, Market, after, proposals
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.evictable import Evictable
from vkgateway.arbiter.facts import Gang, Pod, Shape
from vkgateway.arbiter.fitting import BoolArray, IntArray
from vkgateway.arbiter.giveback import Nodes, spare_by_count, spare_by_trial
from vkgateway.arbiter.lots import Lot, Stage
from vkgateway.arbiter.market import Prices, knows, market, prices, rows_of
from vkgateway.arbiter.notice import notice_of
from vkgateway.arbiter.placement import place
from vkgateway.arbiter.room import Among, Room

Placer = Callable[[Room], Nodes | None]
"""Finds a node for every pod of the gang, or None; it may take the room there, which is undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Who goes so that a gang can start, and where."""

    nodes: Nodes
    """Pod uid to node, in the order of the pods."""
    evicts: tuple[Evict, ...]
    """By gang, each once; deadlines are by the notice that the gang was promised."""
    awaits: tuple[str, ...]
    """Pods that are ending anyway whose room is used: the gang starts after the last of them."""
    lost: float
    """GPU-seconds of work that the evictions cost."""
    saved: float
    """GPU-seconds of those that were chosen first, and could stay."""


def choose(
    room: Room,
    evictable: Evictable,
    gang: Gang,
    pods: Sequence[Pod],
    *,
    now: float,
    over: Mapping[str, float] | None = None,
    among: Among = None,
    ceiling: IntArray | None = None,
    coming: Iterable[Pod] = (),
    exempt: Set[str] = frozenset(),
    placer: Placer | None = None,
    leaves: int = 0,
) -> Choice | None:
    """Who must go so that all these pods of the gang can start; None: whoever goes, they cannot.

    What ends anyway is called in first (`coming`: placed pods that are ending, whose room is neither free in `room` nor
    promised to another), then the surplus of elastic gangs, then whole gangs, last those inside their minimum run
    time. Everyone is spared again without whom it would do. The room is left as it is.

    `over`: how far tenants are over their guarantees, for ties. `among`: nodes that are allowed. `ceiling`: thousandths
    of the pool's unit that the gang may use on each node by position. `placer` places the gang where the plain
    placement would not do; a ceiling needs one (ValueError). `exempt`: gangs that are left alone, besides this one.
    `leaves`: thousandths of the pool's unit that are idle beside the gang when all have gone (see `reserve`).
    """
    if ceiling is not None and placer is None:
        raise ValueError("a ceiling needs a placer that keeps to it")
    counts = Counter(pod.shape for pod in pods)
    resources = {name for shape in counts for name, _ in shape.requests} | ({room.pool.unit} if leaves else set())
    asking = _Asking(
        room=room,
        evictable=evictable,
        gang=gang,
        pods=pods,
        allowed=room.mask(among),
        ceiling=ceiling,
        placer=placer,
        counts=counts,
        resources=sorted(resources),
        leaves=leaves,
    )
    mark = room.mark()
    try:
        return _search(asking, [pod for pod in coming if pod.node in room], now, over or {}, exempt | set(gang.kin))
    finally:
        room.undo(mark)


def _search(
    asking: _Asking, ending: Sequence[Pod], now: float, over: Mapping[str, float], exempt: Set[str]
) -> Choice | None:
    """What `choose` says; the room is left as the last trial made it."""
    for pod in ending:
        asking.room.give(pod.node, pod.shape)
    nodes = asking.place()
    if nodes is not None:
        return _choice(asking, {}, nodes, ending, now=now)
    if not knows(asking.room, asking.resources):
        return None
    ground = asking.ground()
    if not len(ground.could(after(ground, rows_of(asking.evictable, asking.room, asking.lines())))):
        return None  # Most searches end here: by counting it does not fit, whoever goes.
    found = prices(asking.evictable, now=now, over=over, exempt=exempt)
    for stage in Stage:
        if not (found.stage == stage).any():
            continue
        chosen = _at_stage(asking, ground, found, stage)
        if chosen is not None:
            return _choice(asking, chosen.lots, chosen.nodes, ending, now=now, prices=found, first=chosen.first)
    return None


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Lots that must go (the room counts them as gone), where the gang is then, and GPU-seconds lost at first."""

    lots: dict[int, Lot]
    nodes: Nodes
    first: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """The gang that asks for room, and how to try whether it fits."""

    room: Room
    evictable: Evictable
    gang: Gang
    pods: Sequence[Pod]
    allowed: BoolArray
    ceiling: IntArray | None
    placer: Placer | None

    counts: Mapping[Shape, int]
    """How many of its pods there are of each shape."""
    resources: Sequence[str]
    """All that is asked for."""
    leaves: int
    """What must be left idle."""

    @property
    def countable(self) -> bool:
        """Whether the gang fits if, and only if, there are places enough by counting."""
        return self.placer is None and len(self.counts) == 1 and not self.room.zoned and not self.leaves

    def place(self) -> Nodes | None:
        """Where the gang goes in the room as it is; the room is left as it was."""
        room, gang = self.room, self.gang
        mark = room.mark()
        if self.placer is not None:
            found = self.placer(room)
        else:
            found = place(
                room,
                self.pods,
                required_level=gang.required_level,
                preferred_level=gang.preferred_level,
                among=self.allowed,
            )
            if self.leaves and found is not None and room.idle < self.leaves:
                found = None
        room.undo(mark)
        return found

    def ground(self) -> Ground:
        """What is free now, and what is asked for, as the search sees it."""
        room, level = self.room, self.gang.required_level
        lines = [room.amount(name) for name in self.resources]
        if self.ceiling is not None:
            lines.append(self.ceiling)
        free = np.array(lines, dtype=np.int64).reshape(len(lines), len(room))
        domain = room.fitting.column(level).codes if level else np.zeros(len(room), dtype=np.int64)
        counts, unit = self.counts, room.pool.unit
        shapes = sorted(counts, key=lambda shape: (-shape.amount(unit), room.total(shape), shape.requests))
        groups = [Group(self._ask(shape), counts[shape], self.allowed & room.fitting.mask(shape)) for shape in shapes]
        if self.leaves and not level:
            # Within one domain the reserve is not counted: it may be anywhere.
            groups.append(Group(self._ask(Shape.of({unit: 1000})), -(-self.leaves // 1000), room.fitting.usable))
        return Ground(free, domain, groups)

    def grounds(self, ground: Ground) -> Iterator[Ground]:
        """What to ask for, the least first: counting is not all where cells, or the zones of nodes, have a say."""
        yield from ground.coarser() if self.placer is not None else (ground,)
        unit = self.room.pool.unit
        if self.room.zoned and unit in self.resources:
            yield from ground.wider(self.resources.index(unit), self.room.whole)

    def lines(self) -> list[str]:
        """The resources by line; the ceiling has a line that nobody frees anything of."""
        return [*self.resources, *([""] if self.ceiling is not None else [])]

    def _ask(self, shape: Shape) -> IntArray:
        amounts = [shape.amount(name) for name in self.resources]
        if self.ceiling is not None:
            amounts.append(shape.amount(self.room.pool.unit))
        return np.array(amounts, dtype=np.int64)


def _at_stage(asking: _Asking, ground: Ground, found: Prices, stage: Stage) -> _Chosen | None:
    """The cheapest set that is found at a stage; the room then counts its lots as gone. None: the room is as it was."""
    offered = market(asking.evictable, asking.room, asking.lines(), found, stage)
    if not len(ground.could(after(ground, offered.rows))):
        return None
    for each in asking.grounds(ground):
        candidates: dict[tuple[int, ...], float] = {}
        for proposal in proposals(each, offered):
            lots = spare_by_count(ground, offered, proposal) if asking.countable else proposal.tolist()
            candidates.setdefault(tuple(lots), float(found.lost[proposal].sum()))
        for chosen in sorted(candidates, key=lambda lots: int(offered.price[list(lots)].sum())):
            done = _carry_out(asking, ground, offered, chosen, candidates[chosen])
            if done is not None:
                return done
    # By counting it fits, but not by placement: shapes or cells stand in the way. Begin with all that there is.
    return _carry_out(asking, ground, offered, np.unique(offered.rows.lot).tolist(), 0.0)


def _carry_out(
    asking: _Asking, ground: Ground, offered: Market, numbers: Sequence[int], first: float
) -> _Chosen | None:
    """Try the placement without these lots, and spare whom it does not need."""
    room = asking.room
    lots = {number: lot for number in numbers if (lot := asking.evictable.lots[number]) is not None}
    mark = room.mark()
    going = Counter((pod.node, pod.shape) for lot in lots.values() for pod in lot.pods)
    for (node, shape), count in going.items():
        if node in room:
            room.give(node, shape, count)
    nodes = asking.place()
    if nodes is None:
        room.undo(mark)
        return None
    if not asking.countable:
        left, nodes = spare_by_trial(
            room, ground, offered, lots, place=asking.place, nodes=nodes, anywhere=bool(asking.leaves)
        )
        lots = {number: lots[number] for number in left}
    return _Chosen(lots, nodes, first)


def _choice(
    asking: _Asking,
    lots: Mapping[int, Lot],
    nodes: Nodes,
    ending: Sequence[Pod],
    *,
    now: float,
    prices: Prices | None = None,
    first: float = 0.0,
) -> Choice:
    by_gang: dict[str, list[Lot]] = {}
    lost: dict[str, float] = {}
    for number, lot in lots.items():
        by_gang.setdefault(lot.gang.id, []).append(lot)
        lost[lot.gang.id] = lost.get(lot.gang.id, 0.0) + (float(prices.lost[number]) if prices is not None else 0.0)
    total = sum(lost.values())
    saved = max(0.0, first - total)
    evicts = (evict_of(by_gang[gang], asking.gang, lost=lost[gang], now=now) for gang in sorted(lost))
    return Choice(
        nodes=nodes,
        evicts=tuple(replace(evict, saved=saved) for evict in evicts),
        awaits=_awaited(asking.room, asking.pods, nodes, ending),
        lost=total,
        saved=saved,
    )


def evict_of(lots: Sequence[Lot], asking: Gang, *, lost: float, now: float) -> Evict:
    """The eviction of these lots of one gang for another gang."""
    gang = lots[0].gang
    whole = any(lot.whole for lot in lots)
    chosen = {pod.uid for lot in lots for pod in lot.pods}
    going = [pod for pod in lots[0].running if whole or pod.uid in chosen]
    elsewhere = gang.part.elsewhere if whole and gang.part is not None else ()
    return Evict(
        gang=gang.id,
        pods=tuple(pod.uid for pod in going),
        whole=whole,
        makes_room_for=asking.whole,
        deadline=now + notice_of(gang, (*going, *elsewhere), now),
        lost=lost,
    )


def _awaited(room: Room, pods: Sequence[Pod], nodes: Nodes, ending: Sequence[Pod]) -> tuple[str, ...]:
    """Those of the ending pods, whose room is free already, without whom the gang does not fit on its nodes.

    Those that take longest are the first that it does without.
    """
    used = set(nodes.values())
    mark = room.mark()
    for pod in pods:
        room.take(nodes[pod.uid], pod.shape)
    awaited = []
    for pod in sorted(ending, key=lambda pod: (-pod.deadline, pod.uid)):
        if pod.node not in used:
            continue
        free = room.free(pod.node)
        if room.is_zoned(pod.node):
            awaited.append(pod.uid)  # it may be in the very zone
        elif all(free.get(name, amount) >= amount for name, amount in pod.shape.requests):
            room.take(pod.node, pod.shape)
        else:
            awaited.append(pod.uid)
    room.undo(mark)
    return tuple(sorted(awaited))
