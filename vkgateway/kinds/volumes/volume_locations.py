"""Compute clusters and nodes of one tenant's volumes."""

from __future__ import annotations

from vkgateway.api.errors import UnavailableError
from vkgateway.api.objects import Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.volumes.compute_volumes import ComputeVolumes
from vkgateway.kinds.volumes.translation.views import ClaimView, VolumeView
from vkgateway.kinds.volumes.translation.volumes import volume_node_affinity


class VolumeLocations:
    """Selection of the compute cluster of a new volume, and lookup of the nodes that can reach an existing one."""

    def __init__(self, scope: TenantScope, compute_volumes: ComputeVolumes) -> None:
        self._scope = scope
        self._compute_volumes = compute_volumes

    def select_cluster(self, claim: ClaimView) -> ComputeLink | None:
        """Return the compute cluster for a claim: that of the selected node, or else the only one."""
        links = {binding.link.name: binding.link for binding in self._scope.bindings.values()}
        if claim.selected_node:
            binding = self._scope.bindings.get(claim.selected_node)
            return self._scope.links.get(binding.link.name) if binding is not None else None
        return self._scope.links.get(next(iter(links))) if len(links) == 1 else None

    async def node_affinity(self, link: ComputeLink, compute_claim: ClaimView) -> Object | None:
        """Return the node affinity of a volume in the tenant cluster. Raises UnavailableError, ApiError."""
        bindings = self._scope.bindings.values()
        clusters = len(self.cluster_names())
        nodes_behind = [(b.pool, link.nodes.nodes_behind(b.pool)) for b in bindings if b.link is link]
        if compute_claim.is_bound and not link.nodes.is_complete:
            raise UnavailableError("the nodes of the compute cluster are not known at the moment")
        nodes = await self._compute_volumes.reachable_nodes(link, compute_claim) if compute_claim.is_bound else None
        return volume_node_affinity(link.name, clusters=clusters, nodes_behind=nodes_behind, compute_affinity=nodes)

    def cluster_names(self) -> set[str]:
        """Return the compute clusters in which the tenant has pools."""
        return {binding.link.name for binding in self._scope.bindings.values()}

    def is_missing(self, volume: VolumeView) -> bool:
        """Return whether the compute claim that was not found is missing; False while the volume's cluster is not
        attached.
        """
        cluster, links = volume.compute_cluster, self._scope.links
        is_attached = cluster in links if cluster else bool(links)
        return is_attached and all(link.claims_trusted for link in links.values())

    @property
    def are_clusters_trusted(self) -> bool:
        """Whether all clusters in which the tenant has pools or compute claims are trusted; others hold none of its
        volumes.
        """
        cluster_names = self.cluster_names()
        links = (
            link
            for link in self._scope.links.values()
            if link.name in cluster_names or link.claims.claim_uids(self._scope.name)
        )
        return all(link.claims_trusted for link in links)
