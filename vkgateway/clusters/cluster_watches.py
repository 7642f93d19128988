"""Watches of a compute cluster: those of observers of the whole cluster, and those of its tenants."""

from __future__ import annotations

from typing import Final

from vkgateway.api.names import TENANT_LABEL
from vkgateway.api.objects import Meta
from vkgateway.clusters.topology_views import TopologyView
from vkgateway.clusters.unmanaged_pods import UnmanagedPodView
from vkgateway.kinds.sources import Source, Watches
from vkgateway.runtime.views.ownership import owned_by
from vkgateway.runtime.views.pods import ComputePodView

PODS: Final = Source[ComputePodView | None, ComputePodView | None]("pods")
"""A compute pod of any tenant was created, changed or deleted."""
UNMANAGED_PODS: Final = Source[UnmanagedPodView | None, UnmanagedPodView | None]("unmanaged pods")
NODES: Final = Source[()]("nodes")
"""Nodes changed, or all nodes and their topologies are known."""
TOPOLOGIES: Final = Source[str, TopologyView | None]("topologies")
"""The NUMA zones of a node changed; None means that the node no longer has any."""
REACHABILITY: Final = Source[()]("reachability")
"""The cluster became reachable or unreachable."""
TRUST: Final = Source[()]("trust")
"""The state of the cluster may now be acted upon, or may not any longer: see `ComputeLink.is_trusted`."""
LISTED: Final = Source[()]("listed")
"""The list of pods, namespaces, ConfigMaps or Secrets is complete."""
NETWORK_LISTED: Final = Source[()]("network objects listed")
"""The list of Services, slices, network policies or PodDisruptionBudgets is complete."""
STORAGE_CHANGED: Final = Source[()]("storage changed")
"""A storage class changed, or the list of claims or storage classes is complete."""


class ClusterWatches(Watches):
    """Watches of one compute cluster, and those of the tenants that use it.

    Objects count as a tenant's only where label, annotations and the namespace's name agree.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tenants: dict[str, Watches] = {}

    def find_owner(self, metadata: Meta) -> Watches | None:
        """Return the watches of the tenant that a namespaced compute object belongs to, if that tenant is connected."""
        tenant = metadata.labels.get(TENANT_LABEL, "")
        watches = self.tenants.get(tenant)
        return watches if watches is not None and owned_by(tenant, metadata) else None

    def notify_tenants(self, source: Source[()]) -> None:
        """Notify every tenant."""
        for watches in list(self.tenants.values()):
            watches.notify(source)
