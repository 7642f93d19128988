"""Placement of a gang inside its tenant's cells, by free capacity and by what the cells allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import product

import numpy as np

from vkgateway.arbiter.capacity.node_fit import ABSENT, BoolArray, IntArray
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.capacity.placement import place_pods
from vkgateway.arbiter.guarantees.cells import PoolCells
from vkgateway.arbiter.guarantees.reserved_cells import CellReservation
from vkgateway.arbiter.preemption.node_costs import count_fitting_pods
from vkgateway.arbiter.preemption.search_stage import has_resources
from vkgateway.arbiter.snapshot import Pod, Shape
from vkgateway.arbiter.trial import JointState, Trial

CellUses = list[tuple[str, int]]
"""Allocations inside cells, in order: node and thousandths of the unit."""


class GuaranteedPlacement:
    """Placement of some pods inside a tenant's cells; it changes neither node resources nor cells."""

    def __init__(
        self,
        cells: PoolCells,
        tenant: str,
        pods: Sequence[Pod],
        *,
        required_level: str = "",
        preferred_level: str = "",
        among: BoolArray | None = None,
        reservation: CellReservation | None = None,
        only_bound: bool = False,
    ) -> None:
        """Create the placement.

        `reservation`: cells reserved for a gang ahead, which these pods must leave to it. `only_bound`: use only cells
        that are already bound.
        """
        self._only_bound = only_bound
        self._cells = cells
        self._tenant = tenant
        self._pods = pods
        self._cell_reservation = reservation
        self._required_level = required_level
        self._preferred_level = preferred_level
        self._allowed_nodes = among
        self._uses_by_placement: dict[frozenset[tuple[str, str]], CellUses] = {}

    def __call__(self, resources: NodeResources) -> dict[str, str] | None:
        """Return node names by pod uid; None: the pods do not all fit. Bound cells are filled first."""
        if not self._fits_some_node(resources):
            return None
        near_nodes = self._nodes_near_cells(resources)
        modes = list(_PlacementMode)
        if resources.free.zones is not None or len({pod.shape for pod in self._pods}) == 1:
            modes.remove(_PlacementMode.MIXED)
        for mode, bound_first in [(_PlacementMode.SPREAD, True)] if self._only_bound else product(modes, (True, False)):
            for among in self._search_domains(resources, separate=mode is not _PlacementMode.SPREAD):
                found = None
                with Trial(JointState(resources, self._cells.bindings)):
                    if self._cell_reservation is None or self._cell_reservation.apply_to(self._cells):
                        search = _CellSearch(
                            self._cells,
                            self._tenant,
                            resources,
                            self._required_level,
                            self._preferred_level,
                            near_nodes=near_nodes,
                        )
                        found = (
                            search.fill_bound_cells(self._pods, among)
                            if self._only_bound
                            else search.place_pods(self._pods, among, bound_first=bound_first, mode=mode)
                        )
                        if found is not None and not resources.keep_peer_rules(
                            (found[0][pod.uid], pod.shape) for pod in self._pods
                        ):
                            found = None  # Cells took only some pods of a placement, or a mode that fills node by node.
                if found is not None and (self._cell_reservation is None or self._is_allowed_now(found[1])):
                    nodes, uses = found
                    self._uses_by_placement[frozenset(nodes.items())] = uses
                    return {pod.uid: nodes[pod.uid] for pod in self._pods}
        return None

    def _fits_some_node(self, resources: NodeResources) -> bool:
        """Return whether a single pod fits on any node by free capacity and cells; True for several pods.

        Cells bound for one pod of several may free other cells of the tenant for the next: only a trial decides.
        """
        if len(self._pods) > 1:
            return True
        shape = self._pods[0].shape
        capacity = resources.views[shape].capacity
        fits = capacity > 0 if self._allowed_nodes is None else (capacity > 0) & self._allowed_nodes
        amount = shape.amount_of(resources.pool.unit_resource)
        if amount and fits.any():
            fits = fits & (self.usable_amounts(resources) >= amount)
        return bool(fits.any())

    def _is_allowed_now(self, uses: CellUses) -> bool:
        """Return whether the current cells also allow this while the gang ahead still waits."""
        with self._cells.trial():
            return all(self._cells.allocate_cells(self._tenant, node, amount) for node, amount in uses)

    def _nodes_near_cells(self, resources: NodeResources) -> BoolArray | None:
        """Return the mask of nodes in those domains of the narrowest level that have bound cells of the tenant."""
        bound = self._cells.bound_cells(self._tenant) if resources.pool.levels else None
        if not bound:
            return None
        codes = resources.nodes.filter.label_column(resources.pool.levels[-1]).codes
        codes_with_cells = codes[resources.nodes.mask_of(bound)]
        return np.isin(codes, codes_with_cells[codes_with_cells != ABSENT])

    def _search_domains(self, resources: NodeResources, *, separate: bool) -> Iterator[BoolArray]:
        """Yield masks of nodes to search; `separate`: each domain of the required level by itself."""
        among = resources.nodes.mask_of(self._allowed_nodes)
        if not separate or not self._required_level:
            yield among
            return
        codes = resources.nodes.filter.label_column(self._required_level).codes
        for code in np.unique(codes[among & (codes != ABSENT)]):
            yield among & (codes == code)

    def usable_amounts(self, resources: NodeResources) -> IntArray:
        """Return the thousandths of the unit that the tenant may additionally use on each node, each node by itself."""
        find = spare_by_position if self._only_bound else usable_by_position
        current = find(self._cells, self._tenant, resources)
        if self._cell_reservation is None:
            return current
        with self._cells.trial():
            after_start = (
                find(self._cells, self._tenant, resources)
                if self._cell_reservation.apply_to(self._cells)
                else np.zeros_like(current)
            )
        return np.minimum(current, after_start)

    def cell_uses(self, nodes: Mapping[str, str]) -> CellUses:
        """Return what a found placement allocates inside cells."""
        return self._uses_by_placement[frozenset(nodes.items())]

    def commit_placement(self, nodes: Mapping[str, str]) -> None:
        """Allocate the cells of a found placement; no other allocation may have happened since."""
        for node, amount in self.cell_uses(nodes):
            if not self._cells.allocate_cells(self._tenant, node, amount):
                raise AssertionError(f"the cells of {self._tenant} on {node} were found to hold {amount}")


