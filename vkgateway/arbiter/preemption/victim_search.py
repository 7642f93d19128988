"""Whom to evict for a gang: the smallest loss that lets it start, nobody without need, and where it then goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from vkgateway.arbiter.capacity.node_fit import BoolArray, IntArray
from vkgateway.arbiter.capacity.node_resources import AllowedNodes, NodeResources
from vkgateway.arbiter.capacity.placement import place_pods
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.preemption.candidates import PreemptionCandidates
from vkgateway.arbiter.preemption.cheapest_sets import (
    PodGroup,
    PricedCandidates,
    SearchSpace,
    free_after_eviction,
    propose_victim_sets,
)
from vkgateway.arbiter.preemption.eviction_units import EvictionStage, PreemptionCandidate
from vkgateway.arbiter.preemption.notice import notice_seconds
from vkgateway.arbiter.preemption.reprieve import NodesByPod, reprieve_by_count, reprieve_by_trial
from vkgateway.arbiter.preemption.search_stage import (
    PreemptionCosts,
    freed_rows,
    has_resources,
    preemption_costs,
    price_candidates,
)
from vkgateway.arbiter.snapshot import Gang, Pod, Shape

Placer = Callable[[NodeResources], NodesByPod | None]
"""Finds a node for every pod of the gang, or None; it may take the room there, which is undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimChoice:
    """Who goes so that a gang can start, and where."""

    nodes: NodesByPod
    """Pod uid to node, in the order of the pods."""
    evicts: tuple[Evict, ...]
    """By gang, each once; deadlines are by the notice that the gang was promised."""
    awaited_pods: tuple[str, ...]
    """Pods that are ending anyway whose room is used: the gang starts after the last of them."""
    lost: float
    """GPU-seconds of work that the evictions cost."""
    saved: float
    """GPU-seconds of those that were chosen first, and could stay."""


def choose_victims(
    room: NodeResources,
    evictable: PreemptionCandidates,
    gang: Gang,
    pods: Sequence[Pod],
    *,
    now: float,
    over: Mapping[str, float] | None = None,
    among: AllowedNodes = None,
    ceiling: IntArray | None = None,
    coming: Iterable[Pod] = (),
    exempt: Set[str] = frozenset(),
    placer: Placer | None = None,
    leaves: int = 0,
) -> VictimChoice | None:
    """Who must go so that all these pods of the gang can start; None: whoever goes, they cannot.

    What ends anyway is called in first (`coming`: placed pods that are ending, whose room is neither free in
    `node_resources` nor promised to another), then the surplus of elastic gangs, then whole gangs, last those inside
    their minimum run time. Everyone is spared again without whom it would do. The room is left as it is.

    `over`: how far tenants are over their guarantees, for ties. `among`: nodes that are allowed. `ceiling`: thousandths
    of the pool's unit that the gang may use on each node by position. `placer` places the gang where the plain
    placement would not do; a ceiling needs one (ValueError). `exempt`: gangs that are left alone, besides this one.
    `leaves`: thousandths of the pool's unit that are idle beside the gang when all have gone (see `reserve`).
    """
    if ceiling is not None and placer is None:
        raise ValueError("a ceiling needs a placer that keeps to it")
    counts = Counter(pod.shape for pod in pods)
    resources = {name for shape in counts for name, _ in shape.requests} | (
        {room.pool.unit_resource} if leaves else set()
    )
    asking = _SearchRequest(
        node_resources=room,
        candidates=evictable,
        gang=gang,
        pods=pods,
        allowed=room.node_mask(among),
        ceiling=ceiling,
        placer=placer,
        counts=counts,
        resources=sorted(resources),
        leaves=leaves,
    )
    mark = room.mark()
    try:
        return _search_victims(
            asking, [pod for pod in coming if pod.node in room], now, over or {}, exempt | set(gang.part_ids)
        )
    finally:
        room.undo(mark)


