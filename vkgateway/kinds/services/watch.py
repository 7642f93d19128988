"""Watches of the tenants' Services, EndpointSlices and NetworkPolicies in a compute cluster."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from vkgateway.api.names import NAME_ANNOTATION, NAMESPACE_ANNOTATION, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.api.objects import Meta
from vkgateway.clusters.cluster_watches import NETWORK_LISTED, ClusterWatches
from vkgateway.kinds.policies.translation import NetworkPolicyView, decode_policy
from vkgateway.kinds.services.translation import (
    MANAGED_BY_GATEWAY,
    MANAGED_BY_LABEL,
    ServiceView,
    SliceView,
    decode_service,
    decode_slice,
)
from vkgateway.kinds.sources import COMPUTE_PLATFORM_SERVICES, COMPUTE_POLICIES, COMPUTE_SERVICES
from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.views.ownership import Key, owned_by, source_key


class ComputeServices(Reflector[ServiceView]):
    """Compute Services of all tenants, and the platform Services for them in the gateway's own namespace."""

    def __init__(self, client: Client, watches: ClusterWatches) -> None:
        super().__init__(
            client,
            resources.SERVICES,
            decode=decode_service,
            on_change=self._handle_change,
            label_selector=TENANT_LABEL,
            on_complete=partial(watches.notify, NETWORK_LISTED),
        )
        self._watches = watches

    def _handle_change(self, old: ServiceView | None, new: ServiceView | None) -> None:
        view = new or old
        assert view is not None
        _notify_service(self._watches, view.metadata, view.metadata.annotations.get(NAME_ANNOTATION, ""))


class ComputeSlices(Reflector[SliceView]):
    """EndpointSlices of these Services that the gateway manages."""

    def __init__(self, client: Client, watches: ClusterWatches) -> None:
        super().__init__(
            client,
            resources.ENDPOINT_SLICES,
            decode=decode_slice,
            on_change=self._handle_change,
            # EndpointSlices that Kubernetes manages carry the Service's labels, and change with each pod of the
            # Service.
            label_selector=f"{TENANT_LABEL},{MANAGED_BY_LABEL}={MANAGED_BY_GATEWAY}",
            on_complete=partial(watches.notify, NETWORK_LISTED),
        )
        self._watches = watches
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
        _notify_service(self._watches, view.metadata, view.service_name)

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

    def __init__(self, client: Client, watches: ClusterWatches) -> None:
        super().__init__(
            client,
            resources.NETWORK_POLICIES,
            decode=decode_policy,
            on_change=self._handle_change,
            label_selector=TENANT_LABEL,
            on_complete=partial(watches.notify, NETWORK_LISTED),
        )
        self._watches = watches
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
        if (owner := self._watches.find_owner(view.metadata)) is not None:
            owner.notify(COMPUTE_POLICIES, view.metadata.annotations[NAMESPACE_ANNOTATION])


def _notify_service(watches: ClusterWatches, metadata: Meta, name: str) -> None:
    if metadata.namespace == SYSTEM_NAMESPACE:
        tenant = watches.tenants.get(metadata.labels.get(TENANT_LABEL, ""))
        if tenant is not None:
            tenant.notify(COMPUTE_PLATFORM_SERVICES)
    elif (owner := watches.find_owner(metadata)) is not None:
        owner.notify(COMPUTE_SERVICES, (metadata.annotations[NAMESPACE_ANNOTATION], name))
