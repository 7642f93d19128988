"""A pool's compute nodes as the arbiter sees them; what did not change stays the very same object."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.arbiter.facts import Node, Pool, PoolKey, Toleration
from vkgateway.arbiter.matching import tolerates
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.model.objects import NodeView
from vkgateway.model.requests import Milli, milli
from vkgateway.model.reserve import reserve_of
from vkgateway.sync.admission.images import NodeImages
from vkgateway.sync.admission.numa import NodeZones
from vkgateway.sync.admission.occupancy import Occupancy
from vkgateway.sync.admission.shapes import toleration
from vkgateway.translate.governed import CORDONED
from vkgateway.translate.poolnodes import PoolNodes, cells_first

_PASSING: Final = frozenset(
    (
        CORDONED.key,
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/network-unavailable",
    )
)
"""Taints by which Kubernetes says that a node takes no pods now. Pressure of memory lets some in."""


@dataclass(slots=True)
class _Seen:
    """What the facts were made from."""

    spec: PoolSpec
    members: PoolNodes
    avoided: frozenset[str]


class PoolFacts:
    """Makes and keeps the facts of one pool."""

    def __init__(self, key: PoolKey, images: NodeImages, zones: NodeZones) -> None:
        self._key = key
        self._images = images
        self._zones = zones
        self._seen: _Seen | None = None
        self._facts: Pool | None = None
        self._bare: dict[str, Node] = {}
        """Nodes by name, as if nothing ran on them."""

    def facts(
        self,
        spec: PoolSpec,
        members: PoolNodes,
        occupancy: Occupancy,
        *,
        changed: Collection[str],
        avoided: frozenset[str],
    ) -> Pool:
        """The pool now. `changed` are nodes whose occupancy, images or zones changed since the last time, `avoided`
        those that are not to be used for a while."""
        seen = self._seen
        if self._facts is None or seen is None or seen.members is not members or seen.spec != spec:
            return self._anew(spec, members, occupancy, avoided)
        changed = {*changed, *(avoided ^ seen.avoided)} & self._bare.keys()
        seen.avoided = avoided
        if changed:
            nodes = tuple(
                self._node(node.name, occupancy, avoided) if node.name in changed else node
                for node in self._facts.nodes
            )
            self._facts = replace(self._facts, nodes=nodes)
        return self._facts

    def _anew(self, spec: PoolSpec, members: PoolNodes, occupancy: Occupancy, avoided: frozenset[str]) -> Pool:
        taken = tuple(toleration(entry) for entry in spec.tolerations)
        reserve = reserve_of(spec)
        old = {node.name: node for node in self._facts.nodes} if self._facts is not None else {}
        self._seen = _Seen(spec, members, avoided)
        ample = milli(members.passed_through(spec.passed_through))
        self._bare = {node.metadata.name: _bare(node, taken, ample) for node in members.nodes}
        nodes = []
        for name in sorted(self._bare):
            node = self._node(name, occupancy, avoided)
            known = old.get(name)
            nodes.append(known if known == node else node)
        self._facts = Pool(
            key=self._key,
            nodes=tuple(nodes),
            governed=cells_first(members.governed, spec.cell_resource)
            or (self._facts.governed if self._facts is not None else ()),
            levels=tuple(spec.levels),
            reserve=reserve.units * 1000,
            reserve_percent=reserve.percent,
        )
        return self._facts

    def _node(self, name: str, occupancy: Occupancy, avoided: frozenset[str]) -> Node:
        bare = self._bare[name]
        usable = bare.usable and name not in avoided
        return replace(
            bare,
            used=occupancy.on_node(name),
            images=self._images.on_node(name),
            usable=usable,
            topology=self._zones.on_node(name),
        )


def _bare(view: NodeView, taken: Sequence[Toleration], ample: Milli) -> Node:
    """A node without the taints that every pod of the pool tolerates, and with `ample` of what is passed through.

    Those of nodes that are cordoned, down or pressed pass, so they only close it for now: what would fit there but
    for them is not told that it never will.
    """
    passing = any(taint.key in _PASSING and taint.effect != "PreferNoSchedule" for taint in view.spec.taints)
    return Node(
        name=view.metadata.name,
        allocatable={**milli(view.status.allocatable), **ample},
        labels=view.metadata.labels,
        taints=tuple(taint for taint in view.spec.taints if taint.key not in _PASSING and not tolerates(taken, taint)),
        usable=view.usable and not passing,
    )
