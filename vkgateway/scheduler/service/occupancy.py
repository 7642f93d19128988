"""Usage on the compute nodes of one cluster by pods that the arbiter does not place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from vkgateway.api.requests import MilliResources

Owner = tuple[str, str]
"""A tenant and a pool."""


@dataclass(frozen=True, slots=True)
class _Allocation:
    node: str
    amounts: MilliResources
    owner: Owner | None
    selectors: frozenset[str]


class Occupancy:
    """Sums of usage by node and by owner, updated as pods change; a pod's key is its compute UID."""

    def __init__(self) -> None:
        self._allocations: dict[str, _Allocation] = {}
        self._nodes: dict[str, MilliResources] = defaultdict(dict)
        self._owners: dict[Owner, MilliResources] = defaultdict(dict)
        self._peers: dict[str, Counter[str]] = defaultdict(Counter)
        """Number of pods by node and selector."""
        self.changed_nodes: set[str] = set()
        """Nodes whose sum changed; the reader clears it."""

    def count_pod(
        self,
        uid: str,
        *,
        node: str,
        amounts: MilliResources,
        owner: Owner | None = None,
        selectors: frozenset[str] = frozenset(),
    ) -> None:
        """Count a pod; `node` is empty for unbound pods. `selectors` of `PeerRules` select it."""
        new = _Allocation(node, amounts, owner, selectors)
        if self._allocations.get(uid) == new:
            return
        self.drop_pod(uid)
        self._allocations[uid] = new
        self._add_allocation(new, 1)

    def drop_pod(self, uid: str) -> None:
        """Stop counting a pod: it has ended, or the arbiter places it."""
        old = self._allocations.pop(uid, None)
        if old is not None:
            self._add_allocation(old, -1)

    def used_on(self, node: str) -> MilliResources:
        """Return the usage on a node, in thousandths."""
        return _without_zeros(self._nodes.get(node, {}))

    def peers_on(self, node: str) -> dict[str, int]:
        """Return the number of pods on a node by the selectors of `PeerRules` that select them."""
        return dict(self._peers.get(node, ()))

    def used_by(self, owner: Owner) -> MilliResources:
        """Return the usage of a tenant's pods in a pool, in thousandths."""
        return _without_zeros(self._owners.get(owner, {}))

    def _add_allocation(self, holding: _Allocation, sign: int) -> None:
        if holding.node:
            self.changed_nodes.add(holding.node)
            _add_amounts(self._nodes[holding.node], holding.amounts, sign)
            if not self.used_on(holding.node):
                del self._nodes[holding.node]
            if holding.selectors:
                self._count_peers(holding, sign)
        if holding.owner is not None:
            _add_amounts(self._owners[holding.owner], holding.amounts, sign)
            if not self.used_by(holding.owner):
                del self._owners[holding.owner]

    def _count_peers(self, holding: _Allocation, sign: int) -> None:
        counts = self._peers[holding.node]
        for selector in holding.selectors:
            counts[selector] += sign
            if not counts[selector]:
                del counts[selector]
        if not counts:
            del self._peers[holding.node]


def _add_amounts(total: MilliResources, amounts: Mapping[str, int], sign: int) -> None:
    for name, value in amounts.items():
        total[name] = total.get(name, 0) + sign * value


def _without_zeros(amounts: Mapping[str, int]) -> MilliResources:
    return {name: value for name, value in amounts.items() if value}
