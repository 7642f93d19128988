"""Known compute clusters: their objects, connections and last written statuses."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from vkgateway.api.scheduling import effective_pools
from vkgateway.api.types import NATIVE, ComputeCluster, ComputeClusterSpec, ComputeClusterStatus, Pool
from vkgateway.clusters.connected_cluster import ConnectedCluster
from vkgateway.clusters.guarantee_checks import GuaranteedPod
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.pools import guaranteed_pods, pool_facts
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import COMPUTE_CLUSTERS
from vkgateway.runtime.signals import Signal
from vkgateway.scheduler.core.snapshot import Pool as PoolFacts
from vkgateway.scheduler.core.snapshot import PoolKey


class ComputeClusters:
    """Read access to compute clusters; the ComputeController maintains `connected` and the statuses."""

    def __init__(self, management: Client, gateway: GatewayIdentity) -> None:
        self.changed = Signal[[ComputeCluster | None, ComputeCluster | None]]()
        """A ComputeCluster was added, changed or deleted: its old and new state."""
        self.reflector: Reflector[ComputeCluster] = Reflector(
            management,
            COMPUTE_CLUSTERS,
            decode=msgspec.json.Decoder(ComputeCluster).decode,
            on_change=self.changed.emit,
        )
        self.gateway = gateway
        """This gateway, as its owner records in compute clusters name it."""
        self.connected: dict[str, ConnectedCluster] = {}
        self._written_statuses: dict[str, tuple[str, ComputeClusterStatus]] = {}
        """Last written status by name, with the UID of its object: another object may have the name now."""
        self._effective_pools: dict[str, tuple[ComputeClusterSpec, ComputeClusterStatus, tuple[Pool, ...]]] = {}
        """Pools with the modes in effect by name, and what they were derived from."""

    @property
    def links(self) -> dict[str, ComputeLink]:
        """Links by compute cluster name; a link's data is reliable only while the link is trusted."""
        return {name: connected.link for name, connected in self.connected.items()}

    def find_cluster(self, name: str) -> ComputeCluster | None:
        """Return a ComputeCluster from the watch cache."""
        return self.reflector.store.get(("", name))

    def cluster_names(self) -> list[str] | None:
        """Return the names of all compute clusters, connected or not; None while unknown."""
        return [name for _, name in self.reflector.store] if self.reflector.is_complete else None

    def pool_specs(self) -> dict[str, tuple[Pool, ...]]:
        """Return the pools of each compute cluster, with the scheduling modes in effect.

        May be called from other threads.
        """
        return {compute.metadata.name: self.effective_pools(compute) for compute in list(self.reflector.store.values())}

    def divided_pools(self) -> dict[PoolKey, frozenset[str]]:
        """Return the labels that select the nodes of a part of each divided pool; called from other threads."""
        return {
            (cluster, pool.name): frozenset((*pool.node_selector, pool.virtual_nodes_by))
            for cluster, pools in self.pool_specs().items()
            for pool in pools
            if pool.virtual_nodes_by
        }

    def effective_pools(self, compute: ComputeCluster) -> tuple[Pool, ...]:
        """Return the pools in the spec of a compute cluster, with the scheduling modes in effect.

        Called for each gang that the arbiter reads, so equal inputs give the same tuple.
        """
        name, status = compute.metadata.name, self.current_status(compute)
        known = self._effective_pools.get(name)
        if known is None or known[0] is not compute.spec or known[1] is not status:
            known = compute.spec, status, effective_pools(compute.spec.pools, status.pools)
            self._effective_pools[name] = known
        return known[2]

    def clusters_with_status(self) -> list[ComputeCluster]:
        """Return all compute clusters with the last written status, even before the watch reports it."""
        return [
            ComputeCluster(
                metadata=compute.metadata,
                spec=compute.spec,
                status=self._written_status(compute) or ComputeClusterStatus(),
            )
            for compute in self.reflector.store.values()
        ]

    def pool_facts(self, key: PoolKey) -> PoolFacts | None:
        """Return a pool's nodes and the resources that unmanaged pods use there; None while unknown.

        A pool in another scheduling mode than native has no cells: its guarantees are sums.
        """
        compute, connected = self.find_cluster(key[0]), self.connected.get(key[0])
        pools = self.effective_pools(compute) if compute is not None else ()
        pool = next((pool for pool in pools if pool.name == key[1]), None)
        link = connected.link if connected is not None else None
        if pool is None or link is None or not (link.nodes.is_complete and link.unmanaged_pods.is_complete):
            return None
        nodes, unmanaged_pods = link.nodes.pool_nodes(pool.node_selector), link.unmanaged_pods.store.values()
        facts = pool_facts(key, nodes, unmanaged_pods, cell_resource=pool.cell_resource)
        return facts if pool.scheduling.mode == NATIVE else replace(facts, governed=())

    def guaranteed_pods(self, key: PoolKey) -> list[GuaranteedPod]:
        """Return the known pods that run inside guarantees in a pool."""
        connected, facts = self.connected.get(key[0]), self.pool_facts(key)
        if connected is None or facts is None or not facts.governed:
            return []
        link = connected.link
        own = (pod for pod in link.pods.store.values() if not link.owners.is_foreign(pod.tenant_name))
        return guaranteed_pods(own, key, facts.unit_resource)

    def known_networks(self) -> list[str]:
        """Return the known Service and pod CIDRs of all compute clusters."""
        return [cidr for connected in self.connected.values() for cidr in connected.link.network_ranges()]

    def current_status(self, compute: ComputeCluster) -> ComputeClusterStatus:
        """Return the last written status, or the status from the watch cache if none was written."""
        return self._written_status(compute) or compute.status

    def record_status(self, compute: ComputeCluster, status: ComputeClusterStatus) -> None:
        """Store a status as the last written one."""
        self._written_statuses[compute.metadata.name] = compute.metadata.uid, status

    def forget_status(self, name: str) -> None:
        """Drop the last written status of a deleted object."""
        self._written_statuses.pop(name, None)
        self._effective_pools.pop(name, None)

    def _written_status(self, compute: ComputeCluster) -> ComputeClusterStatus | None:
        uid, status = self._written_statuses.get(compute.metadata.name, ("", None))
        return status if uid == compute.metadata.uid else None
