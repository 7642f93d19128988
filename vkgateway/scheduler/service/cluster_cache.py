"""Scheduling state of compute clusters: their pools, and the usage of pods that the arbiter does not place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from vkgateway.api.names import POOL_LABEL
from vkgateway.api.objects import NodeView
from vkgateway.api.requests import MilliResources, to_milli
from vkgateway.api.reserve import pool_reserve
from vkgateway.api.run_limits import default_limits
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.clusters.cluster_watches import NODES, PODS, TOPOLOGIES, TRUST, UNMANAGED_PODS
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.pool_nodes import PoolNodes, order_resources
from vkgateway.clusters.topology_views import TopologyView
from vkgateway.clusters.unmanaged_pods import UnmanagedPodView
from vkgateway.runtime.views.ownership import owned_by
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.core.capacity.node_matching import is_tolerated
from vkgateway.scheduler.core.snapshot import Band, Node, Pool, PoolKey, Toleration
from vkgateway.scheduler.governed import CORDON_TAINT
from vkgateway.scheduler.service.arbitrated_tenants import ArbitratedTenants
from vkgateway.scheduler.service.member import decode_toleration
from vkgateway.scheduler.service.node_failures import NodeFailures
from vkgateway.scheduler.service.occupancy import NodeImages, NodeZones, Occupancy

if TYPE_CHECKING:
    from vkgateway.scheduler.service.arbitration import Arbitration

_MIN_AVOIDED: Final = 2
"""Minimum number of nodes that may be excluded at the same time; a tenth of the cluster's nodes if that is more."""


