"""Placement of a gang inside its tenant's guarantee, by free capacity and by what the guarantees of all allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import product

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import ABSENT, BoolArray, IntArray
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.node_table import AllowedNodes
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees, use_for_pods, use_placed
from vkgateway.scheduler.core.preemption.node_costs import count_fitting_pods
from vkgateway.scheduler.core.preemption.search_stage import has_resources
from vkgateway.scheduler.core.snapshot import Gang, Pod, Shape


class GuaranteedPlacement:
    """Placement of some pods inside a tenant's guarantee; it changes neither node resources nor guarantees."""

    def __init__(
        self,
        guarantees: PoolGuarantees,
        tenant: str,
        pods: Sequence[Pod],
        *,
        required_level: str = "",
        preferred_level: str = "",
        among: BoolArray | None = None,
        reservation: GuaranteeReservation | None = None,
    ) -> None:
        """Create the placement.

        `reservation`: what is reserved of the guarantee for a gang ahead, which these pods must leave to it.
        """
        self._guarantees = guarantees
        self._tenant = tenant
        self._pods = pods
        self._reservation = reservation
        self._required_level = required_level
        self._preferred_level = preferred_level
        self._allowed_nodes = among

    def __call__(self, resources: NodeResources) -> dict[str, str] | None:
        """Return node names by pod uid; None: the pods do not all fit. Nodes that cost no promise are filled first."""
        if not self._fits_some_node(resources):
            return None
        attempts = (self._place_among(resources, among) for among in resources.nodes.avoided_last(self._allowed_nodes))
        return next((found for found in attempts if found is not None), None)

    def _place_among(self, resources: NodeResources, allowed: AllowedNodes) -> dict[str, str] | None:
        near_nodes = self._nodes_near_own(resources)
        modes = list(_PlacementMode)
        if resources.free.zones is not None or len({pod.shape for pod in self._pods}) == 1:
            modes.remove(_PlacementMode.MIXED)
        for mode, own_first in product(modes, (True, False)):
            for among in self._search_domains(resources, allowed, separate=mode is not _PlacementMode.SPREAD):
                found = None
                with resources.trial(), self._guarantees.trial():
                    if self._reservation is None or self._reservation.apply_to(self._guarantees):
                        search = _Search(
                            self._guarantees,
                            self._tenant,
                            resources,
                            self._required_level,
                            self._preferred_level,
                            near_nodes=near_nodes,
                        )
                        found = search.place_pods(self._pods, among, own_first=own_first, mode=mode)
                        if found is not None and not resources.keep_peer_rules(
                            (found[pod.uid], pod.shape) for pod in self._pods
                        ):
                            found = None  # Only some pods of a placement were kept, or a mode fills node by node.
                if found is not None and (self._reservation is None or self._is_allowed_now(resources, found)):
                    return {pod.uid: found[pod.uid] for pod in self._pods}
        return None

    def _fits_some_node(self, resources: NodeResources) -> bool:
        """Return whether the first pod fits on any node by free capacity and guarantees."""
        shape = self._pods[0].shape
        capacity = resources.views[shape].capacity
        fits = capacity > 0 if self._allowed_nodes is None else (capacity > 0) & self._allowed_nodes
        amount = shape.amount_of(resources.pool.unit_resource)
        if amount and fits.any():
            fits = fits & (self.usable_amounts(resources) >= amount)
        return bool(fits.any())

    def _nodes_near_own(self, resources: NodeResources) -> BoolArray | None:
        """Return the mask of nodes in those domains of the narrowest level that have nodes of the tenant alone."""
        if not resources.pool.levels:
            return None
        own = self._guarantees.exclusive_nodes(self._tenant)[resources.nodes.pool_order]
        codes = resources.nodes.filter.label_column(resources.pool.levels[-1]).codes
        return np.isin(codes, codes[own & (codes != ABSENT)]) if own.any() else None

    def _is_allowed_now(self, resources: NodeResources, nodes: Mapping[str, str]) -> bool:
        """Return whether the guarantees also allow this while the gang ahead still waits."""
        with self._guarantees.trial():
            return self._use(resources.pool.unit_resource, nodes)

    def _use(self, unit: str, nodes: Mapping[str, str]) -> bool:
        placed = [(pod, nodes[pod.uid]) for pod in self._pods]
        return use_for_pods(self._guarantees, self._tenant, unit, placed)

    def _search_domains(
        self, resources: NodeResources, allowed: AllowedNodes, *, separate: bool
    ) -> Iterator[BoolArray]:
        """Yield masks of nodes to search; `separate`: each domain of the required level by itself."""
        among = resources.nodes.mask_of(allowed)
        if not separate or not self._required_level:
            yield among
            return
        codes = resources.nodes.filter.label_column(self._required_level).codes
        for code in np.unique(codes[among & (codes != ABSENT)]):
            yield among & (codes == code)

    def usable_amounts(self, resources: NodeResources) -> IntArray:
        """Return the thousandths of the unit that the tenant may additionally use on each node, each node by itself."""
        current = usable_by_position(self._guarantees, self._tenant, resources)
        if self._reservation is None:
            return current
        with self._guarantees.trial():
            after_start = (
                usable_by_position(self._guarantees, self._tenant, resources)
                if self._reservation.apply_to(self._guarantees)
                else np.zeros_like(current)
            )
        return np.minimum(current, after_start)

    def commit_placement(self, nodes: Mapping[str, str], unit: str) -> None:
        """Use the guarantee for a found placement; no other use may have happened since."""
        if not self._use(unit, nodes):
            raise AssertionError(f"the guarantee of {self._tenant} was found to hold {nodes}")


