"""The guarantees of one pool: what they still hold, where pods may use them, and what is lost with missing nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vkgateway.scheduler.core.guaranteed_nodes import GuaranteedNodes
from vkgateway.scheduler.core.guarantees.cell_sizes import (
    MILLI_PER_UNIT,
    CellCounts,
    counts_by_size,
    list_sizes,
    round_up_units,
    smallest_cover,
    total_units,
)
from vkgateway.scheduler.core.guarantees.counted_cells import count_pool_cells, pack_counted, usable_size
from vkgateway.scheduler.core.journal import Journal, Trial
from vkgateway.scheduler.core.snapshot import Pod, Pool, Quota

PlacedAmount = tuple[str, str, int]
"""Placed guaranteed pod: tenant, node, and requested thousandths of the pool's unit."""

_CLEAN: Final = -1
_SHARED: Final = -2


class PoolGuarantees:
    """Guarantees of one pool, counted from its nodes, its quotas and the placed guaranteed pods.

    Invariant: see `guaranteed_nodes`. A use that would break a promise is refused. Equal input gives equal answers, in
    whatever order pods came.

    Cells are whole units (GPUs); amounts that pods use are thousandths. Pods on nodes that accept no pods use up cells,
    but no other node is promised in their place. Unknown tenants have no guarantee.
    """

    def __init__(
        self,
        pool: Pool,
        quotas: Iterable[Quota],
        placed: Iterable[PlacedAmount] = (),
        journal: Journal | None = None,
    ) -> None:
        self._journal = journal or Journal()
        self._numbers = {node.name: number for number, node in enumerate(pool.nodes)}
        self._usable = [node.usable for node in pool.nodes]
        self._used: defaultdict[str, int] = defaultdict(int)
        """Thousandths by tenant."""
        self._away: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Thousandths on nodes that accept no pods, by tenant and node."""
        placed = list(placed)
        counted = count_pool_cells(pool, quotas, _sum_away(placed, self.is_usable))
        self.levels, self._held, self.losses = counted.levels, counted.held, counted.losses
        self._held_amounts = {
            tenant: total_units(cells, self.levels) * MILLI_PER_UNIT for tenant, cells in self._held.items()
        }
        packed = pack_counted(pool, counted)
        positions: defaultdict[int, list[int]] = defaultdict(list)
        for number, usable in enumerate(self._usable):
            if usable:
                positions[usable_size(pool, number)].append(number)
        self._classes = [
            (np.array(numbers, dtype=np.int64), GuaranteedNodes(len(numbers), packed[size]))
            for size, numbers in positions.items()
        ]
        self._places = {
            int(number): (nodes, index) for numbers, nodes in self._classes for index, number in enumerate(numbers)
        }
        self._owners: NDArray[np.int64] = np.full(len(pool.nodes), _CLEAN, dtype=np.int64)
        self._tenant_numbers: dict[str, int] = {}
        for each in placed:
            self.add_use(*each)

    # Queries

    def is_usable(self, node: str) -> bool:
        """Return whether a node of the pool accepts pods."""
        number = self._numbers.get(node)
        return number is not None and self._usable[number]

    def units_left(self, tenant: str) -> int:
        """Return the thousandths of the unit that the tenant's guarantee can still take; negative: it holds less than
        is used.
        """
        return self._held_amounts.get(tenant, 0) - self._used[tenant]

    def overused_tenants(self) -> list[str]:
        """Return the tenants whose guaranteed pods use more than their guarantees hold, by name."""
        return sorted(tenant for tenant, used in self._used.items() if used and self.units_left(tenant) < 0)

    def used_amount(self, tenant: str) -> int:
        """Return the thousandths that the tenant's guaranteed and planned pods use."""
        return self._used[tenant]

    def placed_amounts(self) -> list[PlacedAmount]:
        """Return what guaranteed pods use, from which equal guarantees can be counted."""
        names = list(self._numbers)
        here = [
            (tenant, names[number], amount)
            for number, (nodes, index) in sorted(self._places.items())
            for tenant, amount in sorted(nodes.uses[index].items())
        ]
        return here + [(tenant, node, amount) for (tenant, node), amount in sorted(self._away.items()) if amount]

    def cells_in_use(self, tenant: str) -> dict[str, tuple[int, ...]]:
        """Return by node the smallest set of the tenant's cells that hold its use there, the most used node first."""
        left, found = self._cells_of(tenant), dict[str, tuple[int, ...]]()
        mine = [(amount, node) for name, node, amount in self.placed_amounts() if name == tenant]
        for amount, node in sorted(mine, key=lambda each: (-each[0], each[1])):
            taken = smallest_cover(left, self.levels, round_up_units(amount)) or left
            found[node] = tuple(list_sizes(taken, self.levels))
            left = [have - gone for have, gone in zip(left, taken, strict=True)]
        return found

    def unused_cells(self, tenant: str) -> dict[int, int]:
        """Return the number of the tenant's other cells by size."""
        left = self._cells_of(tenant)
        for size in (size for sizes in self.cells_in_use(tenant).values() for size in sizes):
            left[self.levels.index(size)] -= 1
        return counts_by_size(left, self.levels)

    def _cells_of(self, tenant: str) -> CellCounts:
        return list(self._held.get(tenant, [0] * len(self.levels)))

    def spare_nodes(self) -> int:
        """Return the nodes beyond all guarantees; negative while nodes are missing."""
        return sum(nodes.spare for _, nodes in self._classes)

    def spare_nodes_in_use(self) -> int:
        """Return the spare nodes that make up for nodes that tenants share, or have beyond their guarantees."""
        return sum(nodes.excess() for _, nodes in self._classes)

    def broken_promises(self) -> int:
        """Return how many nodes fewer than promised are within reach: guaranteed pods are on them."""
        return sum(max(0, nodes.excess() - nodes.spare) for _, nodes in self._classes)

    def used_nodes(self) -> NDArray[np.bool_]:
        """Return the mask of the pool's nodes with guaranteed pods of any tenant."""
        found: NDArray[np.bool_] = self._owners != _CLEAN
        return found

    def exclusive_nodes(self, tenant: str) -> NDArray[np.bool_]:
        """Return the mask of the pool's nodes on which only guaranteed pods of the tenant run."""
        found: NDArray[np.bool_] = self._owners == self._tenant_numbers.get(tenant, _SHARED - 1)
        return found

    def own_nodes(self, tenant: str) -> NDArray[np.bool_]:
        """Return the mask of the pool's nodes that are the tenant's alone, or shared: its next pods cost nothing."""
        mine = self._tenant_numbers.get(tenant, _SHARED)
        found: NDArray[np.bool_] = (self._owners == mine) | (self._owners == _SHARED)
        return found

    def usable_amounts(self, tenant: str) -> NDArray[np.int64]:
        """Return the thousandths that `use` would allow the tenant on each node of the pool, in the pool's order.

        Each node counts by itself: use on one may reduce others.
        """
        most = self.units_left(tenant)
        amounts: NDArray[np.int64] = np.zeros(len(self._owners), dtype=np.int64)
        if most <= 0:
            return amounts
        for numbers, nodes in self._classes:
            amounts[numbers] = self._usable_in_class(tenant, numbers, nodes, most)
        return amounts

    def _usable_in_class(
        self, tenant: str, numbers: NDArray[np.int64], nodes: GuaranteedNodes, most: int
    ) -> NDArray[np.int64]:
        room = nodes.room_without_groups()
        if room > 0:
            return np.full(len(numbers), most, dtype=np.int64)
        mask = np.zeros(len(numbers), dtype=bool)
        if room == 0:
            owners = self._owners[numbers]
            mask |= self.own_nodes(tenant)[numbers]
            if nodes.surplus_of(tenant) < 0:
                mask |= owners == _CLEAN
            for other, number in self._tenant_numbers.items():
                if nodes.surplus_of(other) > 0:
                    mask |= owners == number
        found = np.where(mask, most, 0)
        if nodes.has_groups:
            known: dict[object, int] = {}
            for index in np.flatnonzero(~mask).tolist():
                key = frozenset(nodes.uses[index].items())
                if key not in known:
                    known[key] = nodes.largest_amount(tenant, index, most)
                found[index] = known[key]
        return found

    # Changes

    def use(self, tenant: str, node: str, amount: int) -> bool:
        """Use thousandths of a node; return False, without a change, if that would break a promise."""
        if not self.is_usable(node) or tenant not in self._held:
            return False
        if not amount:
            return True
        nodes, index = self._places[self._numbers[node]]
        if amount > self.units_left(tenant) or not nodes.may_add(tenant, index, amount):
            return False
        self._journal.record(self.add_use, tenant, node, -amount)
        self.add_use(tenant, node, amount)
        return True

    def release(self, tenant: str, node: str, amount: int) -> None:
        """Record that a guaranteed pod left a node or borrows from now on.

        Raises:
            ValueError: The tenant's guaranteed pods use less than this amount there.
        """
        if self.used_on(tenant, node) < amount:
            raise ValueError(f"{tenant} uses less than {amount} thousandths of {node}")
        if amount:
            self._journal.record(self.add_use, tenant, node, amount)
            self.add_use(tenant, node, -amount)

    def used_on(self, tenant: str, node: str) -> int:
        """Return the thousandths that the tenant's guaranteed pods use on a node."""
        place = self._places.get(self._numbers.get(node, -1))
        return place[0].uses[place[1]].get(tenant, 0) if place is not None else self._away.get((tenant, node), 0)

    def add_use(self, tenant: str, node: str, amount: int) -> None:
        """Count what runs, whether or not it breaks a promise; no trial undoes it."""
        self._used[tenant] += amount
        place = self._places.get(self._numbers.get(node, -1))
        if place is None:
            self._away[tenant, node] += amount
        elif amount:
            nodes, index = place
            nodes.add(tenant, index, amount)
            use = nodes.uses[index]
            self._owners[self._numbers[node]] = (
                self._tenant_number(next(iter(use))) if len(use) == 1 else _SHARED if use else _CLEAN
            )

    def _tenant_number(self, tenant: str) -> int:
        return self._tenant_numbers.setdefault(tenant, len(self._tenant_numbers))

    def trial(self) -> Trial:
        """Return a trial of changes, here and wherever the journal is shared."""
        return self._journal.trial()


def _sum_away(placed: Iterable[PlacedAmount], is_usable: Callable[[str], bool]) -> dict[tuple[str, str], int]:
    """Return the thousandths on nodes that accept no pods, by tenant and node."""
    found: defaultdict[tuple[str, str], int] = defaultdict(int)
    for tenant, node, amount in placed:
        if not is_usable(node):
            found[tenant, node] += amount
    return found


def use_placed(guarantees: PoolGuarantees, tenant: str, amounts: Sequence[tuple[str, int]]) -> bool:
    """Use these thousandths of nodes, all of them or none."""
    with guarantees.trial() as trial:
        if all(guarantees.use(tenant, node, amount) for node, amount in amounts):
            trial.commit()
    return trial.is_committed


def use_for_pods(guarantees: PoolGuarantees, tenant: str, unit: str, placed: Sequence[tuple[Pod, str]]) -> bool:
    """Use a guarantee for all of these placed pods, or for none."""
    return use_placed(guarantees, tenant, [(node, pod.shape.amount_of(unit)) for pod, node in placed])
