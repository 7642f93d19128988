"""Guarantees as numbers of nodes: nodes on which a pod may run inside its tenant's guarantee, so that all others hold.

Consider the nodes of one size in a pool, and only the pods inside guarantees; all others can be evicted. A *holder* is
a tenant with its whole-node cells, or a *group*: cells smaller than a node, of several tenants, that fill one node at
most. A node is *exclusive* to a holder if only pods of this holder are on it, *shared* if pods of several are, and else
*clean*. With N nodes, k_h nodes guaranteed to holder h (1 for a group), e_h nodes exclusive to it and s shared nodes,
let

    excess = s + sum over h of max(0, e_h - k_h)        spare = N - sum over h of k_h

Invariant: excess <= spare.

It keeps every promise at once: each holder can have max(k_h, e_h) nodes to itself. The clean nodes that this takes are
sum max(0, k_h - e_h) = sum k_h - sum e_h + sum max(0, e_h - k_h) <= (N - spare) - sum e_h + (spare - s), and these are
all clean nodes. Each member of a group has its cells on the group's node, since the others use no more than theirs.

It survives every end: a shared node stays shared, or becomes exclusive (s falls by one, one e_h rises by one), or
clean, and an exclusive node becomes clean. So only placements are checked.

Which pods belong to a group is not recorded. Each group takes the node that lowers the excess most, among the nodes
where all pods are of its members and none uses more than its cells: so the excess is a minimum over all such choices. A
choice stays possible when pods end, hence the minimum never rises either. While the excess without groups is within the
spare nodes, groups need no look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

Group = Mapping[str, int]
"""Amount by tenant, of cells smaller than a node that fill one node at most."""


@dataclass(frozen=True, slots=True)
class Guarantees:
    """Guarantees of all tenants on the nodes of one size."""

    nodes: Mapping[str, int] = field(default_factory=dict)
    """Number of whole nodes, by tenant."""
    groups: Sequence[Group] = ()

    @property
    def total(self) -> int:
        """Number of nodes that all guarantees together need."""
        return sum(self.nodes.values()) + len(self.groups)


def pack_cells(cells: Mapping[str, Mapping[int, int]], sizes: Iterable[int]) -> dict[int, Guarantees]:
    """Return by node size the guarantees of tenants with these cells; each cell size divides the next larger one.

    `cells`: the number of cells by tenant and size. `sizes`: the sizes of all nodes, in the unit of the cells. Larger
    cells come first, then those of earlier tenants. Each goes beside cells of its tenant, or to the node that it fills
    best: sizes that divide each other leave no gap. A cell that fits no node is left out. A node with cells of one
    tenant alone is its whole node, since no other cell needs the rest.
    """
    nodes = _PackedNodes(sorted(sizes))
    for size, tenant in sorted(((size, tenant) for tenant, each in cells.items() for size in each), key=_negative_size):
        nodes.add_cells(tenant, size, cells[tenant][size])
    whole: defaultdict[int, dict[str, int]] = defaultdict(dict)
    groups: defaultdict[int, list[Group]] = defaultdict(list)
    for size, group in zip(nodes.sizes, nodes.held, strict=True):
        if len(group) == 1:
            (tenant,) = group
            whole[size][tenant] = whole[size].get(tenant, 0) + 1
        elif group:
            groups[size].append(group)
    return {size: Guarantees(whole[size], tuple(groups[size])) for size in set(nodes.sizes)}


def _negative_size(cell: tuple[int, str]) -> int:
    return -cell[0]


class _PackedNodes:
    """Nodes while `pack_cells` fills them. Each step fills a node, so many small cells cost no more than few."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.held = [dict[str, int]() for _ in sizes]
        self._free = list(sizes)
        self._by_free: defaultdict[int, list[int]] = defaultdict(list)
        """Heaps of nodes by free amount; a node whose free amount has changed since is skipped."""
        for number, size in enumerate(sizes):
            self._by_free[size].append(number)
        self._nodes_of: defaultdict[str, set[int]] = defaultdict(set)

    def add_cells(self, tenant: str, size: int, count: int) -> None:
        """Add a tenant's cells of one size. Larger ones were added before."""
        for number in self._candidates(tenant, size):
            filled = min(count, self._free[number] // size)
            count -= filled
            self._free[number] -= filled * size
            heappush(self._by_free[self._free[number]], number)
            self.held[number][tenant] = self.held[number].get(tenant, 0) + filled * size
            self._nodes_of[tenant].add(number)
            if not count:
                break

    def _candidates(self, tenant: str, size: int) -> Iterator[int]:
        """Yield the nodes with room for a cell, those with cells of the tenant first, then the fullest.

        The caller fills each of them.
        """
        mine = [(self._free[number], number) for number in self._nodes_of[tenant] if self._free[number] >= size]
        yield from (number for _, number in sorted(mine))
        for free in sorted(free for free in self._by_free if free >= size):
            heap = self._by_free[free]
            while heap:
                number = heappop(heap)
                if self._free[number] == free:
                    yield number


class GuaranteedNodes:
    """Nodes of one size, and what pods inside guarantees use there. Nodes are numbers from 0."""

    def __init__(self, nodes: int, guarantees: Guarantees) -> None:
        self._guarantees = guarantees
        self.uses: list[dict[str, int]] = [{} for _ in range(nodes)]
        """What each tenant uses, by node; read-only."""
        self._shared: set[int] = set()
        self._exclusive: defaultdict[str, set[int]] = defaultdict(set)
        self._surplus = 0
        """Exclusive nodes beyond the guarantees, of all tenants."""

    @property
    def spare(self) -> int:
        """Number of nodes beyond all guarantees; negative while nodes are missing."""
        return len(self.uses) - self._guarantees.total

    @property
    def has_groups(self) -> bool:
        """Whether cells of several tenants fill one node."""
        return bool(self._guarantees.groups)

    def excess(self) -> int:
        """Return the shared nodes and those beyond their holder's guarantee."""
        return self._excess_without_groups() - self._count_taken()

    def room_without_groups(self) -> int:
        """Return by how much a placement may raise the excess, if groups have no look; negative: only groups help."""
        excess = self._excess_without_groups()
        return max(excess - self._count_taken(), self.spare) - excess if excess > self.spare else self.spare - excess

    def surplus_of(self, tenant: str) -> int:
        """Return by how much a tenant's exclusive nodes exceed its guarantee; negative below it."""
        return len(self._exclusive.get(tenant, ())) - self._guarantees.nodes.get(tenant, 0)

    def may_add(self, tenant: str, node: int, amount: int) -> bool:
        """Return whether a pod may use a node inside its tenant's guarantee.

        While nodes are missing, a pod may use a node if that makes no promise worse.
        """
        room = self.room_without_groups()
        allowed = self._excess_without_groups() + room
        self.add(tenant, node, amount)
        # Groups only lower the excess, and are rarely needed.
        found = self._excess_without_groups() <= allowed or self.excess() <= allowed
        self.remove(tenant, node, amount)
        return found

    def largest_amount(self, tenant: str, node: int, most: int) -> int:
        """Return the largest amount up to `most` that a pod may use of a node inside its tenant's guarantee."""
        if self.may_add(tenant, node, most):
            return most
        used = self.uses[node].get(tenant, 0)
        rests = {group.get(tenant, 0) - used for group in self._guarantees.groups}
        smaller = sorted((rest for rest in rests if 0 < rest < most), reverse=True)
        return next((rest for rest in smaller if self.may_add(tenant, node, rest)), 0)

    def add(self, tenant: str, node: int, amount: int) -> None:
        """Add a pod inside its tenant's guarantee."""
        self._change(tenant, node, amount)

    def remove(self, tenant: str, node: int, amount: int) -> None:
        """Remove a pod that `add` added."""
        self._change(tenant, node, -amount)

    def _change(self, tenant: str, node: int, amount: int) -> None:
        use = self.uses[node]
        left = use.get(tenant, 0) + amount
        if left and tenant in use:
            use[tenant] = left
            return
        if len(use) == 1:
            self._note_exclusive(next(iter(use)), node, is_exclusive=False)
        self._shared.discard(node)
        if left:
            use[tenant] = left
        else:
            use.pop(tenant, None)
        if len(use) == 1:
            self._note_exclusive(next(iter(use)), node, is_exclusive=True)
        elif use:
            self._shared.add(node)

    def _note_exclusive(self, tenant: str, node: int, *, is_exclusive: bool) -> None:
        before = max(0, self.surplus_of(tenant))
        (self._exclusive[tenant].add if is_exclusive else self._exclusive[tenant].discard)(node)
        self._surplus += max(0, self.surplus_of(tenant)) - before

    def _excess_without_groups(self) -> int:
        return len(self._shared) + self._surplus

    def _count_taken(self) -> int:
        """Return by how much the groups lower the excess: the maximum flow from groups over nodes.

        Each group takes one node at most. Shared nodes lower the excess by one each, and exclusive nodes of a tenant as
        long as it has more than its guarantee.
        """
        group_of: dict[int, int] = {}
        return sum(self._take_node(group, group_of, set(), set()) for group in range(len(self._guarantees.groups)))

    def _take_node(self, group: int, group_of: dict[int, int], nodes: set[int], tenants: set[str]) -> bool:
        """Find a node for a group, and others for the groups that must leave theirs; return whether one was found.

        This is an augmenting path. `nodes` and `tenants` were tried before.
        """
        for node in self._candidates(self._guarantees.groups[group]):
            if node in nodes:
                continue
            nodes.add(node)
            if node in group_of:
                if self._take_node(group_of[node], group_of, nodes, tenants):
                    group_of[node] = group
                    return True
            elif self._free_slot(node, group_of, nodes, tenants):
                group_of[node] = group
                return True
        return False

    def _free_slot(self, node: int, group_of: dict[int, int], nodes: set[int], tenants: set[str]) -> bool:
        """Return whether one more node like this lowers the excess, after another group left a node of its tenant."""
        if node in self._shared:
            return True
        (tenant,) = self.uses[node]
        if tenant in tenants:
            return False
        taken = [each for each in group_of if each in self._exclusive[tenant]]
        if len(taken) < self.surplus_of(tenant):
            return True
        tenants.add(tenant)
        for each in taken:
            if each not in nodes:
                nodes.add(each)
                if self._take_node(group_of[each], group_of, nodes, tenants):
                    del group_of[each]
                    return True
        return False

    def _candidates(self, group: Group) -> Iterator[int]:
        """Yield the nodes that lower the excess if the group takes them."""
        for node in self._shared:
            if self._fits_group(node, group):
                yield node
        for tenant in group:
            if self.surplus_of(tenant) > 0:
                yield from (node for node in self._exclusive[tenant] if self._fits_group(node, group))

    def _fits_group(self, node: int, group: Group) -> bool:
        return all(amount <= group.get(tenant, 0) for tenant, amount in self.uses[node].items())
