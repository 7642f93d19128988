"""A place for a gang inside its tenant's cells: where pods go is a matter of room, how many of cells."""

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

CellUses = list[tuple[str, int]]
"""What was held in cells, in order: nodes, and thousandths of the unit."""


class GuaranteedPlacement:
    """Finds places for these pods in whatever room it is called with; it changes neither the room nor the cells."""

    def __init__(
        self,
        cells: PoolCells,
        tenant: str,
        pods: Sequence[Pod],
        *,
        required_level: str = "",
        preferred_level: str = "",
        among: BoolArray | None = None,
        beside: CellReservation | None = None,
        filling: bool = False,
    ) -> None:
        """`beside`: cells that are reserved for a gang ahead, and must be left to it. `filling`: only in cells that are
        bound already.
        """
        self._only_bound = filling
        self._cells = cells
        self._tenant = tenant
        self._pods = pods
        self._cell_reservation = beside
        self._required_level = required_level
        self._preferred_level = preferred_level
        self._allowed_nodes = among
        self._uses_by_placement: dict[frozenset[tuple[str, str]], CellUses] = {}

    def __call__(self, room: NodeResources) -> dict[str, str] | None:
        """Pod uid to node; None: they do not all fit. Cells that are bound already are filled first."""
        if not self._fits_some_node(room):
            return None
        mark, held = room.mark(), self._cells.mark()
        near = self._nodes_near_cells(room)
        ways = list(_PlacementMode)
        if room.has_zones or len({pod.shape for pod in self._pods}) == 1:
            ways.remove(_PlacementMode.MIXED)
        for way, bound_first in [(_PlacementMode.SPREAD, True)] if self._only_bound else product(ways, (True, False)):
            for among in self._search_domains(room, apart=way is not _PlacementMode.SPREAD):
                found = None
                if self._cell_reservation is None or self._cell_reservation.apply_to(self._cells):
                    search = _CellSearch(
                        self._cells, self._tenant, room, self._required_level, self._preferred_level, near=near
                    )
                    found = (
                        search.fill_bound_cells(self._pods, among)
                        if self._only_bound
                        else search.place_pods(self._pods, among, bound_first=bound_first, way=way)
                    )
                room.undo(mark)
                self._cells.undo(held)
                if found is not None and (self._cell_reservation is None or self._is_allowed_now(found[1])):
                    nodes, holds = found
                    self._uses_by_placement[frozenset(nodes.items())] = holds
                    return {pod.uid: nodes[pod.uid] for pod in self._pods}
        return None

    def _fits_some_node(self, room: NodeResources) -> bool:
        """Whether a lone pod fits on any node by room and cells; of several pods it is not told.

        What cells hold on one node may free others of the tenant's for the next, so for these only a trial tells.
        """
        if len(self._pods) > 1:
            return True
        shape = self._pods[0].shape
        capacity = room.shape_view(shape).capacity
        fits = capacity > 0 if self._allowed_nodes is None else (capacity > 0) & self._allowed_nodes
        amount = shape.amount_of(room.pool.unit_resource)
        if amount and fits.any():
            fits = fits & (self.usable_amounts(room) >= amount)
        return bool(fits.any())

    def _is_allowed_now(self, holds: CellUses) -> bool:
        """Whether the cells allow it also as they are, while the gang ahead still waits."""
        mark = self._cells.mark()
        allowed = all(self._cells.allocate_cells(self._tenant, node, amount) for node, amount in holds)
        self._cells.undo(mark)
        return allowed

    def _nodes_near_cells(self, room: NodeResources) -> BoolArray | None:
        """The nodes in those domains of the narrowest level where the tenant has cells bound already."""
        bound = self._cells.bound_cells(self._tenant) if room.pool.levels else None
        if not bound:
            return None
        codes = room.node_filter.label_column(room.pool.levels[-1]).codes
        there = codes[room.node_mask(bound)]
        return np.isin(codes, there[there != ABSENT])

    def _search_domains(self, room: NodeResources, *, apart: bool) -> Iterator[BoolArray]:
        """Where to look; `apart`: in each domain of the required level by itself."""
        among = room.node_mask(self._allowed_nodes)
        if not apart or not self._required_level:
            yield among
            return
        codes = room.node_filter.label_column(self._required_level).codes
        for code in np.unique(codes[among & (codes != ABSENT)]):
            yield among & (codes == code)

    def usable_amounts(self, room: NodeResources) -> IntArray:
        """Thousandths of the unit that the tenant may start to use on each node by position, each seen alone."""
        find = spare_by_position if self._only_bound else usable_by_position
        now = find(self._cells, self._tenant, room)
        if self._cell_reservation is None:
            return now
        mark = self._cells.mark()
        then = (
            find(self._cells, self._tenant, room)
            if self._cell_reservation.apply_to(self._cells)
            else np.zeros_like(now)
        )
        self._cells.undo(mark)
        return np.minimum(now, then)

    def cell_uses(self, nodes: Mapping[str, str]) -> CellUses:
        """Return what a placement that was found holds in cells."""
        return self._uses_by_placement[frozenset(nodes.items())]

    def commit_placement(self, nodes: Mapping[str, str]) -> None:
        """Hold the cells for a placement that was found; nothing else may have been held since."""
        for node, amount in self.cell_uses(nodes):
            if not self._cells.allocate_cells(self._tenant, node, amount):
                raise AssertionError(f"the cells of {self._tenant} on {node} were found to hold {amount}")


