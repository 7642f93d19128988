"""Placement of a gang: a node for each pod or none, close together as required, with whole nodes kept whole.

The criteria, the most important first: the required topology level; the preferred level (one domain before two); no
whole node broken without need; the least capacity left in a domain; the node order of `shape_views.ShapeView`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import BoolArray, IntArray
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.node_table import AllowedNodes
from vkgateway.scheduler.core.capacity.shape_views import NEVER, ShapeView
from vkgateway.scheduler.core.capacity.topology_domains import PodDemand, TopologyDomains
from vkgateway.scheduler.core.snapshot import Pod, Shape, have_peer_rules

_FIRST_STEPS = 4
"""Number of domains that are added one at a time before the number doubles."""


@dataclass(frozen=True, slots=True)
class _ShapeGroup:
    """Pods of one shape, by rank."""

    shape: Shape
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class _GroupPlacement:
    """Number of pods of a group on each chosen position."""

    group: _ShapeGroup
    positions: list[int]
    counts: list[int]


def place_pods(
    resources: NodeResources,
    pods: Sequence[Pod],
    *,
    required_level: str = "",
    preferred_level: str = "",
    among: AllowedNodes = None,
    preferred_nodes: BoolArray | None = None,
) -> dict[str, str] | None:
    """Place every pod and return node names by pod uid, in the order of the pods; None: they do not all fit.

    Without a result the node resources are unchanged. All pods share one value of the node label `required_level` and,
    if possible, of `preferred_level`; pods of adjacent ranks are close together. To try only, mark the resources before
    and undo afterwards. `preferred_nodes`: mask of nodes that pods take before nodes that are otherwise equal. Avoided
    nodes (`Node.failed_gangs`) come last, whatever the topology.
    """
    if not pods:
        return {}
    attempts = (
        _place_among(
            resources,
            pods,
            nodes,
            required_level=required_level,
            preferred_level=preferred_level,
            preferred_nodes=preferred_nodes,
        )
        for nodes in resources.nodes.avoided_last(among)
    )
    return next((found for found in attempts if found is not None), None)


def _place_among(
    resources: NodeResources,
    pods: Sequence[Pod],
    among: AllowedNodes,
    *,
    required_level: str,
    preferred_level: str,
    preferred_nodes: BoolArray | None,
) -> dict[str, str] | None:
    allowed = _allowed_positions(resources, among)
    if have_peer_rules(pods):
        in_order = _group_by_shape(resources, pods)
        return _PlacementSearch(resources, in_order, allowed, preferred_nodes).place_by_peer_rules(
            pods, required_level, preferred_level
        )
    if len(pods) == 1 and not required_level:
        return _place_one(resources, pods[0], allowed, preferred_nodes)
    groups = _group_by_shape(resources, pods)
    key = None
    if allowed is None and (required_level or len(groups) > 1):
        key = required_level, tuple((group.shape, len(group.pods)) for group in groups)
    if key is not None and key in resources.unfit:
        return None
    search = _PlacementSearch(resources, groups, allowed, preferred_nodes)
    found = search.place_within(required_level, preferred_level)
    if found is not None:
        return _assign_pods(resources, pods, found, preferred_level)
    if key is not None:
        resources.unfit.add(key)
    return None


def count_placeable(
    resources: NodeResources, pods: Sequence[Pod], *, required_level: str = "", among: AllowedNodes = None
) -> int:
    """Return the highest number of these pods that fit, small ones first, without a change of the resources."""
    groups = _group_by_shape(resources, pods)[::-1]
    allowed = _allowed_positions(resources, among)
    search = _PlacementSearch(resources, groups, allowed)
    if have_peer_rules(pods):
        return search.count_by_peer_rules(required_level)
    if not required_level:
        return search.count_placeable(allowed)
    domains = search.domains_at(required_level, allowed)
    most = 0
    for bound, nodes in domains.rank_by_capacity():
        if bound <= most:
            break
        most = max(most, search.count_placeable(nodes))
    return most


def _place_one(
    resources: NodeResources, pod: Pod, allowed: IntArray | None, preferred_nodes: BoolArray | None
) -> dict[str, str] | None:
    """Place a single pod: the common case, by a short path to the same result."""
    view = resources.views[pod.shape]
    keys = view.key
    position = _smallest_key(keys) if allowed is None else _smallest_key(keys[allowed])
    if position is None:
        return None
    if allowed is not None:
        position = allowed.item(position)
    if preferred_nodes is not None and not preferred_nodes.item(position):
        equals = view.equal_nodes(position)
        equals = equals[preferred_nodes[equals]]
        if allowed is not None:
            equals = equals[np.isin(equals, allowed)]
        position = equals.item(0) if len(equals) else position
    resources.add_pods_at([position], pod.shape, [1])
    return {pod.uid: resources.nodes.names[position]}


def _allowed_positions(resources: NodeResources, among: AllowedNodes) -> IntArray | None:
    """Return the positions of the allowed nodes; None: all nodes, for which totals are cached."""
    if among is None:
        return None
    mask = resources.nodes.mask_of(among)
    return None if mask.all() else np.flatnonzero(mask)


def _group_by_shape(resources: NodeResources, pods: Sequence[Pod]) -> list[_ShapeGroup]:
    """Return the pods by shape: the most units first, then the shapes of which the fewest fit."""
    by_shape: dict[Shape, list[Pod]] = {}
    for pod in pods:
        by_shape.setdefault(pod.shape, []).append(pod)
    groups = [_ShapeGroup(shape, tuple(sorted(same, key=_rank_key))) for shape, same in by_shape.items()]
    if len(groups) > 1:
        unit = resources.pool.unit_resource
        groups.sort(
            key=lambda group: (
                -group.shape.amount_of(unit),
                resources.views[group.shape].total,
                _rank_key(group.pods[0]),
            )
        )
    return groups


def _is_descending(groups: Sequence[_ShapeGroup]) -> bool:
    """Return whether no group requests more of any resource than the group before it."""
    return all(
        amount <= larger.shape.amount_of(name)
        for larger, smaller in pairwise(groups)
        for name, amount in smaller.shape.requests
    )


def _rank_key(pod: Pod) -> tuple[int, str]:
    return pod.rank, pod.uid


def _assign_pods(
    resources: NodeResources, pods: Sequence[Pod], parts: Sequence[_GroupPlacement], preferred_level: str
) -> dict[str, str]:
    """Assign the pods, by rank, to the chosen nodes in topology order."""
    codes = (
        resources.nodes.filter.label_column(preferred_level).codes
        if preferred_level not in ("", *resources.pool.levels)
        else None
    )
    nodes: dict[str, str] = {}
    for part in parts:
        ordered = sorted(
            zip(part.positions, part.counts, strict=True),
            key=lambda pair: (0 if codes is None else codes.item(pair[0]), pair[0]),
        )
        names = (resources.nodes.names[position] for position, count in ordered for _ in range(count))
        nodes.update(zip((pod.uid for pod in part.group.pods), names, strict=True))
    return {pod.uid: nodes[pod.uid] for pod in pods}


class _PlacementSearch:
    """Placement search for one gang. A found placement stays in the node resources; a failed search changes nothing."""

    def __init__(
        self,
        resources: NodeResources,
        groups: Sequence[_ShapeGroup],
        allowed: IntArray | None,
        preferred_nodes: BoolArray | None = None,
    ) -> None:
        self._node_resources = resources
        self._groups = groups
        self._allowed = allowed
        self._preferred_nodes = preferred_nodes

    def place_within(self, required_level: str, preferred_level: str) -> list[_GroupPlacement] | None:
        """Place all groups, within one domain of the required level if there is one."""
        if not self._may_fit(self._allowed):
            return None
        if not required_level:
            return self._place_near(self._allowed, "", preferred_level)
        domains = self.domains_at(required_level, self._allowed)
        for nodes in domains.rank_by_fit():
            found = self._place_near(nodes, required_level, preferred_level)
            if found is not None:
                return found
        return None

    def place_by_peer_rules(
        self, pods: Sequence[Pod], required_level: str, preferred_level: str
    ) -> dict[str, str] | None:
        """Return nodes by uid, in the order of the pods, which have hard constraints about other pods.

        They are placed one after the other, as by kube-scheduler: each place decides where the next pod may go. In the
        end, each keeps its constraints beside all others: a plan of these nodes is checked again before it starts.
        """
        if not self._may_fit(self._allowed):
            return None
        for nodes in self._areas_for_peer_rules(required_level, preferred_level):
            with self._node_resources.trial() as trial:
                found = self._place_in_turn(nodes)
                if len(found) == len(pods) and self._node_resources.keep_peer_rules(
                    (found[pod.uid], pod.shape) for pod in pods
                ):
                    trial.commit()
                    return {pod.uid: found[pod.uid] for pod in pods}
        return None

    def count_by_peer_rules(self, required_level: str) -> int:
        """Return how many pods fit one after the other, without a change of the resources."""
        domains = self.domains_at(required_level, self._allowed).rank_by_capacity() if required_level else ()
        most = 0
        for nodes in [each for _, each in domains] if required_level else [self._allowed]:
            with self._node_resources.trial():
                most = max(most, len(self._place_in_turn(nodes)))
        return most

    def _areas_for_peer_rules(self, required_level: str, preferred_level: str) -> Iterator[IntArray | None]:
        """Yield the nodes to try: each domain of the preferred level, then all, then each domain of the topology keys
        of pod affinity, as the first pod may take a domain that is too small for the pods that must join it.
        """
        keys = {key for group in self._groups if group.shape.peers for key in group.shape.peers.affinity_keys}
        wide = self.domains_at(required_level, self._allowed).rank_by_fit() if required_level else [self._allowed]
        for nodes in wide:
            if preferred_level:
                yield from self.domains_at(preferred_level, nodes).rank_by_fit()
            yield nodes
            for key in sorted(keys):
                yield from self.domains_at(key, nodes).rank_by_fit()

    def _place_in_turn(self, nodes: IntArray | None) -> dict[str, str]:
        """Place as many pods as fit on these nodes, each where all hard constraints permit it; return nodes by uid.

        Later pods may open a place for earlier ones, so those are tried again.
        """
        resources = self._node_resources
        among = resources.nodes.mask_of(None) if nodes is None else np.isin(np.arange(len(resources.nodes)), nodes)
        found: dict[str, str] = {}
        left, placed = [pod for group in self._groups for pod in group.pods], -1
        while left and placed < len(found):
            placed = len(found)
            for pod in left:
                permitted = resources.permitted_nodes(pod.shape)
                positions = np.flatnonzero(among if permitted is None else among & permitted)
                found |= _place_one(resources, pod, positions, self._preferred_nodes) or {}
            left = [pod for pod in left if pod.uid not in found]
        return found

    def count_placeable(self, positions: IntArray | None) -> int:
        """Return how many pods fit there, in the order of the groups, without a change of the resources."""
        with self._node_resources.trial():
            count = 0
            for group in self._groups:
                chosen, counts = _fill_positions(self._node_resources.views[group.shape], len(group.pods), positions)
                self._node_resources.add_pods_at(chosen, group.shape, counts)
                count += sum(counts)
        return count

    def domains_at(self, level: str, positions: IntArray | None) -> TopologyDomains:
        """Return the domains of a level among the positions."""
        demands = [PodDemand(group.shape, len(group.pods)) for group in self._groups]
        return TopologyDomains(self._node_resources, demands, level, positions)

    def _may_fit(self, positions: IntArray | None) -> bool:
        """Return whether each group fits by itself."""
        for group in self._groups:
            view = self._node_resources.views[group.shape]
            total = view.total if positions is None else int(view.capacity[positions].sum())
            if total < len(group.pods):
                return False
        return True

    def _place_near(
        self, positions: IntArray | None, required_level: str, preferred_level: str
    ) -> list[_GroupPlacement] | None:
        """Place within one domain of the preferred level, else of the next wider level, else in the fewest domains."""
        if not preferred_level or sum(len(group.pods) for group in self._groups) == 1:
            return self._fill_nodes(positions)
        domains = self.domains_at(preferred_level, positions)
        for nodes in domains.rank_by_fit():
            found = self._fill_nodes(nodes)
            if found is not None:
                return found
        for level in self._wider_levels(preferred_level, required_level):
            wider = self.domains_at(level, positions).rank_by_fit()
            for nodes in sorted(wider, key=lambda inside: self.domains_at(preferred_level, inside).min_domains()):
                found = self._place_in_fewest(preferred_level, nodes)
                if found is not None:
                    return found
        return self._place_in_fewest(preferred_level, positions)

    def _wider_levels(self, level: str, required_level: str) -> list[str]:
        """Return the topology levels wider than this one, up to the required level."""
        levels = self._node_resources.pool.levels
        if level not in levels:
            return []
        start = levels.index(required_level) + 1 if required_level in levels else 0
        return list(reversed(levels[start : levels.index(level)]))

    def _place_in_fewest(self, level: str, positions: IntArray | None) -> list[_GroupPlacement] | None:
        """Place in as few domains as possible."""
        domains = self.domains_at(level, positions)
        for union in domains.growing_unions(_FIRST_STEPS):
            found = self._fill_nodes(union)
            if found is not None:
                return found
        return self._fill_nodes(positions)

    def _fill_nodes(self, positions: IntArray | None) -> list[_GroupPlacement] | None:
        """Place on these nodes, in the first order of the groups in which all fit."""
        found = (self._fill_in_order(order, positions) for order in self._group_orders(positions))
        return next((parts for parts in found if parts is not None), None)

    def _group_orders(self, positions: IntArray | None) -> Iterator[Sequence[_ShapeGroup]]:
        """Yield orders of the groups: largest first; fewest feasible nodes first; without a largest, each one first."""
        groups = self._groups
        yield groups
        if len(groups) == 1:
            return
        by_choice = sorted(
            groups, key=lambda group: self._node_resources.views[group.shape].count_fitting_nodes(positions)
        )
        orders = [by_choice]
        if not _is_descending(groups):
            orders += ([first, *(group for group in by_choice if group is not first)] for first in by_choice[1:])
        yield from (order for order in orders if order != groups)

    def _fill_in_order(self, groups: Sequence[_ShapeGroup], positions: IntArray | None) -> list[_GroupPlacement] | None:
        parts = []
        with self._node_resources.trial() as trial:
            for group in groups:
                chosen, counts = _fill_positions(
                    self._node_resources.views[group.shape], len(group.pods), positions, self._preferred_nodes
                )
                if sum(counts) < len(group.pods):
                    return None
                self._node_resources.add_pods_at(chosen, group.shape, counts)
                parts.append(_GroupPlacement(group, chosen, counts))
            trial.commit()
        return parts


def _fill_positions(
    view: ShapeView, count: int, positions: IntArray | None, preferred_nodes: BoolArray | None = None
) -> tuple[list[int], list[int]]:
    """Choose nodes for as many of `count` equal pods as fit; return positions and counts.

    A node with a pod is the fullest of its candidates, so each node is filled before the next.
    """
    keys = view.key if positions is None else view.key[positions]
    chosen: list[int] = []
    counts: list[int] = []
    order = (index if positions is None else positions.item(index) for index in _smallest_keys(keys, count))
    for position in order if preferred_nodes is None else _preferred_first(view, order, positions, preferred_nodes):
        fitting = min(view.capacity.item(position), count)
        chosen.append(position)
        counts.append(fitting)
        count -= fitting
        if count == 0:
            break
    return chosen, counts


def _preferred_first(
    view: ShapeView, order: Iterable[int], positions: IntArray | None, preferred_nodes: BoolArray
) -> Iterator[int]:
    """Yield the same number of positions: among nodes of equal worth, the preferred ones first."""
    worth, remaining = None, None
    for position in order:
        if (current := view.worth_of(position)) != worth:
            worth, remaining = current, None
        if remaining is None and not preferred_nodes.item(position):
            # All positions before it are preferred: they are in order.
            equals = view.equal_nodes(position)
            equals = equals if positions is None else equals[np.isin(equals, positions)]
            left = equals[equals >= position]
            remaining = iter([*left[preferred_nodes[left]].tolist(), *left[~preferred_nodes[left]].tolist()])
        yield position if remaining is None else next(remaining)


def _smallest_keys(keys: IntArray, count: int) -> Iterator[int]:
    """Yield the indices of up to `count` keys in ascending order; none where all are NEVER."""
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
    """Return the index of the smallest key; None where all are NEVER."""
    if len(keys) == 0:
        return None
    first = int(keys.argmin())
    return first if keys.item(first) != NEVER else None
