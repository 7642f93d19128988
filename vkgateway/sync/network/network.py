"""All that is done about one tenant's network: Services, names and network policies, and what wakes each."""

from __future__ import annotations

from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.engine import Item
from vkgateway.sync.namespaces import Namespaces
from vkgateway.sync.network.names import Names, NameServers
from vkgateway.sync.network.ownrange import OwnRange
from vkgateway.sync.network.policies import NetworkPolicies
from vkgateway.sync.network.services import Services
from vkgateway.sync.shared import Shared
from vkgateway.translate.context import TenantContext


class Network:
    """One tenant's, in all its compute clusters; nothing is watched for it until something of it is below (`need`).

    The compute namespaces are here, too: policies are what fences them in.
    """

    def __init__(self, tenant: TenantContext, shared: Shared, name_servers: NameServers | None) -> None:
        client, events, holdings = shared.client, shared.events, shared.holdings
        self._tenant = tenant
        self._links = shared.links
        self._holdings = holdings
        self._agenda = shared.agenda
        self.policies = NetworkPolicies(
            tenant,
            client,
            events=events,
            namespaces=holdings.namespace_labels,
            resolvers=self._resolvers,
            name_servers=lambda: self.names.listening,
            wake=self._agenda.policies,
        )
        self.namespaces = Namespaces(tenant, above=holdings.namespace, policies=self.policies.fence)
        own_range = OwnRange(tenant)
        self.services = Services(
            tenant,
            client,
            events=events,
            namespaces=self.namespaces,
            own_range=own_range,
            namespace_uid=holdings.namespace_uid,
            wake=self.service_changed,
            wake_addresses=self._agenda.addresses,
            on_complete=self.look_at_everything,
        )
        self.names = Names(tenant, client, name_servers, self.services, own_range=own_range, wake=self.look_at_names)

    @property
    def tenant(self) -> TenantContext:
        """The tenant with its policy; may be set anew."""
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: TenantContext) -> None:
        self._tenant = tenant
        self.namespaces.tenant = self.policies.tenant = self.services.tenant = self.names.tenant = tenant

    def need(self) -> None:
        """Something of the tenant runs below, or may soon."""
        self.services.need()
        self.policies.need()

    def look_at_everything(self) -> None:
        """Look at every Service, policy and name again, above and below."""
        self.services.wake_all(self._links.values())
        self.policies.wake_all(self._links.values())
        self.look_at_names()

    def look_at_names(self) -> None:
        """Look at who answers for names, where anybody is to."""
        if self.names.active:
            self._agenda.names()

    def service_changed(self, key: Key) -> None:
        """A Service came, changed or went, above or below."""
        self._agenda.service(key)
        self.look_at_names()

    def names_changed(self) -> None:
        """What of the platform's own stands below for the tenant came, changed or went."""
        self.look_at_names()
        self.policies.resolvers_changed(self._links.values())

    async def seen_from(self, link: ComputeLink, namespace: str, *, with_services: bool) -> TenantContext:
        """What a pod must know of the tenant; `with_services`, once its kubelet can tell it those of the namespace."""
        if with_services:
            await self.services.settle(namespace, self._links)
        return await self.names.seen_from(link)

    async def handle(self, item: Item) -> None:
        """Look at a Service, at what addresses of pods lead to, at a namespace's policies, or at who answers for names.

        No Service is looked at before all are known.
        """
        sort, _, namespace, name = item
        if sort == "service":
            if self.services.complete:
                await self.services.reconcile((namespace, name), self._links)
        elif sort == "addresses":
            self.services.slices.look_at_addresses(self._links.values())
        elif sort == "policies":
            await self._reconcile_policies(namespace)
        else:
            await self.names.refresh(self._links)

    async def _reconcile_policies(self, namespace: str) -> None:
        """Have a namespace's policies stand below as they should, as long as it is to stay."""
        above = self._holdings.namespace(namespace)
        if above is not None and above.metadata.deletion_timestamp is None:
            await self.policies.reconcile(namespace, above.metadata.uid, self._links)

    def _resolvers(self, link: ComputeLink) -> list[tuple[str, int]]:
        return self.names.resolvers(link)
