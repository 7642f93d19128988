"""Victim search: the smallest loss that lets a gang start, without unneeded victims, and the gang's nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import BoolArray, IntArray
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.node_table import AllowedNodes
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.preemption.cheapest_sets import (
    PodGroup,
    PricedCandidates,
    SearchSpace,
    free_after_eviction,
    propose_victim_sets,
)
from vkgateway.scheduler.core.preemption.eviction_units import EvictionStage, PreemptionCandidate
from vkgateway.scheduler.core.preemption.notice import notice_seconds
from vkgateway.scheduler.core.preemption.reprieve import NodesByPod, reprieve_by_count, reprieve_by_trial
from vkgateway.scheduler.core.preemption.search_stage import (
    PreemptionCosts,
    freed_rows,
    has_resources,
    preemption_costs,
    price_candidates,
)
from vkgateway.scheduler.core.snapshot import Gang, Pod, Shape, have_peer_rules

Placer = Callable[[NodeResources], NodesByPod | None]
"""Function that returns a node for every pod of the gang, or None. Its changes to the node resources are undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimChoice:
    """Victims that let a gang start, and its nodes."""

    nodes: NodesByPod
    """Node name by pod uid, in the order of the pods."""
    evicts: tuple[Evict, ...]
    """One eviction per gang, with the deadline of the gang's notice."""
    awaited_pods: tuple[str, ...]
    """Pods that end anyway and whose resources are used: the gang starts after the last of them."""
    lost: float
    """GPU-seconds of work that the evictions lose."""
    saved: float
    """GPU-seconds of candidates that were chosen first and then spared."""


def choose_victims(
    node_resources: NodeResources,
    candidates: PreemptionCandidates,
    gang: Gang,
    pods: Sequence[Pod],
    *,
    now: float,
    excess: Mapping[str, float] | None = None,
    among: AllowedNodes = None,
    ceiling: IntArray | None = None,
    ending: Iterable[Pod] = (),
    exempt: Set[str] = frozenset(),
    placer: Placer | None = None,
    idle_reserve: int = 0,
) -> VictimChoice | None:
    """Return the victims that let all these pods of the gang start; None: no victims suffice.

    Resources of pods that end anyway are used first (`ending`: placed pods whose resources are neither free nor
    promised to another gang), then the surplus of elastic gangs, then whole gangs, last those within their minimum run
    time. Victims that turn out unnecessary are spared. The node resources are unchanged.

    `excess`: the tenants' excess over their guarantees, for ties. `among`: allowed nodes. `ceiling`: thousandths of the
    pool's unit that the gang may use on each node by position. `placer` replaces the plain placement; a ceiling needs
    one (ValueError). `exempt`: other gangs that must not be evicted. `idle_reserve`: thousandths of the pool's unit
    that must stay idle after the evictions.
    """
    if ceiling is not None and placer is None:
        raise ValueError("a ceiling needs a placer that keeps to it")
    request = _SearchRequest(
        node_resources=node_resources,
        candidates=candidates,
        gang=gang,
        pods=pods,
        allowed=node_resources.nodes.mask_of(among),
        ceiling=ceiling,
        placer=placer,
        idle_reserve=idle_reserve,
    )
    with node_resources.trial():
        ending = [pod for pod in ending if pod.node in node_resources.nodes]
        return _search_victims(request, ending, now, excess or {}, exempt | set(gang.part_ids))


def _search_victims(
    request: _SearchRequest, ending: Sequence[Pod], now: float, excess: Mapping[str, float], exempt: Set[str]
) -> VictimChoice | None:
    """Return the result of `choose_victims`; the node resources keep the state of the last trial."""
    for pod in ending:
        request.node_resources.remove_pods(pod.node, pod.shape)
    nodes = request.find_placement()
    if nodes is not None:
        return _build_choice(request, {}, nodes, ending, now=now)
    if not has_resources(request.node_resources, request.resources):
        return None
    space = request.search_space()
    if not len(
        space.feasible_domains(
            free_after_eviction(space, freed_rows(request.candidates, request.node_resources, request.resource_lines()))
        )
    ):
        return None  # Most searches end here: by counting, no eviction suffices.
    costs = preemption_costs(request.candidates, now=now, excess=excess, exempt=exempt)
    for stage in EvictionStage:
        if not (costs.stage == stage).any():
            continue
        chosen = _search_at_stage(request, space, costs, stage)
        if chosen is not None:
            return _build_choice(
                request, chosen.candidates, chosen.nodes, ending, now=now, costs=costs, initial_loss=chosen.initial_loss
            )
    return None


