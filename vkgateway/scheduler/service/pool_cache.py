"""Pools of a compute cluster in the arbiter's snapshot; unchanged pools and nodes stay the same objects."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from vkgateway.api.objects import NodeView
from vkgateway.api.requests import MilliResources, to_milli
from vkgateway.api.reserve import pool_reserve
from vkgateway.api.run_limits import default_limits
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.clusters.pool_nodes import PoolNodes, order_resources
from vkgateway.scheduler.core.capacity.node_matching import is_tolerated
from vkgateway.scheduler.core.snapshot import Band, Node, Pool, PoolKey, Toleration
from vkgateway.scheduler.governed import CORDON_TAINT
from vkgateway.scheduler.service.node_images import NodeImages
from vkgateway.scheduler.service.numa import NodeZones
from vkgateway.scheduler.service.occupancy import Occupancy
from vkgateway.scheduler.service.shapes import decode_toleration

_TRANSIENT_TAINTS: Final = frozenset(
    (
        CORDON_TAINT.key,
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/network-unavailable",
    )
)
"""Taints of nodes that accept no pods at the moment. Nodes under memory pressure accept some."""


@dataclass(slots=True)
class _PoolInputs:
    """Inputs from which a pool was built."""

    spec: PoolSpec
    members: PoolNodes
    avoided: frozenset[str]
    failed: Mapping[str, int]


class PoolCache:
    """Cache of one pool."""

    def __init__(self, key: PoolKey, images: NodeImages, zones: NodeZones) -> None:
        self._key = key
        self._images = images
        self._zones = zones
        self._inputs: _PoolInputs | None = None
        self._pool: Pool | None = None
        self._bare_nodes: dict[str, Node] = {}
        """Nodes by name, without any usage."""

    def update_pool(
        self,
        spec: PoolSpec,
        members: PoolNodes,
        occupancy: Occupancy,
        *,
        changed: Collection[str],
        avoided: frozenset[str],
        failed: Mapping[str, int] = MappingProxyType({}),
    ) -> Pool:
        """Return the current pool.

        `changed` are nodes whose usage, images or zones changed since the last call, `avoided` nodes are excluded at
        the moment. `failed` are nodes that are chosen last, with the number of gangs that failed there.
        """
        seen = self._inputs
        if self._pool is None or seen is None or seen.members is not members or seen.spec != spec:
            return self._rebuild_pool(spec, members, occupancy, avoided, failed)
        suspect = {name for name, _ in failed.items() ^ seen.failed.items()}
        changed = {*changed, *(avoided ^ seen.avoided), *suspect} & self._bare_nodes.keys()
        seen.avoided, seen.failed = avoided, failed
        if changed:
            nodes = tuple(
                self._build_node(node.name, occupancy, avoided, failed) if node.name in changed else node
                for node in self._pool.nodes
            )
            self._pool = replace(self._pool, nodes=nodes)
        return self._pool

    def _rebuild_pool(
        self,
        spec: PoolSpec,
        members: PoolNodes,
        occupancy: Occupancy,
        avoided: frozenset[str],
        failed: Mapping[str, int],
    ) -> Pool:
        taken = tuple(decode_toleration(entry) for entry in spec.tolerations)
        reserve = pool_reserve(spec)
        old = {node.name: node for node in self._pool.nodes} if self._pool is not None else {}
        self._inputs = _PoolInputs(spec, members, avoided, failed)
        ample = to_milli(members.passthrough_resources(spec.passed_through))
        self._bare_nodes = {node.metadata.name: _bare_node(node, taken, ample) for node in members.nodes}
        nodes = []
        for name in sorted(self._bare_nodes):
            node = self._build_node(name, occupancy, avoided, failed)
            known = old.get(name)
            nodes.append(known if known == node else node)
        self._pool = Pool(
            key=self._key,
            nodes=tuple(nodes),
            governed=order_resources(members.governed_resources, spec.cell_resource)
            or (self._pool.governed if self._pool is not None else ()),
            levels=tuple(spec.levels),
            reserve=reserve.units * 1000,
            reserve_percent=reserve.percent,
            virtual_nodes_by=spec.virtual_nodes_by,
            low_yields=spec.low_yields_to == "GuaranteedBand",
            enforces_limits=spec.enforce_run_limits,
            default_limits={Band(band): seconds for band, seconds in default_limits(spec).items()},
        )
        return self._pool

    def _build_node(self, name: str, occupancy: Occupancy, avoided: frozenset[str], failed: Mapping[str, int]) -> Node:
        bare = self._bare_nodes[name]
        usable = bare.usable and name not in avoided
        return replace(
            bare,
            used=occupancy.used_on(name),
            peers=occupancy.peers_on(name),
            images=self._images.images_on(name),
            usable=usable,
            topology=self._zones.zones_of(name),
            failed_gangs=failed.get(name, 0),
        )


def _bare_node(view: NodeView, taken: Sequence[Toleration], ample: MilliResources) -> Node:
    """Return a node without usage. Taints that every pod of the pool tolerates are left out; `ample` replaces amounts
    of resources that are passed through.

    Taints of nodes that are cordoned, down or under pressure are transient, so they only close the node for now: a pod
    that would fit there otherwise is not reported as infeasible.
    """
    passing = any(taint.key in _TRANSIENT_TAINTS and taint.effect != "PreferNoSchedule" for taint in view.spec.taints)
    return Node(
        name=view.metadata.name,
        allocatable={**to_milli(view.status.allocatable), **ample},
        labels=view.metadata.labels,
        taints=tuple(
            taint for taint in view.spec.taints if taint.key not in _TRANSIENT_TAINTS and not is_tolerated(taken, taint)
        ),
        usable=view.is_usable and not passing,
    )
