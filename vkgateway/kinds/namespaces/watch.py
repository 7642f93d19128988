"""Watches of the tenants' compute namespaces and of the kubelet events in them."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from vkgateway.api.names import NAME_ANNOTATION, TENANT_LABEL, compute_namespace
from vkgateway.api.objects import NamespaceView, decode_namespace
from vkgateway.clusters.cluster_watches import LISTED, ClusterWatches
from vkgateway.kinds.events.views import SELECTOR, EventView, decode_event
from vkgateway.kinds.sources import COMPUTE_EVENTS, COMPUTE_NAMESPACES
from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.views.ownership import Key, namespace_owner


class ComputeNamespaces(Reflector[NamespaceView]):
    """Compute namespaces of all tenants."""

    def __init__(self, client: Client, watches: ClusterWatches) -> None:
        super().__init__(
            client,
            resources.NAMESPACES,
            decode=decode_namespace,
            on_change=self._handle_change,
            label_selector=TENANT_LABEL,
            on_complete=partial(watches.notify, LISTED),
        )
        self._watches = watches

    def find_namespace(self, tenant: str, namespace: str) -> NamespaceView | None:
        """Return the compute namespace of a tenant's namespace."""
        found = self.store.get(("", compute_namespace(tenant, namespace)))
        return found if found is not None and namespace_owner(found) == tenant else None

    def of_tenant(self, tenant: str) -> list[NamespaceView]:
        """Return the compute namespaces of a tenant."""
        return [view for view in self.store.values() if namespace_owner(view) == tenant]

    def _handle_change(self, old: NamespaceView | None, new: NamespaceView | None) -> None:
        view = new or old
        if view is None:
            return
        if (owner := self._watches.tenants.get(namespace_owner(view))) is not None:
            owner.notify(COMPUTE_NAMESPACES, view.metadata.annotations.get(NAME_ANNOTATION, ""))


class ComputeEvents(Reflector[EventView]):
    """Events that kubelets emit about pods in the compute cluster named `cluster`.

    Events carry no tenant label, so the watch covers all pods. An event belongs to the tenant of its namespace.
    """

    def __init__(self, cluster: str, client: Client, watches: ClusterWatches, namespaces: ComputeNamespaces) -> None:
        super().__init__(
            client, resources.EVENTS, decode=decode_event, on_change=self._handle_change, field_selector=SELECTOR
        )
        self._cluster = cluster
        self._watches = watches
        self._namespaces = namespaces
        self._by_namespace: dict[str, set[Key]] = defaultdict(set)

    def of_tenant(self, tenant: str) -> list[Key]:
        """Return the keys of the events in a tenant's compute namespaces."""
        names = (view.metadata.name for view in self._namespaces.of_tenant(tenant))
        return [key for name in names for key in self._by_namespace.get(name, ())]

    def _handle_change(self, old: EventView | None, new: EventView | None) -> None:
        """Notify the tenant of a new event; without a tenant namespace only index the event, as the namespace may
        follow.
        """
        view = new or old
        assert view is not None
        namespace, key = view.metadata.namespace, view.metadata.key
        if new is None:
            self._by_namespace[namespace].discard(key)
            if not self._by_namespace[namespace]:
                del self._by_namespace[namespace]
            return
        self._by_namespace[namespace].add(key)
        owner_namespace = self._namespaces.store.get(("", namespace))
        owner = self._watches.tenants.get(namespace_owner(owner_namespace)) if owner_namespace is not None else None
        if owner is not None:
            owner.notify(COMPUTE_EVENTS, self._cluster, key)
