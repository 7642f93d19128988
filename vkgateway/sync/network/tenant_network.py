"""Network of one tenant: reconcilers of Services, DNS names and NetworkPolicies, and the changes that trigger each."""

from __future__ import annotations

from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.namespaces import NamespaceReconciler
from vkgateway.sync.network.name_service import NameServers, NameService
from vkgateway.sync.network.network_policies import NetworkPolicyReconciler
from vkgateway.sync.network.service_cidr import TenantServiceCidr
from vkgateway.sync.network.services import ServiceReconciler
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.workers import ReconcileRequest
from vkgateway.translate.context import TenantContext


class TenantNetwork:
    """Services, DNS names, NetworkPolicies and compute namespaces of one tenant.

    Nothing is watched before `start_watching`. Compute namespaces belong here because NetworkPolicies isolate them.
    """

    def __init__(self, tenant: TenantContext, shared: TenantScope, name_servers: NameServers | None) -> None:
        client, events, holdings = shared.client, shared.events, shared.cache
        self._tenant = tenant
        self._links = shared.links
        self._cache = holdings
        self._work_queue = shared.work_queue
        self.policies = NetworkPolicyReconciler(
            tenant,
            client,
            events=events,
            namespaces=holdings.namespace_labels,
            resolvers=self._resolver_endpoints,
            name_servers=lambda: self.name_service.listening_range,
            wake=self._work_queue.enqueue_policies,
        )
        self.namespaces = NamespaceReconciler(
            tenant, above=holdings.find_namespace, policies=self.policies.wait_for_fence
        )
        own_range = TenantServiceCidr(tenant)
        self.services = ServiceReconciler(
            tenant,
            client,
            events=events,
            namespaces=self.namespaces,
            own_range=own_range,
            namespace_uid=holdings.namespace_uid,
            wake=self.service_changed,
            wake_addresses=self._work_queue.enqueue_addresses,
            on_complete=self.enqueue_all,
        )
        self.name_service = NameService(
            tenant, client, name_servers, self.services, own_range=own_range, wake=self.enqueue_names
        )

    @property
    def tenant(self) -> TenantContext:
        """Tenant with its policy; may be replaced."""
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: TenantContext) -> None:
        self._tenant = tenant
        self.namespaces.tenant = self.policies.tenant = self.services.tenant = self.name_service.tenant = tenant

    def start_watching(self) -> None:
        """Start watching, because the tenant has compute pods or may soon have some."""
        self.services.start_watching()
        self.policies.start_watching()

    def enqueue_all(self) -> None:
        """Enqueue all Services, NetworkPolicies and DNS names."""
        self.services.enqueue_all(self._links.values())
        self.policies.enqueue_all(self._links.values())
        self.enqueue_names()

    def enqueue_names(self) -> None:
        """Enqueue the DNS names, if the tenant has any platform Service."""
        if self.name_service.is_active:
            self._work_queue.enqueue_names()

    def service_changed(self, key: Key) -> None:
        """Handle a Service that was added, changed or deleted in the tenant or compute cluster."""
        self._work_queue.enqueue_service(key)
        self.enqueue_names()

    def names_changed(self) -> None:
        """Handle a changed platform Service of the tenant."""
        self.enqueue_names()
        self.policies.resolvers_changed(self._links.values())

    async def tenant_context_in(self, link: ComputeLink, namespace: str, *, with_services: bool) -> TenantContext:
        """Return the tenant context for a pod; `with_services` first forwards the Services of its namespace."""
        if with_services:
            await self.services.settle_namespace(namespace, self._links)
        return await self.name_service.tenant_context_in(link)

    async def handle_request(self, item: ReconcileRequest) -> None:
        """Handle a reconcile request for a Service, pod addresses, the policies of a namespace, or DNS names.

        Services are reconciled only after all of them are known.
        """
        sort, _, namespace, name = item
        if sort == "service":
            if self.services.is_complete:
                await self.services.reconcile((namespace, name), self._links)
        elif sort == "addresses":
            self.services.slices.enqueue_affected(self._links.values())
        elif sort == "policies":
            await self._reconcile_policies(namespace)
        else:
            await self.name_service.reconcile(self._links)

    async def _reconcile_policies(self, namespace: str) -> None:
        """Reconcile a namespace's policies, unless it is being deleted."""
        tenant_view = self._cache.find_namespace(namespace)
        if tenant_view is not None and tenant_view.metadata.deletion_timestamp is None:
            await self.policies.reconcile(namespace, tenant_view.metadata.uid, self._links)

    def _resolver_endpoints(self, link: ComputeLink) -> list[tuple[str, int]]:
        return self.name_service.resolver_endpoints(link)