class ClusterCache:
    """Scheduling state of one compute cluster, updated by its watches."""

    def __init__(self, link: ComputeLink, tenants: ArbitratedTenants, arbitration: Arbitration) -> None:
        self.link = link
        self._tenants = tenants
        self._arbitration = arbitration
        self._is_away = not link.is_trusted
        self._occupancy = Occupancy()
        self._images = NodeImages()
        self._zones = NodeZones(tenants.shape_of)
        self._pending_topologies: dict[str, TopologyView | None] = {}
        """Topologies that nodes published before the cluster's pods were known."""
        self._pools: dict[str, PoolCache] = {}
        self._pool_nodes: dict[str, PoolNodes] = {}
        """Nodes of each pool as of the last cycle."""
        self._node_names: dict[str, frozenset[str]] = {}
        """Names of these nodes."""
        self.avoided_nodes: dict[str, float] = {}
        """Nodes that did not accept a pod, with the time until which they are excluded."""
        self.node_failures = NodeFailures(link.name)
        link.watches.add(PODS, self._pod_changed)
        link.watches.add(UNMANAGED_PODS, self._unmanaged_pod_changed)
        link.watches.add(NODES, arbitration.trigger)
        link.watches.add(TRUST, self._reachable_changed)
        link.watches.add(TOPOLOGIES, self._topology_changed)
        self._pending_topologies.update(link.topologies.topology_items())
        for pod in link.pods.store.values():
            self.recount_pod(pod)
        for unmanaged in link.unmanaged_pods.store.values():
            self._unmanaged_pod_changed(None, unmanaged)

    def close(self) -> None:
        """Stop watching the cluster."""
        self.link.watches.remove(PODS, self._pod_changed)
        self.link.watches.remove(UNMANAGED_PODS, self._unmanaged_pod_changed)
        self.link.watches.remove(NODES, self._arbitration.trigger)
        self.link.watches.remove(TRUST, self._reachable_changed)
        self.link.watches.remove(TOPOLOGIES, self._topology_changed)

    @property
    def is_known(self) -> bool:
        """Whether all objects of the cluster are known, and the cluster is reachable."""
        link = self.link
        return (
            link.is_trusted and link.nodes.is_complete and link.unmanaged_pods.is_complete and link.topologies.is_known
        )

    def update_pools(self, specs: Iterable[PoolSpec], *, images: frozenset[str], now: float) -> list[Pool]:
        """Return the current pools; `images` are those that any pod requests."""
        specs = tuple(specs)
        self._assign_nodes({spec.name: self.link.nodes.pool_nodes(spec.node_selector) for spec in specs})
        self._update_zones()
        changed, self._occupancy.changed_nodes = self._occupancy.changed_nodes, set()
        changed |= self._zones.changed_nodes
        self._zones.changed_nodes = set()
        changed |= self._images.update_images(self.link.nodes.store.values(), images, now=now)
        self.avoided_nodes = {node: until for node, until in self.avoided_nodes.items() if until > now}
        avoided, failed = frozenset(self.avoided_nodes), self.node_failures.failed_gangs(now)
        found = []
        for spec in specs:
            pool_cache = self._pools.setdefault(
                spec.name, PoolCache((self.link.name, spec.name), self._images, self._zones)
            )
            found.append(
                pool_cache.update_pool(
                    spec,
                    self._pool_nodes[spec.name],
                    self._occupancy,
                    changed=changed,
                    avoided=avoided,
                    failed=failed,
                )
            )
        return found

    def avoid_node(self, node: str, *, until: float) -> bool:
        """Exclude a node until a time (seconds since the epoch). Return False if too many are excluded already."""
        if node not in self.avoided_nodes and len(self.avoided_nodes) >= max(
            _MIN_AVOIDED, len(self.link.nodes.store) // 10
        ):
            return False
        self.avoided_nodes[node] = until
        return True

    def unplaced_usage(self, tenant: str, pool: str) -> MilliResources:
        """Return the usage of a tenant's pods in a pool that the arbiter does not place."""
        return self._occupancy.used_by((tenant, pool))

    def _reachable_changed(self) -> None:
        was_away, self._is_away = self._is_away, not self.link.is_trusted
        if was_away and not self._is_away:
            self._tenants.postpone_evictions(self.link.name)
        self._arbitration.trigger()

    def _assign_nodes(self, members: dict[str, PoolNodes]) -> None:
        """Update the nodes of each pool. A placed pod whose node left its pool counts as usage of others there."""
        before, self._pool_nodes = self._pool_nodes, members
        if before.keys() == members.keys() and all(before[name] is nodes for name, nodes in members.items()):
            return
        node_names = {name: frozenset(node.metadata.name for node in pool.nodes) for name, pool in members.items()}
        if node_names != self._node_names:
            self._node_names = node_names
            for pod in self.link.pods.store.values():
                self.recount_pod(pod)

    def _topology_changed(self, node: str, view: TopologyView | None) -> None:
        self._pending_topologies[node] = view
        if self._zones.follows_pods:
            self._update_zones()
        self._arbitration.trigger_later()

    def _update_zones(self) -> None:
        """Update the zones of nodes that published a topology, once all pods are known."""
        topologies, self._pending_topologies = self._pending_topologies, {}
        if topologies and not self._zones.follows_pods:
            self._zones.follow_pods(self.link.pods.store.values())
        for node, view in topologies.items():
            self._zones.node_published(node, view, used=self._occupancy.used_on(node))

    def _pod_changed(self, old: ComputePodView | None, new: ComputePodView | None) -> None:
        self._zones.pod_changed(old, new)
        if new is not None:
            self.recount_pod(new)
        elif old is not None:
            self._occupancy.drop_pod(old.metadata.uid)
        self._arbitration.trigger_later()

    def recount_pod(self, pod: ComputePodView) -> None:
        """Count a pod's usage again, after it changed, or after its tenant pod was read or forgotten."""
        uid, pool = pod.metadata.uid, pod.metadata.labels.get(POOL_LABEL, "")
        placed = self._tenants.is_member(pod.tenant_name, pod.tenant_uid)
        moved = bool(self._node_names and pod.spec.node_name) and pod.spec.node_name not in self._node_names.get(
            pool, ()
        )
        if pod.has_ended or not owned_by(pod.tenant_name, pod.metadata) or (placed and not moved):
            self._occupancy.drop_pod(uid)
            return
        owner = None if placed else (pod.tenant_name, pool)
        self._occupancy.count_pod(
            uid,
            node=pod.spec.node_name,
            amounts=pod.admitted_requests or {},
            owner=owner,
            selectors=self._tenants.peer_selectors_of(pod),
        )

    def _unmanaged_pod_changed(self, old: UnmanagedPodView | None, new: UnmanagedPodView | None) -> None:
        if new is not None:
            self._occupancy.count_pod(new.metadata.uid, node=new.node, amounts=new.requests)
        elif old is not None:
            self._occupancy.drop_pod(old.metadata.uid)
        self._arbitration.trigger_later()


class ClusterCaches:
    """Scheduling state of all connected compute clusters."""

    def __init__(self, tenants: ArbitratedTenants, arbitration: Arbitration) -> None:
        self._tenants = tenants
        self._arbitration = arbitration
        self.by_name: dict[str, ClusterCache] = {}

    @property
    def are_known(self) -> bool:
        """Whether all objects of all clusters are known."""
        return all(cluster.is_known for cluster in self.by_name.values())

    def set_links(self, links: Mapping[str, ComputeLink]) -> None:
        """Follow the connected clusters."""
        for name in [name for name, cache in self.by_name.items() if links.get(name) is not cache.link]:
            self.by_name.pop(name).close()
        for name, link in links.items():
            if name not in self.by_name:
                self.by_name[name] = ClusterCache(link, self._tenants, self._arbitration)

    def recount_tenant(self, tenant: str) -> None:
        """Count the usage of all pods of a tenant again."""
        for cluster in self.by_name.values():
            for pod in cluster.link.pods.of_tenant(tenant):
                cluster.recount_pod(pod)

    def close(self) -> None:
        """Stop watching the clusters."""
        for cluster in self.by_name.values():
            cluster.close()


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
