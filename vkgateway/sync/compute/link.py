"""Connection to a compute cluster: one watch per kind for all tenants, and whether their state can be trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.sync.compute.disruption_budgets import ComputeBudgets
from vkgateway.sync.compute.listener import Listener
from vkgateway.sync.compute.namespaces import ComputeEvents, ComputeNamespaces
from vkgateway.sync.compute.network import ComputePolicies, ComputeServices, ComputeSlices
from vkgateway.sync.compute.nodes import ComputeNodes
from vkgateway.sync.compute.pods import ComputeCopies, ComputePods
from vkgateway.sync.compute.reachability import Reachability
from vkgateway.sync.compute.storage import ComputeClaims, ComputeClasses
from vkgateway.sync.compute.topologies import ComputeTopologies, TopologyView
from vkgateway.sync.compute.unmanaged_pods import FIELD_SELECTOR, LABEL_SELECTOR, UnmanagedPodView, decode_unmanaged_pod
from vkgateway.sync.views.ownership import COPY_RESOURCES
from vkgateway.sync.views.pods import ComputePodView


class ComputeLink:
    """Client of one compute cluster, the watched state of vkgateway's objects there, and whether to trust that state.

    An object belongs to a tenant only if its label, annotations and namespace name agree. The gateway never touches any
    other object, even one that carries the tenant label.
    """

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.reachability = Reachability(name, client, on_change=self._reachability_changed)
        self.kept_features: set[str] = set()
        """Feature gates that were seen enabled in the cluster. `feature_guard` adds to them; a change of reachability
        clears them.
        """
        self.service_ranges: Sequence[str] = ()
        """Service CIDRs of the cluster as of the last read."""
        self.on_nodes_changed: list[Callable[[], None]] = []
        self.on_reachable_changed: list[Callable[[], None]] = []
        self.on_pod_changed: list[Callable[[ComputePodView | None, ComputePodView | None], None]] = []
        self.on_unmanaged_pod_changed: list[Callable[[UnmanagedPodView | None, UnmanagedPodView | None], None]] = []
        self.on_topology_changed: list[Callable[[str, TopologyView | None], None]] = []
        listeners = self._listeners = dict[str, Listener]()
        self.pods = ComputePods(
            client,
            listeners,
            told=self._pod_changed,
            on_reachable=self.reachability.set_watching,
            on_complete=self._list_completed,
        )
        self.unmanaged_pods: Reflector[UnmanagedPodView] = Reflector(
            client,
            resources.PODS,
            decode=decode_unmanaged_pod,
            on_change=self._unmanaged_pod_changed,
            label_selector=LABEL_SELECTOR,
            field_selector=FIELD_SELECTOR,
            on_complete=self._list_completed,
        )
        self.nodes = ComputeNodes(client, on_news=self._nodes_changed)
        self.topologies = ComputeTopologies(
            name, client, on_change=self._topology_changed, on_known=self._nodes_changed
        )
        self.namespaces = ComputeNamespaces(client, listeners, on_complete=self._list_completed)
        self.copies = {
            kind: ComputeCopies(kind, client, listeners, on_complete=self._list_completed) for kind in COPY_RESOURCES
        }
        self.services = ComputeServices(client, listeners, on_complete=self._services_completed)
        self.slices = ComputeSlices(client, listeners, on_complete=self._services_completed)
        self.claims = ComputeClaims(client, listeners, on_complete=self._storage_known)
        self.classes = ComputeClasses(client, on_news=self._storage_known)
        self.policies = ComputePolicies(client, listeners, on_complete=self._services_completed)
        self.budgets = ComputeBudgets(client, listeners, on_complete=self._services_completed)
        self.events = ComputeEvents(name, client, listeners, self.namespaces)

    @property
    def is_reachable(self) -> bool:
        """Whether the cluster can be watched and answers."""
        return self.reachability.is_reachable

    @property
    def is_trusted(self) -> bool:
        """Whether the state of pods and namespaces may be acted upon: the cluster is reachable and the lists are
        complete.
        """
        return (
            self.is_reachable
            and self.pods.is_complete
            and self.namespaces.is_complete
            and self.copies["configmaps"].is_complete
            and self.copies["secrets"].is_complete
        )

    @property
    def services_trusted(self) -> bool:
        """Whether the state of Services may be acted upon; pods do not wait for it."""
        return self.is_trusted and self.services.is_complete and self.slices.is_complete

    @property
    def claims_trusted(self) -> bool:
        """Whether the state of claims and storage classes may be acted upon; only pods that use claims wait for it."""
        return self.is_trusted and self.claims.is_complete and self.classes.is_complete

    def add_listener(self, tenant: str, listener: Listener) -> None:
        """Notify a tenant's reconcilers of changes from now on."""
        self._listeners[tenant] = listener

    def remove_listener(self, tenant: str) -> None:
        """Stop notifying a tenant's reconcilers."""
        self._listeners.pop(tenant, None)

    def network_ranges(self) -> list[str]:
        """Return the known CIDRs of the cluster's Services and pods."""
        pods = (cidr for node in self.nodes.store.values() for cidr in node.spec.pod_cidrs)
        return list(dict.fromkeys((*self.service_ranges, *pods)))

    async def run(self) -> None:
        """Run all watches until cancelled or until a watch fails because of a defect."""
        try:
            async with asyncio.TaskGroup() as group:
                for kind, reflector in self._all_reflectors():
                    group.create_task(reflector.run(), name=f"compute/{self.name}/watch-{kind}")
                group.create_task(self.topologies.run(), name=f"compute/{self.name}/topologies")
                group.create_task(self.reachability.run(), name=f"compute/{self.name}/heartbeat")
        finally:
            # Some callers may hold this link for a while longer.
            self.reachability.mark_closed()

    def _all_reflectors(self) -> Iterator[tuple[str, Reflector[Any]]]:
        yield "pods", self.pods
        yield "strangers", self.unmanaged_pods
        yield "nodes", self.nodes
        yield "namespaces", self.namespaces
        yield from self.copies.items()
        yield "services", self.services
        yield "endpointslices", self.slices
        yield "claims", self.claims
        yield "classes", self.classes
        yield "networkpolicies", self.policies
        yield "poddisruptionbudgets", self.budgets
        yield "events", self.events

    def _reachability_changed(self) -> None:
        self.kept_features.clear()
        self._notify_all()

    def _list_completed(self) -> None:
        if self.is_trusted:
            self._notify_all()

    def _services_completed(self) -> None:
        if self.services_trusted:
            for listener in list(self._listeners.values()):
                listener.compute_services_known()

    def _storage_known(self) -> None:
        if self.claims_trusted:
            for listener in list(self._listeners.values()):
                listener.compute_storage_known()

    def _notify_all(self) -> None:
        for listener in list(self._listeners.values()):
            listener.compute_reachable()
        for callback in self.on_reachable_changed:
            callback()

    def _pod_changed(self, old: ComputePodView | None, new: ComputePodView | None) -> None:
        for callback in self.on_pod_changed:
            callback(old, new)

    def _unmanaged_pod_changed(self, old: UnmanagedPodView | None, new: UnmanagedPodView | None) -> None:
        for callback in self.on_unmanaged_pod_changed:
            callback(old, new)

    def _nodes_changed(self) -> None:
        if self.nodes.is_complete:
            self.reachability.mark_answered()
        for callback in self.on_nodes_changed:
            callback()

    def _topology_changed(self, node: str, view: TopologyView | None) -> None:
        for callback in self.on_topology_changed:
            callback(node, view)