def usable_by_position(cells: PoolCells, tenant: str, room: NodeResources) -> IntArray:
    """Thousandths of the unit that a tenant may start to use on each node by position, each seen alone."""
    return cells.usable_amounts(tenant)[room.pool_order]


def spare_by_position(cells: PoolCells, tenant: str, room: NodeResources) -> IntArray:
    """The same inside cells that are bound already."""
    found = np.zeros(len(room), dtype=np.int64)
    for name in cells.bound_cells(tenant):
        if name in room:
            found[room.position_of(name)] = cells.spare_amount(tenant, name)
    return found


def allocate_placed(cells: PoolCells, tenant: str, unit: str, placed: Sequence[tuple[Pod, str]]) -> bool:
    """Hold cells for pods that have their nodes already: for all of them, or nothing is held."""
    amounts: dict[str, int] = {}
    for pod, node in placed:
        amounts[node] = amounts.get(node, 0) + pod.shape.amount_of(unit)
    mark = cells.mark()
    # Mostly the largest first leave the most to the others; but what is bound for them may be what another needs.
    nodes = sorted(amounts, key=lambda node: (-amounts[node], node))
    for order in (nodes, nodes[::-1])[: len(nodes)]:
        if all(cells.allocate_cells(tenant, node, amounts[node]) for node in order):
            return True
        cells.undo(mark)
    return not nodes


def _group_by_shape(pods: Sequence[Pod]) -> dict[Shape, list[Pod]]:
    found: dict[Shape, list[Pod]] = {}
    for pod in pods:
        found.setdefault(pod.shape, []).append(pod)
    return found


class _PlacementMode(Enum):
    """How pods are put on nodes; each is tried where those before it find nothing."""

    SPREAD = auto()
    """Each where it fits best."""
    PACKED = auto()
    """Node by node, each time the one that takes the most of those that are equal; so a cell is filled before the next.
    """
    MIXED = auto()
    """Node by node, each time the one that takes the most of all: where pods of several sizes share a cell."""


