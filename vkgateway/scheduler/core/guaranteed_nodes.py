"""Guarantees as numbers of nodes: nodes on which a pod may run inside its tenant's guarantee, so that all others hold.

Consider the nodes of one size in a pool, and only the pods inside guarantees; all others can be evicted. A *holder* is
a tenant with its whole-node cells, or a *group*: cells smaller than a node, of one or several tenants, that fill one
node at most. A node is *exclusive* to a holder if only pods of this holder are on it, *shared* if pods of several are,
and else *clean*. With N nodes, k_h nodes guaranteed to holder h (1 for a group), e_h nodes exclusive to it and s shared
nodes, let

    excess = s + sum over h of max(0, e_h - k_h)        spare = N - sum over h of k_h

Invariant: excess <= spare.

It keeps every promise at once: each holder can have max(k_h, e_h) nodes to itself. The clean nodes that this takes are
sum max(0, k_h - e_h) = sum k_h - sum e_h + sum max(0, e_h - k_h) <= (N - spare) - sum e_h + (spare - s), and these are
all clean nodes. Each member of a group has its cells on the group's node, since the others use no more than theirs.

It survives every end: a shared node stays shared, or becomes exclusive (s falls by one, one e_h rises by one), or
clean, and an exclusive node becomes clean. So only placements are checked.

Which pods belong to a group is not recorded. Each group takes the node that lowers the excess most, among the nodes
where all pods are of its members and none uses more than its cells: so the excess is a minimum over all such choices. A
choice stays possible when pods end, hence the minimum never rises either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Group = Mapping[str, int]
"""Units by tenant, of cells smaller than a node that fill one node at most."""


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


def pack_cells(cells: Mapping[str, Iterable[int]], node_units: int) -> Guarantees:
    """Return the guarantees of tenants whose cells have these sizes in units; each size divides the next larger one.

    Larger cells come first, so that the groups are as few as possible: sizes that divide each other leave no gap.
    """
    nodes: dict[str, int] = {}
    groups: list[dict[str, int]] = []
    sized = [(size, tenant) for tenant, sizes in cells.items() for size in sizes]
    for size, tenant in sorted(sized, key=lambda each: (-each[0], each[1])):
        if size == node_units:
            nodes[tenant] = nodes.get(tenant, 0) + 1
            continue
        group = next((each for each in groups if sum(each.values()) + size <= node_units), None)
        if group is None:
            group = {}
            groups.append(group)
        group[tenant] = group.get(tenant, 0) + size
    return Guarantees(nodes, groups)


class GuaranteedNodes:
    """Nodes of one size, and the units that pods inside guarantees use there. Nodes are numbers from 0."""

    def __init__(self, nodes: int, guarantees: Guarantees) -> None:
        self._guarantees = guarantees
        self._uses: list[dict[str, int]] = [{} for _ in range(nodes)]
        self._shared: set[int] = set()
        self._exclusive: defaultdict[str, set[int]] = defaultdict(set)

    @property
    def spare(self) -> int:
        """Number of nodes beyond all guarantees; negative while nodes are missing."""
        return len(self._uses) - self._guarantees.total

    def excess(self) -> int:
        """Return the shared nodes and those beyond their holder's guarantee."""
        return self._excess_without_groups() - self._count_taken()

    def may_add(self, tenant: str, node: int, units: int) -> bool:
        """Return whether a pod may use a node inside its tenant's guarantee.

        While nodes are missing, a pod may use a node if that makes no promise worse.
        """
        allowed = max(self.excess(), self.spare)
        self.add(tenant, node, units)
        # Groups only lower the excess, and are rarely needed.
        found = self._excess_without_groups() <= allowed or self.excess() <= allowed
        self.remove(tenant, node, units)
        return found

    def add(self, tenant: str, node: int, units: int) -> None:
        """Add a pod inside its tenant's guarantee."""
        self._change(tenant, node, units)

    def remove(self, tenant: str, node: int, units: int) -> None:
        """Remove a pod that `add` added."""
        self._change(tenant, node, -units)

    def _change(self, tenant: str, node: int, units: int) -> None:
        use = self._uses[node]
        self._shared.discard(node)
        for holder in use:
            self._exclusive[holder].discard(node)
        use[tenant] = use.get(tenant, 0) + units
        if not use[tenant]:
            del use[tenant]
        if len(use) > 1:
            self._shared.add(node)
        for holder in use if len(use) == 1 else ():
            self._exclusive[holder].add(node)

    def _surplus(self, tenant: str) -> int:
        """Return the number of nodes that are exclusive to a tenant beyond its guarantee."""
        return max(0, len(self._exclusive.get(tenant, ())) - self._guarantees.nodes.get(tenant, 0))

    def _excess_without_groups(self) -> int:
        return len(self._shared) + sum(map(self._surplus, self._exclusive))

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
        (tenant,) = self._uses[node]
        if tenant in tenants:
            return False
        taken = [each for each in group_of if each in self._exclusive[tenant]]
        if len(taken) < self._surplus(tenant):
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
            if self._surplus(tenant):
                yield from (node for node in self._exclusive[tenant] if self._fits_group(node, group))

    def _fits_group(self, node: int, group: Group) -> bool:
        return all(units <= group.get(tenant, 0) for tenant, units in self._uses[node].items())