def usable_by_position(cells: PoolCells, tenant: str, resources: NodeResources) -> IntArray:
    """Return the thousandths of the unit that a tenant may additionally use, by position, each node by itself."""
    return cells.usable_amounts(tenant)[resources.nodes.pool_order]


def spare_by_position(cells: PoolCells, tenant: str, resources: NodeResources) -> IntArray:
    """Return the spare thousandths of a tenant's bound cells by position."""
    found = np.zeros(len(resources.nodes), dtype=np.int64)
    for name in cells.bound_cells(tenant):
        if name in resources.nodes:
            found[resources.nodes.positions[name]] = cells.spare_amount(tenant, name)
    return found


def allocate_placed(cells: PoolCells, tenant: str, unit: str, placed: Sequence[tuple[Pod, str]]) -> bool:
    """Allocate cells for all of these placed pods, or for none."""
    amounts: dict[str, int] = {}
    for pod, node in placed:
        amounts[node] = amounts.get(node, 0) + pod.shape.amount_of(unit)
    # Largest first usually leaves the most to the others, but its bindings may take what another node needs.
    nodes = sorted(amounts, key=lambda node: (-amounts[node], node))
    for order in (nodes, nodes[::-1])[: len(nodes)]:
        with cells.trial() as trial:
            if all(cells.allocate_cells(tenant, node, amounts[node]) for node in order):
                trial.commit()
                return True
    return not nodes


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
    """Node by node: the node that takes the most equal pods next, so that a cell is filled before the next."""
    MIXED = auto()
    """Node by node: the node that takes the most units next, for pods of several sizes that share a cell."""