@dataclass(frozen=True, slots=True)
class _VictimSet:
    """Victims, which the node resources count as evicted, the gang's nodes, and the initial loss in GPU-seconds."""

    candidates: dict[int, PreemptionCandidate]
    nodes: NodesByPod
    initial_loss: float


@dataclass(frozen=True, kw_only=True)
class _SearchRequest:
    """Gang that needs capacity, and how to test whether it fits."""

    node_resources: NodeResources
    candidates: PreemptionCandidates
    gang: Gang
    pods: Sequence[Pod]
    allowed: BoolArray
    ceiling: IntArray | None
    placer: Placer | None
    idle_reserve: int

    @cached_property
    def counts(self) -> Mapping[Shape, int]:
        """Number of its pods of each shape."""
        return Counter(pod.shape for pod in self.pods)

    @cached_property
    def resources(self) -> Sequence[str]:
        """All resources that the pods or the idle reserve need."""
        names = {name for shape in self.counts for name, _ in shape.requests}
        return sorted(names | ({self.node_resources.pool.unit_resource} if self.idle_reserve else set()))

    @property
    def is_countable(self) -> bool:
        """Whether counting alone decides if the gang fits."""
        return (
            self.placer is None
            and len(self.counts) == 1
            and self.node_resources.free.zones is None
            and not self.idle_reserve
            and not have_peer_rules(self.pods)
        )

    def find_placement(self) -> NodesByPod | None:
        """Return the gang's nodes given the current resources, which stay unchanged."""
        node_resources, gang = self.node_resources, self.gang
        with node_resources.trial():
            if self.placer is not None:
                found = self.placer(node_resources)
            else:
                found = place_pods(
                    node_resources,
                    self.pods,
                    required_level=gang.required_level,
                    preferred_level=gang.preferred_level,
                    among=self.allowed,
                )
                if self.idle_reserve and found is not None and node_resources.free.idle_units < self.idle_reserve:
                    found = None
        return found

    def search_space(self) -> SearchSpace:
        """Return the free amounts and requests in the form of the search."""
        node_resources, level = self.node_resources, self.gang.required_level
        lines = [node_resources.free.amounts_of(name) for name in self.resources]
        if self.ceiling is not None:
            lines.append(self.ceiling)
        free = np.array(lines, dtype=np.int64).reshape(len(lines), len(node_resources.nodes))
        domain = (
            node_resources.nodes.filter.label_column(level).codes
            if level
            else np.zeros(len(node_resources.nodes), dtype=np.int64)
        )
        counts, unit = self.counts, node_resources.pool.unit_resource
        shapes = sorted(
            counts, key=lambda shape: (-shape.amount_of(unit), node_resources.views[shape].total, shape.requests)
        )
        groups = [
            PodGroup(
                self._request_of(shape), counts[shape], self.allowed & node_resources.nodes.filter.feasible_nodes(shape)
            )
            for shape in shapes
        ]
        if self.idle_reserve and not level:
            # A reserve may be in any domain, so it is not counted within one.
            groups.append(
                PodGroup(
                    self._request_of(Shape.from_requests({unit: 1000})),
                    -(-self.idle_reserve // 1000),
                    node_resources.nodes.filter.usable,
                )
            )
        return SearchSpace(free, domain, groups)

    def search_spaces(self, space: SearchSpace) -> Iterator[SearchSpace]:
        """Yield the spaces to search, the smallest requests first: guarantees and zones may need more than a count."""
        yield from space.bundled_spaces() if self.placer is not None else (space,)
        unit = self.node_resources.pool.unit_resource
        if self.node_resources.free.zones is not None and unit in self.resources:
            yield from space.widened_spaces(self.resources.index(unit), self.node_resources.nodes.largest_units)

    def resource_lines(self) -> list[str]:
        """Return the resources by line; the line of the ceiling is freed by no candidate."""
        return [*self.resources, *([""] if self.ceiling is not None else [])]

    def _request_of(self, shape: Shape) -> IntArray:
        amounts = [shape.amount_of(name) for name in self.resources]
        if self.ceiling is not None:
            amounts.append(shape.amount_of(self.node_resources.pool.unit_resource))
        return np.array(amounts, dtype=np.int64)


def _search_at_stage(
    request: _SearchRequest, space: SearchSpace, costs: PreemptionCosts, stage: EvictionStage
) -> _VictimSet | None:
    """Return the cheapest set found at a stage, counted as evicted; None: the resources are unchanged."""
    priced = price_candidates(request.candidates, request.node_resources, request.resource_lines(), costs, stage)
    if not len(space.feasible_domains(free_after_eviction(space, priced.rows))):
        return None
    for searched in request.search_spaces(space):
        candidates: dict[tuple[int, ...], float] = {}
        for proposal in propose_victim_sets(searched, priced):
            numbers = reprieve_by_count(space, priced, proposal) if request.is_countable else proposal.tolist()
            candidates.setdefault(tuple(numbers), float(costs.lost[proposal].sum()))
        for chosen in sorted(candidates, key=lambda victims: int(priced.cost[list(victims)].sum())):
            victims = _try_victims(request, space, priced, chosen, candidates[chosen])
            if victims is not None:
                return victims
    # Counting says that it fits, but placement fails because of shapes or guarantees: begin with all candidates.
    return _try_victims(request, space, priced, np.unique(priced.rows.candidate).tolist(), 0.0)


def _try_victims(
    request: _SearchRequest, space: SearchSpace, priced: PricedCandidates, numbers: Sequence[int], initial_loss: float
) -> _VictimSet | None:
    """Try the placement without these candidates, and spare those that it does not need."""
    node_resources = request.node_resources
    victims = {number: victim for number in numbers if (victim := request.candidates.candidates[number]) is not None}
    evicted = Counter((pod.node, pod.shape) for victim in victims.values() for pod in victim.pods)
    with node_resources.trial() as trial:
        for (node, shape), count in evicted.items():
            if node in node_resources.nodes:
                node_resources.remove_pods(node, shape, count)
        nodes = request.find_placement()
        if nodes is None:
            return None
        trial.commit()
    if not request.is_countable:
        remaining, nodes = reprieve_by_trial(
            node_resources,
            space,
            priced,
            victims,
            place=request.find_placement,
            nodes=nodes,
            anywhere=bool(request.idle_reserve) or have_peer_rules(request.pods),
        )
        victims = {number: victims[number] for number in remaining}
    return _VictimSet(victims, nodes, initial_loss)


def _build_choice(
    request: _SearchRequest,
    victims: Mapping[int, PreemptionCandidate],
    nodes: NodesByPod,
    ending: Sequence[Pod],
    *,
    now: float,
    costs: PreemptionCosts | None = None,
    initial_loss: float = 0.0,
) -> VictimChoice:
    by_gang: dict[str, list[PreemptionCandidate]] = {}
    lost: dict[str, float] = {}
    for number, victim in victims.items():
        by_gang.setdefault(victim.gang.id, []).append(victim)
        lost[victim.gang.id] = lost.get(victim.gang.id, 0.0) + (float(costs.lost[number]) if costs is not None else 0.0)
    total = sum(lost.values())
    saved = max(0.0, initial_loss - total)
    evicts = (build_evict(by_gang[gang], request.gang, lost=lost[gang], now=now) for gang in sorted(lost))
    return VictimChoice(
        nodes=nodes,
        evicts=tuple(replace(evict, saved=saved) for evict in evicts),
        awaited_pods=_awaited_pods(request.node_resources, request.pods, nodes, ending),
        lost=total,
        saved=saved,
    )


def build_evict(victims: Sequence[PreemptionCandidate], request: Gang, *, lost: float, now: float) -> Evict:
    """Return the eviction of these candidates of one gang for another gang."""
    gang = victims[0].gang
    whole = any(victim.whole for victim in victims)
    chosen = {pod.uid for victim in victims for pod in victim.pods}
    evicted = [pod for pod in victims[0].running_pods if whole or pod.uid in chosen]
    elsewhere = gang.part_info.pods_elsewhere if whole and gang.part_info is not None else ()
    return Evict(
        gang=gang.id,
        pods=tuple(pod.uid for pod in evicted),
        whole=whole,
        makes_room_for=request.whole_id,
        deadline=now + notice_seconds(gang, (*evicted, *elsewhere), now),
        lost=lost,
    )


def _awaited_pods(
    node_resources: NodeResources, pods: Sequence[Pod], nodes: NodesByPod, ending: Sequence[Pod]
) -> tuple[str, ...]:
    """Return the ending pods without whose resources, counted as free, the gang does not fit on its nodes.

    The gang does without the latest ones first.
    """
    used, zones, awaited = set(nodes.values()), node_resources.free.zones, []
    with node_resources.trial():
        for pod in pods:
            node_resources.add_pods(nodes[pod.uid], pod.shape)
        for pod in sorted(ending, key=lambda pod: (-pod.deadline, pod.uid)):
            if pod.node not in used:
                continue
            free = node_resources.free.amounts_on(pod.node)
            if zones is not None and zones.is_zoned(pod.node):
                awaited.append(pod.uid)  # it may use the required zone
            elif all(free.get(name, amount) >= amount for name, amount in pod.shape.requests):
                node_resources.add_pods(pod.node, pod.shape)
            else:
                awaited.append(pod.uid)
    return tuple(sorted(awaited))
