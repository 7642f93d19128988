"""Services, slices and network policies of ours in a compute cluster; their tenants hear of changes."""

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
    """The Services of all tenants, and those that the platform has for them in the gateway's own namespace."""

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
    """The slices of ours, of these Services."""

    def __init__(self, client: Client, listeners: Listeners, *, on_complete: Callable[[], None]) -> None:
        super().__init__(
            client,
            resources.ENDPOINT_SLICES,
            decode=decode_slice,
            on_change=self._handle_change,
            # Slices that Kubernetes makes for our Services carry their labels, and change with every pod of theirs.
            label_selector=f"{TENANT_LABEL},{MANAGED_BY_LABEL}={MANAGED_BY_GATEWAY}",
            on_complete=on_complete,
        )
        self._listeners = listeners
        self._services: dict[Key, Key] = {}
        """Where the Service of each is."""
        self._by_service: defaultdict[Key, set[Key]] = defaultdict(set)

    def of_service(self, service: Key) -> list[SliceView]:
        """Those of a Service, by namespace and name in the compute cluster."""
        return [self.store[key] for key in sorted(self._by_service.get(service, ()))]

    def _handle_change(self, old: SliceView | None, new: SliceView | None) -> None:
        view = new or old
        assert view is not None
        self._index_slice(view.metadata.key, (view.metadata.namespace, view.service_name) if new is not None else None)
        _notify_service(self._listeners, view.metadata, view.service_name)

    def _index_slice(self, key: Key, service: Key | None) -> None:
        """Note of which Service a slice is; None: it is gone."""
        known = self._services.pop(key, None)
        if known is not None:
            self._by_service[known].discard(key)
            if not self._by_service[known]:
                del self._by_service[known]
        if service is not None:
            self._services[key] = service
            self._by_service[service].add(key)


class ComputePolicies(Reflector[NetworkPolicyView]):
    """The network policies in the compute namespaces of all tenants."""

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
        """Those in a compute namespace."""
        return [self.store[key] for key in sorted(self._by_namespace.get(namespace, ()))]

    def tenant_namespaces(self, tenant: str) -> set[str]:
        """The tenant namespaces in whose compute namespaces there are network policies of ours."""
        views = self.store.values()
        return {source_key(view.metadata)[0] for view in views if owned_by(tenant, view.metadata)}

    def _handle_change(self, old: NetworkPolicyView | None, new: NetworkPolicyView | None) -> None:
        view = new or old
        assert view is not None
        inside = self._by_namespace[view.metadata.namespace]
        if new is not None:
            inside.add(view.metadata.key)
        else:
            inside.discard(view.metadata.key)
        if not inside:
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
