"""Which node each pod of a gang gets: all of them or none, near each other as asked, whole nodes kept whole.

What counts, most telling first: the required level of the network, the preferred one (one domain before two), no whole
node broken into without need, the least left over of a domain, then the order of nodes of `views.ShapeView`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vkgateway.arbiter.capacity.node_fit import BoolArray, IntArray
from vkgateway.arbiter.capacity.node_resources import AllowedNodes, NodeResources
from vkgateway.arbiter.capacity.shape_views import NEVER, ShapeView
from vkgateway.arbiter.capacity.topology_domains import PodDemand, TopologyDomains
from vkgateway.arbiter.snapshot import Pod, Shape

_FIRST_STEPS = 4
"""So many more domains are tried one at a time before the number is doubled."""


@dataclass(frozen=True, slots=True)
class _ShapeGroup:
    """Pods of one shape, in the order of their ranks."""

    shape: Shape
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class _GroupPlacement:
    """Where the pods of one group go: so many on each position."""

    group: _ShapeGroup
    positions: list[int]
    counts: list[int]


def place_pods(
    room: NodeResources,
    pods: Sequence[Pod],
    *,
    required_level: str = "",
    preferred_level: str = "",
    among: AllowedNodes = None,
    liked: BoolArray | None = None,
) -> dict[str, str] | None:
    """Find a node for every pod and take the room there; None: they do not all fit, and the room is as it was.

    Pods' uids to nodes' names, in the order of the pods. All stand within one value of the node label
    `required_level`, and of `preferred_level` if that can be; neighbours in rank stand near each other. To try
    only, mark the room before and undo afterwards. `liked`: nodes, by position, that pods take before others that are
    equal to them in all else.
    """
    if not pods:
        return {}
    allowed = _allowed_positions(room, among)
    if len(pods) == 1 and not required_level:
        return _place_one(room, pods[0], allowed, liked)
    groups = _group_by_shape(room, pods)
    what = None
    if allowed is None and (required_level or len(groups) > 1):
        what = required_level, tuple((group.shape, len(group.pods)) for group in groups)
    if what is not None and room.is_known_unfit(what):
        return None
    search = _PlacementSearch(room, groups, allowed, liked)
    found = search.place_within(required_level, preferred_level)
    if found is not None:
        return _assign_pods(room, pods, found, preferred_level)
    if what is not None:
        room.remember_unfit(what)
    return None


def count_placeable(
    room: NodeResources, pods: Sequence[Pod], *, required_level: str = "", among: AllowedNodes = None
) -> int:
    """How many of the pods would fit at most, the small ones first; the room stays as it is."""
    groups = _group_by_shape(room, pods)[::-1]
    allowed = _allowed_positions(room, among)
    search = _PlacementSearch(room, groups, allowed)
    if not required_level:
        return search.count_placeable(allowed)
    domains = search.domains_at(required_level, allowed)
    most = 0
    for bound, domain in domains.rank_by_capacity():
        if bound <= most:
            break
        most = max(most, search.count_placeable(domains.nodes_in_domain(domain)))
    return most


def _place_one(
    room: NodeResources, pod: Pod, allowed: IntArray | None, liked: BoolArray | None
) -> dict[str, str] | None:
    """What the search comes to for a lone pod: most pods are, so it is worth its own short way."""
    view = room.shape_view(pod.shape)
    keys = view.key
    position = _smallest_key(keys) if allowed is None else _smallest_key(keys[allowed])
    if position is None:
        return None
    if allowed is not None:
        position = allowed.item(position)
    if liked is not None and not liked.item(position):
        equals = view.equal_nodes(position)
        equals = equals[liked[equals]]
        if allowed is not None:
            equals = equals[np.isin(equals, allowed)]
        position = equals.item(0) if len(equals) else position
    room.add_pods_at([position], pod.shape, [1])
    return {pod.uid: room.names[position]}


def _allowed_positions(room: NodeResources, among: AllowedNodes) -> IntArray | None:
    """The positions of the nodes that are allowed; None: all, for which more is known beforehand."""
    if among is None:
        return None
    mask = room.node_mask(among)
    return None if mask.all() else np.flatnonzero(mask)


def _group_by_shape(room: NodeResources, pods: Sequence[Pod]) -> list[_ShapeGroup]:
    """The pods by shape: those that ask for most units first, of equals those of which fewer fit."""
    by_shape: dict[Shape, list[Pod]] = {}
    for pod in pods:
        by_shape.setdefault(pod.shape, []).append(pod)
    groups = [_ShapeGroup(shape, tuple(sorted(same, key=_rank_key))) for shape, same in by_shape.items()]
    if len(groups) > 1:
        unit = room.pool.unit_resource
        groups.sort(
            key=lambda group: (-group.shape.amount_of(unit), room.total_capacity(group.shape), _rank_key(group.pods[0]))
        )
    return groups


def _is_descending(groups: Sequence[_ShapeGroup]) -> bool:
    """Whether none asks for more of anything than the one before it."""
    return all(
        amount <= larger.shape.amount_of(name)
        for larger, smaller in pairwise(groups)
        for name, amount in smaller.shape.requests
    )


def _rank_key(pod: Pod) -> tuple[int, str]:
    return pod.rank, pod.uid


def _assign_pods(
    room: NodeResources, pods: Sequence[Pod], parts: Sequence[_GroupPlacement], preferred_level: str
) -> dict[str, str]:
    """Pods in the order of their ranks along the nodes in the order of the network."""
    codes = (
        room.node_filter.label_column(preferred_level).codes if preferred_level not in ("", *room.pool.levels) else None
    )
    nodes: dict[str, str] = {}
    for part in parts:
        along = sorted(
            zip(part.positions, part.counts, strict=True),
            key=lambda pair: (0 if codes is None else codes.item(pair[0]), pair[0]),
        )
        names = (room.names[position] for position, count in along for _ in range(count))
        nodes.update(zip((pod.uid for pod in part.group.pods), names, strict=True))
    return {pod.uid: nodes[pod.uid] for pod in pods}


class _PlacementSearch:
    """The search for one gang. What it finds is taken in the room; where it finds nothing the room is as it was."""

    def __init__(
        self,
        room: NodeResources,
        groups: Sequence[_ShapeGroup],
        allowed: IntArray | None,
        liked: BoolArray | None = None,
    ) -> None:
        self._node_resources = room
        self._groups = groups
        self._allowed = allowed
        self._preferred_nodes = liked

    def place_within(self, required_level: str, preferred_level: str) -> list[_GroupPlacement] | None:
        """All of them within one domain of the required level, if one is given."""
        if not self._may_fit(self._allowed):
            return None
        if not required_level:
            return self._place_near(self._allowed, "", preferred_level)
        domains = self.domains_at(required_level, self._allowed)
        for domain in domains.rank_by_fit():
            found = self._place_near(domains.nodes_in_domain(domain), required_level, preferred_level)
            if found is not None:
                return found
        return None

    def count_placeable(self, positions: IntArray | None) -> int:
        """How many fit there, the groups in their order; the room is left as it was."""
        mark = self._node_resources.mark()
        count = 0
        for group in self._groups:
            chosen, counts = _fill_positions(self._node_resources.shape_view(group.shape), len(group.pods), positions)
            self._node_resources.add_pods_at(chosen, group.shape, counts)
            count += sum(counts)
        self._node_resources.undo(mark)
        return count

    def domains_at(self, level: str, positions: IntArray | None) -> TopologyDomains:
        """The domains of a level among the positions."""
        demands = [PodDemand(group.shape, len(group.pods)) for group in self._groups]
        return TopologyDomains(self._node_resources, demands, level, positions)

    def _may_fit(self, positions: IntArray | None) -> bool:
        """Whether there is room enough for each group by itself."""
        for group in self._groups:
            view = self._node_resources.shape_view(group.shape)
            total = view.total if positions is None else int(view.capacity[positions].sum())
            if total < len(group.pods):
                return False
        return True

    def _place_near(
        self, positions: IntArray | None, required_level: str, preferred_level: str
    ) -> list[_GroupPlacement] | None:
        """Within one domain of the preferred level, or else of the next wider, or else in as few as can be."""
        if not preferred_level or sum(len(group.pods) for group in self._groups) == 1:
            return self._fill_nodes(positions)
        domains = self.domains_at(preferred_level, positions)
        for domain in domains.rank_by_fit():
            found = self._fill_nodes(domains.nodes_in_domain(domain))
            if found is not None:
                return found
        for level in self._wider_levels(preferred_level, required_level):
            domains = self.domains_at(level, positions)
            wider = [domains.nodes_in_domain(domain) for domain in domains.rank_by_fit()]
            for inside in sorted(wider, key=lambda inside: self.domains_at(preferred_level, inside).min_domains()):
                found = self._place_in_fewest(preferred_level, inside)
                if found is not None:
                    return found
        return self._place_in_fewest(preferred_level, positions)

    def _wider_levels(self, level: str, end: str) -> list[str]:
        """The levels of the network wider than this one, up to the one that is required anyhow."""
        levels = self._node_resources.pool.levels
        if level not in levels:
            return []
        start = levels.index(end) + 1 if end in levels else 0
        return list(reversed(levels[start : levels.index(level)]))

    def _place_in_fewest(self, level: str, positions: IntArray | None) -> list[_GroupPlacement] | None:
        """In as few domains as can be."""
        domains = self.domains_at(level, positions)
        for few in domains.growing_unions(_FIRST_STEPS):
            found = self._fill_nodes(few)
            if found is not None:
                return found
        return self._fill_nodes(positions)

    def _fill_nodes(self, positions: IntArray | None) -> list[_GroupPlacement] | None:
        """On these nodes; in the first order of the groups in which all fit."""
        found = (self._fill_in_order(order, positions) for order in self._group_orders(positions))
        return next((parts for parts in found if parts is not None), None)

    def _group_orders(self, positions: IntArray | None) -> Iterator[Sequence[_ShapeGroup]]:
        """The largest first; those first that have the least choice; where none is the largest in all, each first."""
        groups = self._groups
        yield groups
        if len(groups) == 1:
            return
        choosy = sorted(
            groups, key=lambda group: self._node_resources.shape_view(group.shape).count_fitting_nodes(positions)
        )
        orders = [choosy]
        if not _is_descending(groups):
            orders += ([first, *(group for group in choosy if group is not first)] for first in choosy[1:])
        yield from (order for order in orders if order != groups)

    def _fill_in_order(self, groups: Sequence[_ShapeGroup], positions: IntArray | None) -> list[_GroupPlacement] | None:
        mark = self._node_resources.mark()
        parts = []
        for group in groups:
            chosen, counts = _fill_positions(
                self._node_resources.shape_view(group.shape), len(group.pods), positions, self._preferred_nodes
            )
            if sum(counts) < len(group.pods):
                self._node_resources.undo(mark)
                return None
            self._node_resources.add_pods_at(chosen, group.shape, counts)
            parts.append(_GroupPlacement(group, chosen, counts))
        return parts


def _fill_positions(
    view: ShapeView, count: int, positions: IntArray | None, liked: BoolArray | None = None
) -> tuple[list[int], list[int]]:
    """Choose nodes for as many of `count` equal pods as fit: positions, and how many go to each.

    Once a node has a pod it is the fullest of those that it was chosen from; so each is filled before the next.
    """
    keys = view.key if positions is None else view.key[positions]
    chosen: list[int] = []
    counts: list[int] = []
    order = (index if positions is None else positions.item(index) for index in _smallest_keys(keys, count))
    for position in order if liked is None else _preferred_first(view, order, positions, liked):
        here = min(view.capacity.item(position), count)
        chosen.append(position)
        counts.append(here)
        count -= here
        if count == 0:
            break
    return chosen, counts


def _preferred_first(
    view: ShapeView, order: Iterable[int], positions: IntArray | None, liked: BoolArray
) -> Iterator[int]:
    """As many positions as these: of nodes that are equal but for their position the liked ones first."""
    worth, rest = None, None
    for position in order:
        if (now := view.worth_of(position)) != worth:
            worth, rest = now, None
        if rest is None and not liked.item(position):
            # All before it are liked: they are in order.
            equals = view.equal_nodes(position)
            equals = equals if positions is None else equals[np.isin(equals, positions)]
            left = equals[equals >= position]
            rest = iter([*left[liked[left]].tolist(), *left[~liked[left]].tolist()])
        yield position if rest is None else next(rest)


def _smallest_keys(keys: IntArray, count: int) -> Iterator[int]:
    """The indices of up to `count` keys in rising order; none where all are NEVER."""
    first = _smallest_key(keys)
    if first is None:
        return
    yield first
    if count == 1:
        return
    best = np.argpartition(keys, count - 1)[:count] if count < len(keys) else np.arange(len(keys))
    best = best[np.argsort(keys[best])]
    yield from best[1:].tolist()


def _smallest_key(keys: IntArray) -> int | None:
    """The index of the smallest key; None where all are NEVER."""
    if len(keys) == 0:
        return None
    first = int(keys.argmin())
    return first if keys.item(first) != NEVER else None