def usable_by_position(guarantees: PoolGuarantees, tenant: str, resources: NodeResources) -> IntArray:
    """Return the thousandths of the unit that a tenant may additionally use, by position, each node by itself."""
    return guarantees.usable_amounts(tenant)[resources.nodes.pool_order]


def _group_by_shape(pods: Sequence[Pod]) -> dict[Shape, list[Pod]]:
    found: dict[Shape, list[Pod]] = {}
    for pod in pods:
        found.setdefault(pod.shape, []).append(pod)
    return found


class _PlacementMode(Enum):
    """Strategies, each tried where the earlier ones find no placement."""

    SPREAD = auto()
    """Each pod on its best node."""
    PACKED = auto()
    """Node by node: the node that takes the most equal pods next, so that few nodes are used."""
    MIXED = auto()
    """Node by node: the node that takes the most units next, for pods of several sizes that share a node."""


class _Search:
    """Trial of one strategy; the caller undoes its changes to node resources and guarantees."""

    def __init__(
        self,
        guarantees: PoolGuarantees,
        tenant: str,
        resources: NodeResources,
        required_level: str,
        preferred_level: str,
        *,
        near_nodes: BoolArray | None,
    ) -> None:
        self._guarantees, self._tenant, self._node_resources = guarantees, tenant, resources
        self._near_nodes = near_nodes
        self._required_level, self._preferred_level = required_level, preferred_level
        self._unit = resources.pool.unit_resource
        self._nodes: dict[str, str] = {}

    def place_pods(
        self, pods: Sequence[Pod], among: BoolArray, *, own_first: bool, mode: _PlacementMode
    ) -> dict[str, str] | None:
        """Return the nodes by uid; None: the pods do not all fit this way."""
        attempt = {
            _PlacementMode.SPREAD: self._place_all,
            _PlacementMode.PACKED: self._place_most_equal,
            _PlacementMode.MIXED: self._place_most_units,
        }[mode]
        left = sorted(pods, key=lambda pod: (-pod.shape.amount_of(self._unit), pod.rank, pod.uid))
        if own_first:
            left = self._fill_used_nodes(left, among)
        while left:
            among = self._within_domain(among)
            usable = usable_by_position(self._guarantees, self._tenant, self._node_resources)
            found = attempt(left, usable, among)
            if found is None:
                return None
            kept = self._keep_placed([pod for pod in left if pod.uid in found], found)
            if not kept:
                return None
            left = [pod for pod in left if pod.uid not in kept]
        return self._nodes

    def _within_domain(self, among: BoolArray) -> BoolArray:
        """Return the mask of nodes near the pods placed so far, where the gang must run in one domain."""
        if not self._required_level or not self._nodes:
            return among
        first = next(iter(self._nodes.values()))
        return among & self._node_resources.nodes.domain_mask(first, self._required_level)

    def _fill_used_nodes(self, pods: Sequence[Pod], among: BoolArray) -> list[Pod]:
        """Place the pods that fit beside guaranteed pods: of the tenant or shared first, then of others. Return those
        left. So a small gang takes no node from the tenant's next large gang, as long as nodes are to spare.
        """
        order, left = self._node_resources.nodes.pool_order, list(pods)
        for mask in (self._guarantees.own_nodes(self._tenant)[order], self._guarantees.used_nodes()[order]):
            if (mask & among).any():
                left = self._fill_nodes(left, among & mask)
        return left

    def _fill_nodes(self, pods: Sequence[Pod], among: BoolArray) -> list[Pod]:
        """Place the pods that fit on these nodes, one by one; return those left."""
        full: set[Shape] = set()
        left: list[Pod] = []
        for pod in pods:
            found = None
            if pod.shape not in full:
                usable = usable_by_position(self._guarantees, self._tenant, self._node_resources)
                found = self._place_all([pod], usable, self._within_domain(among))
            if found is None or not self._keep_placed([pod], found):
                full.add(pod.shape)
                left.append(pod)
        return left

    def _place_all(self, pods: Sequence[Pod], usable: IntArray, among: BoolArray) -> dict[str, str] | None:
        """Return a placement that keeps each node within its usable amount; the node resources are unchanged."""
        with self._node_resources.trial():
            self._limit_nodes(usable, among)
            return place_pods(
                self._node_resources,
                pods,
                required_level=self._required_level,
                preferred_level=self._preferred_level,
                among=among,
                preferred_nodes=self._near_nodes,
            )

    def _place_most_equal(self, pods: Sequence[Pod], usable: IntArray, among: BoolArray) -> dict[str, str] | None:
        """Return the node that takes the most pods equal to the first, the fullest of such nodes, with those pods."""
        resources, shape = self._node_resources, pods[0].shape
        equals = [pod for pod in pods if pod.shape == shape]
        with resources.trial():
            self._limit_nodes(usable, among)
            capacity = np.where(among, resources.views[shape].capacity, 0)
        taken = np.minimum(capacity, len(equals))
        if not len(taken) or not taken.max():
            return None
        best = int(np.lexsort((capacity, -taken))[0])
        return dict.fromkeys((pod.uid for pod in equals[: int(taken[best])]), resources.nodes.names[best])

    def _place_most_units(self, pods: Sequence[Pod], usable: IntArray, among: BoolArray) -> dict[str, str] | None:
        """Return the node that takes the most units, then the most pods, then the fullest node, with those pods."""
        node_resources, by_shape = self._node_resources, _group_by_shape(pods)
        resources = sorted({name for shape in by_shape for name, _ in shape.requests})
        if not has_resources(node_resources, resources):
            return None
        free = np.array([*(node_resources.free.amounts_of(name) for name in resources), usable], dtype=np.int64)
        units, count = np.zeros((2, len(node_resources.nodes)), dtype=np.int64)
        fits = {}
        for shape, same in by_shape.items():
            request = np.array(
                [*(shape.amount_of(name) for name in resources), shape.amount_of(self._unit)], dtype=np.int64
            )
            fit = np.where(
                among & node_resources.nodes.filter.feasible_nodes(shape),
                np.minimum(count_fitting_pods(free, request), len(same)),
                0,
            )
            free -= fit * request[:, None]
            units += fit * shape.amount_of(self._unit)
            count += fit
            fits[shape] = fit
        if not len(count) or not count.max():
            return None
        left = free[resources.index(self._unit)] if self._unit in resources else count
        best = int(np.lexsort((left, -count, -units))[0])
        return {
            pod.uid: node_resources.nodes.names[best]
            for shape, same in by_shape.items()
            for pod in same[: fits[shape].item(best)]
        }

    def _limit_nodes(self, usable: IntArray, among: BoolArray) -> None:
        """Take from each node what exceeds its usable amount; the caller undoes this."""
        resources = self._node_resources
        try:
            free = resources.free.amounts_of(self._unit)
        except KeyError:
            return
        excess = np.where(among, free - usable, 0)
        positions = np.flatnonzero(excess > 0)
        if len(positions):
            resources.add_pods_at(positions.tolist(), Shape.from_requests({self._unit: 1}), excess[positions].tolist())

    def _keep_placed(self, pods: Sequence[Pod], found: Mapping[str, str]) -> set[str]:
        """Use guarantee and node resources as far as the guarantees allow, node by node; return the uids."""
        kept: set[str] = set()
        for pod in pods:
            node = found[pod.uid]
            if self._guarantees.use(self._tenant, node, pod.shape.amount_of(self._unit)):
                self._node_resources.add_pods(node, pod.shape)
                self._nodes[pod.uid] = node
                kept.add(pod.uid)
        return kept


NodeUse = tuple[str, int]
"""Node, and thousandths of the pool's unit used there inside the guarantee."""


@dataclass(frozen=True, slots=True)
class GuaranteeReservation:
    """Nominated placement of a gang, and the use that must end before it starts."""

    gang: Gang
    awaited: Sequence[NodeUse]
    """Use of later gangs of its tenant that must end first."""
    nominated: Sequence[NodeUse]
    """Use of the gang after its start."""
    start: float | None
    """Time at which the awaited use has ended (seconds since the epoch); None: unknown."""

    def apply_to(self, guarantees: PoolGuarantees) -> bool:
        """Change the guarantees to their state after the gang's start; return False if they no longer allow it."""
        try:
            for node, amount in self.awaited:
                guarantees.release(self.gang.tenant, node, amount)
        except ValueError:
            return False  # Part of the awaited use has ended or counts as borrowing.
        return use_placed(guarantees, self.gang.tenant, self.nominated)
