"""All that is done about one tenant's network: Services, names and network policies, and what wakes each."""

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
    """One tenant's, in all its compute clusters; nothing is watched for it until something of it is below
    (`start_watching`).

    The compute namespaces are here, too: policies are what fences them in.
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
        """The tenant with its policy; may be set anew."""
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: TenantContext) -> None:
        self._tenant = tenant
        self.namespaces.tenant = self.policies.tenant = self.services.tenant = self.name_service.tenant = tenant

    def start_watching(self) -> None:
        """Something of the tenant runs below, or may soon."""
        self.services.start_watching()
        self.policies.start_watching()

    def enqueue_all(self) -> None:
        """Look at every Service, policy and name again, above and below."""
        self.services.enqueue_all(self._links.values())
        self.policies.enqueue_all(self._links.values())
        self.enqueue_names()

    def enqueue_names(self) -> None:
        """Look at who answers for names, where anybody is to."""
        if self.name_service.is_active:
            self._work_queue.enqueue_names()

    def service_changed(self, key: Key) -> None:
        """A Service came, changed or went, above or below."""
        self._work_queue.enqueue_service(key)
        self.enqueue_names()

    def names_changed(self) -> None:
        """What of the platform's own stands below for the tenant came, changed or went."""
        self.enqueue_names()
        self.policies.resolvers_changed(self._links.values())

    async def tenant_context_in(self, link: ComputeLink, namespace: str, *, with_services: bool) -> TenantContext:
        """What a pod must know of the tenant; `with_services`, once its kubelet can tell it those of the namespace."""
        if with_services:
            await self.services.settle_namespace(namespace, self._links)
        return await self.name_service.tenant_context_in(link)

    async def handle_request(self, item: ReconcileRequest) -> None:
        """Look at a Service, at what addresses of pods lead to, at a namespace's policies, or at who answers for names.

        No Service is looked at before all are known.
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
        """Have a namespace's policies stand below as they should, as long as it is to stay."""
        above = self._cache.find_namespace(namespace)
        if above is not None and above.metadata.deletion_timestamp is None:
            await self.policies.reconcile(namespace, above.metadata.uid, self._links)

    def _resolver_endpoints(self, link: ComputeLink) -> list[tuple[str, int]]:
        return self.name_service.resolver_endpoints(link)
