"""Watches of the tenants' Services, EndpointSlices and NetworkPolicies in a compute cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.names import NAME_ANNOTATION, NAMESPACE_ANNOTATION, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.model.objects import Meta
from vkgateway.sync.compute.listener import Listeners, listener_of
from vkgateway.sync.views.ownership import Key, owned_by, source_key
from vkgateway.translate.network_policies import NetworkPolicyView, decode_policy
from vkgateway.translate.services import (
    MANAGED_BY_GATEWAY,
    MANAGED_BY_LABEL,
    ServiceView,
    SliceView,
    decode_service,
    decode_slice,
)


class ComputeServices(Reflector[ServiceView]):
    """Compute Services of all tenants, and the platform Services for them in the gateway's own namespace."""

    def __init__(self, client: Client, listeners: Listeners, *, on_complete: Callable[[], None]) -> None:
        super().__init__(
            client,
            resources.SERVICES,
            decode=decode_service,
            on_change=self._handle_change,
            label_selector=TENANT_LABEL,
            on_complete=on_complete,
        )
        self._listeners = listeners

    def _handle_change(self, old: ServiceView | None, new: ServiceView | None) -> None:
        view = new or old
        assert view is not None
        _notify_service(self._listeners, view.metadata, view.metadata.annotations.get(NAME_ANNOTATION, ""))


class ComputeSlices(Reflector[SliceView]):
    """EndpointSlices of these Services that the gateway manages."""

    def __init__(self, client: Client, listeners: Listeners, *, on_complete: Callable[[], None]) -> None:
        super().__init__(
            client,
            resources.ENDPOINT_SLICES,
            decode=decode_slice,
            on_change=self._handle_change,
            # EndpointSlices that Kubernetes manages carry the Service's labels, and change with each pod of the
            # Service.
            label_selector=f"{TENANT_LABEL},{MANAGED_BY_LABEL}={MANAGED_BY_GATEWAY}",
            on_complete=on_complete,
        )
        self._listeners = listeners
        self._services: dict[Key, Key] = {}
        """Service of each EndpointSlice."""
        self._by_service: defaultdict[Key, set[Key]] = defaultdict(set)

    def of_service(self, service: Key) -> list[SliceView]:
        """Return the EndpointSlices of a compute Service."""
        return [self.store[key] for key in sorted(self._by_service.get(service, ()))]

    def _handle_change(self, old: SliceView | None, new: SliceView | None) -> None:
        view = new or old
        assert view is not None
        self._index_slice(view.metadata.key, (view.metadata.namespace, view.service_name) if new is not None else None)
        _notify_service(self._listeners, view.metadata, view.service_name)

    def _index_slice(self, key: Key, service: Key | None) -> None:
        """Index an EndpointSlice by its Service; with None, remove it from the index."""
        known = self._services.pop(key, None)
        if known is not None:
            self._by_service[known].discard(key)
            if not self._by_service[known]:
                del self._by_service[known]
        if service is not None:
            self._services[key] = service
            self._by_service[service].add(key)


class ComputePolicies(Reflector[NetworkPolicyView]):
    """NetworkPolicies in the compute namespaces of all tenants."""

    def __init__(self, client: Client, listeners: Listeners, *, on_complete: Callable[[], None]) -> None:
        super().__init__(
            client,
            resources.NETWORK_POLICIES,
            decode=decode_policy,
            on_change=self._handle_change,
            label_selector=TENANT_LABEL,
            on_complete=on_complete,
        )
        self._listeners = listeners
        self._by_namespace: defaultdict[str, set[Key]] = defaultdict(set)

    def in_namespace(self, namespace: str) -> list[NetworkPolicyView]:
        """Return the NetworkPolicies in a compute namespace."""
        return [self.store[key] for key in sorted(self._by_namespace.get(namespace, ()))]

    def tenant_namespaces(self, tenant: str) -> set[str]:
        """Return the tenant namespaces whose compute namespaces contain NetworkPolicies of the tenant."""
        views = self.store.values()
        return {source_key(view.metadata)[0] for view in views if owned_by(tenant, view.metadata)}

    def _handle_change(self, old: NetworkPolicyView | None, new: NetworkPolicyView | None) -> None:
        view = new or old
        assert view is not None
        keys = self._by_namespace[view.metadata.namespace]
        if new is not None:
            keys.add(view.metadata.key)
        else:
            keys.discard(view.metadata.key)
        if not keys:
            del self._by_namespace[view.metadata.namespace]
        listener = listener_of(self._listeners, view.metadata)
        if listener is not None:
            listener.compute_policy_changed(view.metadata.annotations[NAMESPACE_ANNOTATION])


def _notify_service(listeners: Listeners, metadata: Meta, name: str) -> None:
    if metadata.namespace == SYSTEM_NAMESPACE:
        owner = listeners.get(metadata.labels.get(TENANT_LABEL, ""))
        if owner is not None:
            owner.compute_names_changed()
    elif (listener := listener_of(listeners, metadata)) is not None:
        listener.compute_service_changed((metadata.annotations[NAMESPACE_ANNOTATION], name))
