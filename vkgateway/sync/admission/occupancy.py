"""Who holds what on the compute nodes of one cluster, beside the pods that the arbiter itself placed there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from vkgateway.model.requests import Milli

Owner = tuple[str, str]
"""A tenant and a pool."""


@dataclass(frozen=True, slots=True)
class _Holding:
    node: str
    amounts: Milli
    owner: Owner | None


class Occupancy:
    """Sums by node and by owner, kept as pods come and go; each pod is told by its compute uid."""

    def __init__(self) -> None:
        self._holdings: dict[str, _Holding] = {}
        self._nodes: dict[str, Milli] = defaultdict(dict)
        self._owners: dict[Owner, Milli] = defaultdict(dict)
        self.changed: set[str] = set()
        """Nodes whose sum changed; whoever reads the sums empties it."""

    def hold(self, uid: str, *, node: str, amounts: Milli, owner: Owner | None = None) -> None:
        """Count a pod; `node` is empty while no scheduler has bound it."""
        new = _Holding(node, amounts, owner)
        if self._holdings.get(uid) == new:
            return
        self.drop(uid)
        self._holdings[uid] = new
        self._add(new, 1)

    def drop(self, uid: str) -> None:
        """Count a pod no longer: it has ended, or is the arbiter's to place."""
        old = self._holdings.pop(uid, None)
        if old is not None:
            self._add(old, -1)

    def on_node(self, node: str) -> Milli:
        """What is held on a node, in thousandths."""
        return _positive(self._nodes.get(node, {}))

    def of_owner(self, owner: Owner) -> Milli:
        """What pods of a tenant hold in a pool, in thousandths."""
        return _positive(self._owners.get(owner, {}))

    def _add(self, holding: _Holding, sign: int) -> None:
        if holding.node:
            self.changed.add(holding.node)
            _sum_up(self._nodes[holding.node], holding.amounts, sign)
            if not self.on_node(holding.node):
                del self._nodes[holding.node]
        if holding.owner is not None:
            _sum_up(self._owners[holding.owner], holding.amounts, sign)
            if not self.of_owner(holding.owner):
                del self._owners[holding.owner]


def _sum_up(total: Milli, amounts: Mapping[str, int], sign: int) -> None:
    for name, value in amounts.items():
        total[name] = total.get(name, 0) + sign * value


def _positive(amounts: Mapping[str, int]) -> Milli:
    return {name: value for name, value in amounts.items() if value}