class _CellSearch:
    """Trial of one strategy; the caller undoes its changes to node resources and cells."""

    def __init__(
        self,
        cells: PoolCells,
        tenant: str,
        resources: NodeResources,
        required_level: str,
        preferred_level: str,
        *,
        near_nodes: BoolArray | None,
    ) -> None:
        self._cells, self._tenant, self._node_resources = cells, tenant, resources
        self._required_level, self._preferred_level = required_level, preferred_level
        self._near_nodes = near_nodes
        self._unit = resources.pool.unit_resource
        self._nodes: dict[str, str] = {}
        self._cell_uses: CellUses = []

    def place_pods(
        self, pods: Sequence[Pod], among: BoolArray, *, bound_first: bool, mode: _PlacementMode
    ) -> tuple[dict[str, str], CellUses] | None:
        """Return the nodes and the allocations inside cells; None: the pods do not all fit this way."""
        attempt = {
            _PlacementMode.SPREAD: self._place_all,
            _PlacementMode.PACKED: self._place_most_equal,
            _PlacementMode.MIXED: self._place_most_units,
        }[mode]
        left = sorted(pods, key=lambda pod: (-pod.shape.amount_of(self._unit), pod.rank, pod.uid))
        if bound_first:
            left = self._place_in_bound(left, among)
        while left:
            if self._required_level and self._nodes:
                among = among & self._node_resources.nodes.domain_mask(
                    next(iter(self._nodes.values())), self._required_level
                )
            usable = usable_by_position(self._cells, self._tenant, self._node_resources)
            found = attempt(left, usable, among)
            if found is None:
                return None
            allocated = self._keep_placed([pod for pod in left if pod.uid in found], found)
            if not allocated:
                return None
            left = [pod for pod in left if pod.uid not in allocated]
        return self._nodes, self._cell_uses

    def fill_bound_cells(self, pods: Sequence[Pod], among: BoolArray) -> tuple[dict[str, str], CellUses] | None:
        """Place the pods only in spare capacity of bound cells."""
        left = sorted(pods, key=lambda pod: (-pod.shape.amount_of(self._unit), pod.rank, pod.uid))
        return None if self._place_in_bound(left, among) else (self._nodes, self._cell_uses)

    def _place_in_bound(self, left: Sequence[Pod], among: BoolArray) -> list[Pod]:
        """Place the pods that fit into spare capacity of bound cells; return the others."""
        bound = [name for name in self._cells.bound_cells(self._tenant) if name in self._node_resources.nodes]
        if not bound:
            return list(left)
        others: list[Pod] = []
        full: set[Shape] = set()
        for pod in left:
            if self._required_level and self._nodes:
                among = among & self._node_resources.nodes.domain_mask(
                    next(iter(self._nodes.values())), self._required_level
                )
            found = None
            if pod.shape not in full:
                spare = spare_by_position(self._cells, self._tenant, self._node_resources)
                found = self._place_all([pod], spare, among & self._node_resources.nodes.mask_of(bound))
            if found is None or not self._keep_placed([pod], found):
                full.add(pod.shape)
                others.append(pod)
        return others

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
        """Allocate cells and node resources as far as the cells allow, node by node; return the uids."""
        by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            by_node.setdefault(found[pod.uid], []).append(pod)
        allocated: set[str] = set()
        for node, group_pods in by_node.items():
            for group in [group_pods] if len(group_pods) == 1 else [group_pods, *([pod] for pod in group_pods)]:
                if group[0].uid not in allocated and self._allocate_on(node, group):
                    allocated.update(pod.uid for pod in group)
        return allocated

    def _allocate_on(self, node: str, pods: Sequence[Pod]) -> bool:
        amount = sum(pod.shape.amount_of(self._unit) for pod in pods)
        if not self._cells.allocate_cells(self._tenant, node, amount):
            return False
        self._cell_uses.append((node, amount))
        for pod in pods:
            self._node_resources.add_pods(node, pod.shape)
            self._nodes[pod.uid] = node
        return True
