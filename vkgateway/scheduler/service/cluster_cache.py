"""Scheduling state of compute clusters: their pools, and the usage of pods that the arbiter does not place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from vkgateway.api.names import POOL_LABEL
from vkgateway.api.requests import MilliResources
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.clusters.cluster_watches import NODES, PODS, TOPOLOGIES, TRUST, UNMANAGED_PODS
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.pool_nodes import PoolNodes
from vkgateway.clusters.topology_views import TopologyView
from vkgateway.clusters.unmanaged_pods import UnmanagedPodView
from vkgateway.runtime.views.ownership import owned_by
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.core.snapshot import Pool, Shape
from vkgateway.scheduler.service.node_failures import NodeFailures
from vkgateway.scheduler.service.node_images import NodeImages
from vkgateway.scheduler.service.numa import NodeZones
from vkgateway.scheduler.service.occupancy import Occupancy
from vkgateway.scheduler.service.pool_cache import PoolCache

_MIN_AVOIDED: Final = 2
"""Minimum number of nodes that may be excluded at the same time; a tenth of the cluster's nodes if that is more."""


class ClusterTenants(Protocol):
    """The tenants, as a cluster's cache uses them."""

    def is_member(self, tenant: str, uid: str) -> bool:
        """Return whether the arbiter itself places the tenant pod with this UID."""

    def shape_of(self, tenant: str, uid: str) -> Shape | None:
        """Return the shape of a tenant pod that the arbiter places; None for other pods."""

    def peer_selectors_of(self, pod: ComputePodView) -> frozenset[str]:
        """Return the names of the selectors of `PeerRules` that select a compute pod of a tenant."""

    def postpone_evictions(self, cluster: str) -> None:
        """Postpone evictions in a cluster that is reachable again."""


class CycleRequests(Protocol):
    """The arbitration, as a cluster's cache requests its cycles."""

    def trigger(self) -> None:
        """Start a cycle soon."""

    def trigger_later(self) -> None:
        """Start a cycle after a while: only the usage of other pods changed, and those change by the hundred."""


class ClusterCache:
    """Scheduling state of one compute cluster, updated by its watches."""

    def __init__(self, link: ComputeLink, tenants: ClusterTenants, cycles: CycleRequests) -> None:
        self.link = link
        self._tenants = tenants
        self._cycles = cycles
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
        link.watches.add(NODES, cycles.trigger)
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
        self.link.watches.remove(NODES, self._cycles.trigger)
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
        self._cycles.trigger()

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
        self._cycles.trigger_later()

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
        self._cycles.trigger_later()

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
        self._cycles.trigger_later()


class ClusterCaches:
    """Scheduling state of all connected compute clusters."""

    def __init__(self, tenants: ClusterTenants, cycles: CycleRequests) -> None:
        self._tenants = tenants
        self._cycles = cycles
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
                self.by_name[name] = ClusterCache(link, self._tenants, self._cycles)

    def recount_tenant(self, tenant: str) -> None:
        """Count the usage of all pods of a tenant again."""
        for cluster in self.by_name.values():
            for pod in cluster.link.pods.of_tenant(tenant):
                cluster.recount_pod(pod)

    def close(self) -> None:
        """Stop watching the clusters."""
        for cluster in self.by_name.values():
            cluster.close()