def _search_victims(
    asking: _SearchRequest, ending: Sequence[Pod], now: float, over: Mapping[str, float], exempt: Set[str]
) -> VictimChoice | None:
    """What `choose_victims` says; the room is left as the last trial made it."""
    for pod in ending:
        asking.node_resources.remove_pods(pod.node, pod.shape)
    nodes = asking.find_placement()
    if nodes is not None:
        return _build_choice(asking, {}, nodes, ending, now=now)
    if not has_resources(asking.node_resources, asking.resources):
        return None
    ground = asking.search_space()
    if not len(
        ground.feasible_domains(
            free_after_eviction(ground, freed_rows(asking.candidates, asking.node_resources, asking.resource_lines()))
        )
    ):
        return None  # Most searches end here: by counting it does not fit, whoever goes.
    found = preemption_costs(asking.candidates, now=now, over=over, exempt=exempt)
    for stage in EvictionStage:
        if not (found.stage == stage).any():
            continue
        chosen = _search_at_stage(asking, ground, found, stage)
        if chosen is not None:
            return _build_choice(
                asking, chosen.candidates, chosen.nodes, ending, now=now, prices=found, first=chosen.initial_loss
            )
    return None


@dataclass(frozen=True, slots=True)
class _VictimSet:
    """Lots that must go (the room counts them as gone), where the gang is then, and GPU-seconds lost at first."""

    candidates: dict[int, PreemptionCandidate]
    nodes: NodesByPod
    initial_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchRequest:
    """The gang that asks for room, and how to try whether it fits."""

    node_resources: NodeResources
    candidates: PreemptionCandidates
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
    def is_countable(self) -> bool:
        """Whether the gang fits if, and only if, there are places enough by counting."""
        return self.placer is None and len(self.counts) == 1 and not self.node_resources.has_zones and not self.leaves

    def find_placement(self) -> NodesByPod | None:
        """Where the gang goes in the room as it is; the room is left as it was."""
        room, gang = self.node_resources, self.gang
        mark = room.mark()
        if self.placer is not None:
            found = self.placer(room)
        else:
            found = place_pods(
                room,
                self.pods,
                required_level=gang.required_level,
                preferred_level=gang.preferred_level,
                among=self.allowed,
            )
            if self.leaves and found is not None and room.idle_units < self.leaves:
                found = None
        room.undo(mark)
        return found

    def search_space(self) -> SearchSpace:
        """What is free now, and what is asked for, as the search sees it."""
        room, level = self.node_resources, self.gang.required_level
        lines = [room.free_amounts(name) for name in self.resources]
        if self.ceiling is not None:
            lines.append(self.ceiling)
        free = np.array(lines, dtype=np.int64).reshape(len(lines), len(room))
        domain = room.node_filter.label_column(level).codes if level else np.zeros(len(room), dtype=np.int64)
        counts, unit = self.counts, room.pool.unit_resource
        shapes = sorted(counts, key=lambda shape: (-shape.amount_of(unit), room.total_capacity(shape), shape.requests))
        groups = [
            PodGroup(self._request_of(shape), counts[shape], self.allowed & room.node_filter.feasible_nodes(shape))
            for shape in shapes
        ]
        if self.leaves and not level:
            # Within one domain the reserve is not counted: it may be anywhere.
            groups.append(
                PodGroup(
                    self._request_of(Shape.from_requests({unit: 1000})),
                    -(-self.leaves // 1000),
                    room.node_filter.usable,
                )
            )
        return SearchSpace(free, domain, groups)

    def search_spaces(self, ground: SearchSpace) -> Iterator[SearchSpace]:
        """What to ask for, the least first: counting is not all where cells, or the zones of nodes, have a say."""
        yield from ground.bundled_spaces() if self.placer is not None else (ground,)
        unit = self.node_resources.pool.unit_resource
        if self.node_resources.has_zones and unit in self.resources:
            yield from ground.widened_spaces(self.resources.index(unit), self.node_resources.largest_node_units)

    def resource_lines(self) -> list[str]:
        """The resources by line; the ceiling has a line that nobody frees anything of."""
        return [*self.resources, *([""] if self.ceiling is not None else [])]

    def _request_of(self, shape: Shape) -> IntArray:
        amounts = [shape.amount_of(name) for name in self.resources]
        if self.ceiling is not None:
            amounts.append(shape.amount_of(self.node_resources.pool.unit_resource))
        return np.array(amounts, dtype=np.int64)


def _search_at_stage(
    asking: _SearchRequest, ground: SearchSpace, found: PreemptionCosts, stage: EvictionStage
) -> _VictimSet | None:
    """The cheapest set that is found at a stage; the room then counts its lots as gone. None: the room is as it was."""
    offered = price_candidates(asking.candidates, asking.node_resources, asking.resource_lines(), found, stage)
    if not len(ground.feasible_domains(free_after_eviction(ground, offered.rows))):
        return None
    for each in asking.search_spaces(ground):
        candidates: dict[tuple[int, ...], float] = {}
        for proposal in propose_victim_sets(each, offered):
            lots = reprieve_by_count(ground, offered, proposal) if asking.is_countable else proposal.tolist()
            candidates.setdefault(tuple(lots), float(found.lost[proposal].sum()))
        for chosen in sorted(candidates, key=lambda lots: int(offered.cost[list(lots)].sum())):
            done = _try_victims(asking, ground, offered, chosen, candidates[chosen])
            if done is not None:
                return done
    # By counting it fits, but not by placement: shapes or cells stand in the way. Begin with all that there is.
    return _try_victims(asking, ground, offered, np.unique(offered.rows.candidate).tolist(), 0.0)


def _try_victims(
    asking: _SearchRequest, ground: SearchSpace, offered: PricedCandidates, numbers: Sequence[int], first: float
) -> _VictimSet | None:
    """Try the placement without these lots, and spare whom it does not need."""
    room = asking.node_resources
    lots = {number: lot for number in numbers if (lot := asking.candidates.candidates[number]) is not None}
    mark = room.mark()
    going = Counter((pod.node, pod.shape) for lot in lots.values() for pod in lot.pods)
    for (node, shape), count in going.items():
        if node in room:
            room.remove_pods(node, shape, count)
    nodes = asking.find_placement()
    if nodes is None:
        room.undo(mark)
        return None
    if not asking.is_countable:
        left, nodes = reprieve_by_trial(
            room, ground, offered, lots, place=asking.find_placement, nodes=nodes, anywhere=bool(asking.leaves)
        )
        lots = {number: lots[number] for number in left}
    return _VictimSet(lots, nodes, first)


def _build_choice(
    asking: _SearchRequest,
    lots: Mapping[int, PreemptionCandidate],
    nodes: NodesByPod,
    ending: Sequence[Pod],
    *,
    now: float,
    prices: PreemptionCosts | None = None,
    first: float = 0.0,
) -> VictimChoice:
    by_gang: dict[str, list[PreemptionCandidate]] = {}
    lost: dict[str, float] = {}
    for number, lot in lots.items():
        by_gang.setdefault(lot.gang.id, []).append(lot)
        lost[lot.gang.id] = lost.get(lot.gang.id, 0.0) + (float(prices.lost[number]) if prices is not None else 0.0)
    total = sum(lost.values())
    saved = max(0.0, first - total)
    evicts = (build_evict(by_gang[gang], asking.gang, lost=lost[gang], now=now) for gang in sorted(lost))
    return VictimChoice(
        nodes=nodes,
        evicts=tuple(replace(evict, saved=saved) for evict in evicts),
        awaited_pods=_awaited_pods(asking.node_resources, asking.pods, nodes, ending),
        lost=total,
        saved=saved,
    )


def build_evict(lots: Sequence[PreemptionCandidate], asking: Gang, *, lost: float, now: float) -> Evict:
    """The eviction of these lots of one gang for another gang."""
    gang = lots[0].gang
    whole = any(lot.whole for lot in lots)
    chosen = {pod.uid for lot in lots for pod in lot.pods}
    going = [pod for pod in lots[0].running_pods if whole or pod.uid in chosen]
    elsewhere = gang.part_info.pods_elsewhere if whole and gang.part_info is not None else ()
    return Evict(
        gang=gang.id,
        pods=tuple(pod.uid for pod in going),
        whole=whole,
        makes_room_for=asking.whole_id,
        deadline=now + notice_seconds(gang, (*going, *elsewhere), now),
        lost=lost,
    )


def _awaited_pods(
    room: NodeResources, pods: Sequence[Pod], nodes: NodesByPod, ending: Sequence[Pod]
) -> tuple[str, ...]:
    """Those of the ending pods, whose room is free already, without whom the gang does not fit on its nodes.

    Those that take longest are the first that it does without.
    """
    used = set(nodes.values())
    mark = room.mark()
    for pod in pods:
        room.add_pods(nodes[pod.uid], pod.shape)
    awaited = []
    for pod in sorted(ending, key=lambda pod: (-pod.deadline, pod.uid)):
        if pod.node not in used:
            continue
        free = room.free_on_node(pod.node)
        if room.is_zoned(pod.node):
            awaited.append(pod.uid)  # it may be in the very zone
        elif all(free.get(name, amount) >= amount for name, amount in pod.shape.requests):
            room.add_pods(pod.node, pod.shape)
        else:
            awaited.append(pod.uid)
    room.undo(mark)
    return tuple(sorted(awaited))