class _CellSearch:
    """One way of placing; what it does to room and cells is undone by the caller."""

    def __init__(
        self,
        cells: PoolCells,
        tenant: str,
        room: NodeResources,
        required_level: str,
        preferred_level: str,
        *,
        near: BoolArray | None,
    ) -> None:
        self._cells, self._tenant, self._node_resources = cells, tenant, room
        self._required_level, self._preferred_level = required_level, preferred_level
        self._near_nodes = near
        self._unit = room.pool.unit_resource
        self._nodes: dict[str, str] = {}
        self._cell_uses: CellUses = []

    def place_pods(
        self, pods: Sequence[Pod], among: BoolArray, *, bound_first: bool, way: _PlacementMode
    ) -> tuple[dict[str, str], CellUses] | None:
        """The nodes, and what is held on them; None: this way they do not all fit."""
        attempt = {
            _PlacementMode.SPREAD: self._place_all,
            _PlacementMode.PACKED: self._place_most_equal,
            _PlacementMode.MIXED: self._place_most_units,
        }[way]
        left = sorted(pods, key=lambda pod: (-pod.shape.amount_of(self._unit), pod.rank, pod.uid))
        if bound_first:
            left = self._place_in_bound(left, among)
        while left:
            if self._required_level and self._nodes:
                among = among & self._node_resources.nodes_in_domain(
                    next(iter(self._nodes.values())), self._required_level
                )
            most = usable_by_position(self._cells, self._tenant, self._node_resources)
            found = attempt(left, most, among)
            if found is None:
                return None
            kept = self._keep_placed([pod for pod in left if pod.uid in found], found)
            if not kept:
                return None
            left = [pod for pod in left if pod.uid not in kept]
        return self._nodes, self._cell_uses

    def fill_bound_cells(self, pods: Sequence[Pod], among: BoolArray) -> tuple[dict[str, str], CellUses] | None:
        """The same in what is spare of cells that are bound, and nowhere else."""
        left = sorted(pods, key=lambda pod: (-pod.shape.amount_of(self._unit), pod.rank, pod.uid))
        return None if self._place_in_bound(left, among) else (self._nodes, self._cell_uses)

    def _place_in_bound(self, left: Sequence[Pod], among: BoolArray) -> list[Pod]:
        """As many as fit into what is spare of cells that are bound; returns the others."""
        bound = [name for name in self._cells.bound_cells(self._tenant) if name in self._node_resources]
        if not bound:
            return list(left)
        others: list[Pod] = []
        full: set[Shape] = set()
        for pod in left:
            if self._required_level and self._nodes:
                among = among & self._node_resources.nodes_in_domain(
                    next(iter(self._nodes.values())), self._required_level
                )
            found = None
            if pod.shape not in full:
                spare = spare_by_position(self._cells, self._tenant, self._node_resources)
                found = self._place_all([pod], spare, among & self._node_resources.node_mask(bound))
            if found is None or not self._keep_placed([pod], found):
                full.add(pod.shape)
                others.append(pod)
        return others

    def _place_all(self, pods: Sequence[Pod], most: IntArray, among: BoolArray) -> dict[str, str] | None:
        """A place for each where no node is used beyond what it may; the room is left as it was."""
        room, mark = self._node_resources, self._node_resources.mark()
        self._limit_nodes(most, among)
        found = place_pods(
            room,
            pods,
            required_level=self._required_level,
            preferred_level=self._preferred_level,
            among=among,
            preferred_nodes=self._near_nodes,
        )
        room.undo(mark)
        return found

    def _place_most_equal(self, pods: Sequence[Pod], most: IntArray, among: BoolArray) -> dict[str, str] | None:
        """The node that takes the most of the equals of the first pod, of such nodes the fullest; with those pods."""
        room, mark, shape = self._node_resources, self._node_resources.mark(), pods[0].shape
        equals = [pod for pod in pods if pod.shape == shape]
        self._limit_nodes(most, among)
        capacity = room.capacity_by_node(shape, among)
        room.undo(mark)
        taken = np.minimum(capacity, len(equals))
        if not len(taken) or not taken.max():
            return None
        best = int(np.lexsort((capacity, -taken))[0])
        return dict.fromkeys((pod.uid for pod in equals[: int(taken[best])]), room.names[best])

    def _place_most_units(self, pods: Sequence[Pod], most: IntArray, among: BoolArray) -> dict[str, str] | None:
        """The node that takes the most units of these, then the most pods, then the fullest; with those pods."""
        room, by_shape = self._node_resources, _group_by_shape(pods)
        resources = sorted({name for shape in by_shape for name, _ in shape.requests})
        if not has_resources(room, resources):
            return None
        free = np.array([*(room.free_amounts(name) for name in resources), most], dtype=np.int64)
        units, count = np.zeros((2, len(room)), dtype=np.int64)
        fits = {}
        for shape, same in by_shape.items():
            ask = np.array(
                [*(shape.amount_of(name) for name in resources), shape.amount_of(self._unit)], dtype=np.int64
            )
            fit = np.where(
                among & room.node_filter.feasible_nodes(shape), np.minimum(count_fitting_pods(free, ask), len(same)), 0
            )
            free -= fit * ask[:, None]
            units += fit * shape.amount_of(self._unit)
            count += fit
            fits[shape] = fit
        if not len(count) or not count.max():
            return None
        left = free[resources.index(self._unit)] if self._unit in resources else count
        best = int(np.lexsort((left, -count, -units))[0])
        return {pod.uid: room.names[best] for shape, same in by_shape.items() for pod in same[: fits[shape].item(best)]}

    def _limit_nodes(self, most: IntArray, among: BoolArray) -> None:
        """Take from each node what may not be used of it; to be undone."""
        room = self._node_resources
        try:
            free = room.free_amounts(self._unit)
        except KeyError:
            return
        over = np.where(among, free - most, 0)
        beyond = np.flatnonzero(over > 0)
        if len(beyond):
            room.add_pods_at(beyond.tolist(), Shape.from_requests({self._unit: 1}), over[beyond].tolist())

    def _keep_placed(self, pods: Sequence[Pod], found: Mapping[str, str]) -> set[str]:
        """Hold what the cells allow, node by node, and take the room; returns the uids."""
        by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            by_node.setdefault(found[pod.uid], []).append(pod)
        kept: set[str] = set()
        for node, here in by_node.items():
            for group in [here] if len(here) == 1 else [here, *([pod] for pod in here)]:
                if group[0].uid not in kept and self._allocate_on(node, group):
                    kept.update(pod.uid for pod in group)
        return kept

    def _allocate_on(self, node: str, pods: Sequence[Pod]) -> bool:
        amount = sum(pod.shape.amount_of(self._unit) for pod in pods)
        if not self._cells.allocate_cells(self._tenant, node, amount):
            return False
        self._cell_uses.append((node, amount))
        for pod in pods:
            self._node_resources.add_pods(node, pod.shape)
            self._nodes[pod.uid] = node
        return True
