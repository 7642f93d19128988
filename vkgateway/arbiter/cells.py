"""Guarantees as cells: what tenants may still bind, where, and what they may use there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vkgateway.arbiter.bindings import Bindings, Holding
from vkgateway.arbiter.cuts import WHOLE, Counts, node_room, pool_levels, quota_cells, total
from vkgateway.arbiter.decisions import Loss
from vkgateway.arbiter.derivation import derive
from vkgateway.arbiter.facts import Pool, Quota
from vkgateway.arbiter.reach import reach
from vkgateway.arbiter.reduction import Claim, give_back, reduce
from vkgateway.arbiter.tally import Tally

Placed = tuple[str, str, int]
"""A guaranteed pod that is placed: its tenant, its node, and thousandths of the pool's unit that it asks for."""


class Cells:
    """The cells of one pool, counted from its nodes, its tenants' quotas and the guaranteed pods that are placed.

    The invariant: after each change, all unused cells could be bound at once. A change that would break it is refused.
    Equal input gives equal cells. What was placed earlier in a cycle is carried on by `hold` and `release`; the next
    cycle counts again. Where pods stand and what cells they are in is not kept anywhere else.

    Sizes of cells are whole units (GPUs), amounts that pods use are thousandths. Nodes and tenants that are not known
    have nothing.
    """

    def __init__(self, pool: Pool, quotas: Iterable[Quota], placed: Iterable[Placed] = ()) -> None:
        self._pool, unit, mine = pool.key, pool.unit, _first_granted_first(pool, quotas)
        self.levels = pool_levels(pool)
        """Sizes of cells, the largest first."""
        rooms = [node_room(node, unit) for node in pool.nodes]
        tally = Tally(self.levels, rooms, [node.usable for node in pool.nodes])
        self._bindings = bindings = Bindings(self.levels, tally, (node.name for node in pool.nodes))
        self._most: dict[str, tuple[tuple[int, int], NDArray[np.int64]]] = {}
        """What `most` told last, and of which state."""
        for quota in mine:
            bindings.add_cells(quota.tenant, quota_cells(quota, unit, self.levels))
        self._asked = {tenant: list(holding.unused) for tenant, holding in bindings.holdings.items()}
        for tenant, node, amount in placed:
            used, number = bindings.holding(tenant).used, bindings.number(node)
            used[number] = used.get(number, 0) + amount
        self._order = order = list(dict.fromkeys([*self._asked, *sorted(bindings.holdings)]))
        derive(bindings, order)
        self._settle_excess(order)
        self._losses: tuple[Loss, ...] = ()
        if not tally.wholesome():
            self._reduce(mine, order)
        bindings.commit()

    def _reduce(self, quotas: Iterable[Quota], order: Sequence[str]) -> None:
        bindings = self._bindings
        before = {tenant: self._held(tenant) for tenant in self._asked}
        claims = {
            quota.tenant: Claim(quota.tenant, total(before[quota.tenant], self.levels), quota.weight, quota.granted)
            for quota in quotas
        }
        reduce(bindings, claims)
        self._settle_excess(order)
        # What is given back may hold pods on nodes that are not usable, and so leave room for more.
        while give_back(bindings, claims):
            self._settle_excess(order)
        self._losses = tuple(
            Loss(
                pool=self._pool,
                tenant=tenant,
                units=claim.lost,
                asked=self._by_size(before[tenant]),
                held=self._by_size(held),
            )
            for tenant, claim in sorted(claims.items())
            if (held := self._held(tenant)) != before[tenant]
        )

    def _settle_excess(self, order: Iterable[str]) -> None:
        """Bind what is unused to where pods have no cell, as far as all the rest can still be bound."""
        bindings = self._bindings
        for holding in map(bindings.holding, order):
            nodes = [node for node in holding.used if bindings.excess(holding, node)]
            for node in sorted(nodes, key=lambda node: (-holding.used[node], bindings.names[node])):
                if not bindings.settle(holding, node, holding.used[node]):
                    bindings.settle_part(holding, node)

    def _held(self, tenant: str) -> Counts:
        holding = self._bindings.holding(tenant)
        counts = list(holding.unused)
        for bound in holding.bound.values():
            counts = [one + more for one, more in zip(counts, bound, strict=True)]
        return counts

    def _by_size(self, counts: Counts) -> dict[int, int]:
        return {size: number for size, number in zip(self.levels, counts, strict=True) if number}

    # Questions

    def losses(self) -> tuple[Loss, ...]:
        """Whose cells had to be reduced when they were counted, by tenant; nobody's while all cells fit."""
        return self._losses

    def unused(self, tenant: str) -> dict[int, int]:
        """The tenant's cells that are not bound: how many of each size."""
        holding = self._known(tenant)
        return self._by_size(holding.unused) if holding is not None else {}

    def version(self, tenant: str) -> int:
        """A number that grows with each change of what the tenant holds."""
        holding = self._known(tenant)
        return holding.version if holding is not None else 0

    def bound(self, tenant: str) -> dict[str, tuple[int, ...]]:
        """The nodes that the tenant's cells are bound to, with the cells' sizes, the largest first."""
        holding, names = self._known(tenant), self._bindings.names
        if holding is None:
            return {}
        return {names[node]: self._bindings.shown(holding.bound[node]) for node in sorted(holding.bound)}

    def bound_nodes(self) -> set[str]:
        """The nodes that anybody's cells are bound to."""
        names = self._bindings.names
        return {names[node] for holding in self._bindings.holdings.values() for node in holding.bound}

    def spare(self, tenant: str, node: str) -> int:
        """Thousandths that the tenant may still use on a node inside the cells that are bound there."""
        holding, number = self._find(tenant, node)
        if holding is None or not self._bindings.tally.usable[number]:
            return 0
        return self._bindings.spare(holding, number)

    def excess(self, tenant: str) -> dict[str, int]:
        """Thousandths that the tenant's guaranteed pods use on nodes beyond its cells there, where they do.

        So many of its pods there count as borrowed from now on; whoever decides which takes them out by `release`.
        """
        holding, bindings = self._known(tenant), self._bindings
        if holding is None:
            return {}
        nodes = sorted(holding.used, key=bindings.names.__getitem__)
        return {bindings.names[node]: over for node in nodes if (over := bindings.excess(holding, node))}

    def may_bind(self, tenant: str, size: int, node: str) -> bool:
        """Whether the tenant has an unused cell of this size that may be bound to the node."""
        holding, number = self._find(tenant, node)
        if holding is None or size not in self.levels or not self._bindings.tally.usable[number]:
            return False
        level = self.levels.index(size)
        return holding.unused[level] > 0 and self._bindings.permits(holding, number, self._with(holding, number, level))

    def most(self, tenant: str) -> NDArray[np.int64]:
        """Thousandths that the tenant may start to use on each node of the pool, as `hold` would allow.

        In the order of the pool's nodes, and for each node by itself: what is taken on one may be missing on others.
        Not to be written to.
        """
        holding = self._known(tenant)
        if holding is None:
            return np.zeros(len(self._bindings.tally.array), dtype=np.int64)
        now, known = self._bindings.state, self._most.get(tenant)
        if known is None or known[0] != now:
            known = self._most[tenant] = now, reach(self._bindings, holding)
        return known[1]

    # Changes

    def hold(self, tenant: str, node: str, amount: int) -> bool:
        """Start to use so many thousandths of a node: inside cells bound there, or in what is bound there for it.

        Bound is what has the fewest units to spare, be it in place of what was bound there. False, and nothing has
        changed: the tenant's cells do not allow it there.
        """
        holding, number = self._find(tenant, node)
        if holding is None or not self._bindings.tally.usable[number]:
            return False
        used = holding.used.get(number, 0) + amount
        if amount <= self._bindings.spare(holding, number):
            self._bindings.put(holding, number, self._bindings.bound(holding, number), used)
            return True
        return self._bindings.settle(holding, number, used)

    def release(self, tenant: str, node: str, amount: int) -> None:
        """A guaranteed pod has gone from a node, or borrows from now on; cells that it leaves empty are let go.

        Raises:
            ValueError: the tenant's guaranteed pods use less than that there.
        """
        holding, number = self._find(tenant, node)
        used = (holding.used.get(number, 0) if holding is not None else 0) - amount
        if holding is None or used < 0:
            raise ValueError(f"{tenant} uses less than {amount} thousandths of {node}")
        if not self._bindings.settle(holding, number, used):
            self._bindings.put(holding, number, self._bindings.bound(holding, number), used)

    def bind(self, tenant: str, size: int, node: str) -> None:
        """Bind an unused cell to a node, on top of those that are bound there; `use` or `hold` then fill it.

        Raises:
            ValueError: `may_bind` does not allow it.
        """
        if not self.may_bind(tenant, size, node):
            raise ValueError(f"{tenant} may not bind a cell of {size} to {node}")
        holding, number = self._bindings.holding(tenant), self._bindings.number(node)
        cells = self._with(holding, number, self.levels.index(size))
        self._bindings.put(holding, number, cells, holding.used.get(number, 0))

    def bind_anew(self, tenants: Collection[str]) -> bool:
        """Bind what these tenants use now as if they had nothing bound: what it was bound in view of may be so no more.

        False: that is just what is bound, or would hold less; then nothing has changed. Whoever has nothing to spare in
        cells that are bound keeps them as they are.
        """
        bindings, mark = self._bindings, self._bindings.mark()
        order = [tenant for tenant in self._order if tenant in tenants and self._spares(bindings.holding(tenant))]
        holdings = [bindings.holding(tenant) for tenant in order]
        before, missing = [dict(holding.bound) for holding in holdings], self._missing(holdings)
        for holding in holdings:
            for node in list(holding.bound):
                bindings.put(holding, node, [0] * len(self.levels), holding.used.get(node, 0))
        derive(bindings, order)
        others = [holding.bound for holding in holdings] != before
        if others and bindings.tally.wholesome() and self._missing(holdings) <= missing:
            return True
        bindings.undo(mark)
        return False

    def hold_anew(self, tenant: str, amounts: Mapping[str, int]) -> bool:
        """Like `hold` for several nodes at once, with everybody's cells bound anew, as they will be when next counted.

        So it is found where cells of others are bound to nodes that would do as well with other cells of theirs. False,
        and nothing has changed: then, too, somebody would not have what it has, or might not bind what it does not use.
        """
        bindings, mark = self._bindings, self._bindings.mark()
        mine = bindings.holding(tenant)
        holdings = [bindings.holding(name) for name in self._order]
        missing = self._missing([*holdings, mine])
        for holding in holdings:
            for node in list(holding.bound):
                bindings.put(holding, node, [0] * len(self.levels), holding.used.get(node, 0))
        for name, amount in amounts.items():
            node = bindings.number(name)
            bindings.put(mine, node, bindings.bound(mine, node), mine.used.get(node, 0) + amount)
        derive(bindings, self._order)
        if bindings.tally.wholesome() and self._missing([*holdings, mine]) <= missing:
            return True
        bindings.undo(mark)
        return False

    def _spares(self, holding: Holding) -> bool:
        return any(self._bindings.spare(holding, node) >= WHOLE for node in holding.bound)

    def _missing(self, holdings: Iterable[Holding]) -> int:
        return sum(self._bindings.excess(holding, node) for holding in holdings for node in holding.used)

    def mark(self) -> int:
        """A point to come back to by `undo`."""
        return self._bindings.mark()

    def undo(self, mark: int) -> None:
        """Take back every change since the mark; this costs what the changes did."""
        self._bindings.undo(mark)

    def _known(self, tenant: str) -> Holding | None:
        return self._bindings.holdings.get(tenant)

    def _find(self, tenant: str, node: str) -> tuple[Holding | None, int]:
        number = self._bindings.numbers.get(node)
        return (self._known(tenant), number) if number is not None else (None, -1)

    def _with(self, holding: Holding, node: int, level: int) -> Counts:
        cells = list(self._bindings.bound(holding, node))
        cells[level] += 1
        return cells


def _first_granted_first(pool: Pool, quotas: Iterable[Quota]) -> list[Quota]:
    return sorted(
        (quota for quota in quotas if quota.pool == pool.key), key=lambda quota: (quota.granted, quota.tenant)
    )
