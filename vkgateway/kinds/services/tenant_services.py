"""Services and EndpointSlices of one tenant, watched from its first compute namespace on."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import partial
from typing import Final

from vkgateway.api.objects import Meta
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.services.pod_addresses import PodAddresses
from vkgateway.kinds.services.slices import delete_slice, write_slice
from vkgateway.kinds.services.translation import (
    API_SERVICE,
    DNS_SERVICE,
    MANAGED_BY_GATEWAY,
    MANAGED_BY_KUBERNETES,
    MANAGED_BY_LABEL,
    METRICS_SERVICE,
    ServiceView,
    SliceView,
    decode_service,
    decode_slice,
    forward_slice,
    is_platform_service,
    slice_content,
)
from vkgateway.kinds.sources import COMPUTE_PODS, TENANT_ACTIVE, TENANT_SERVICES, TENANT_SERVICES_LISTED
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import resources
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.requests import BATCH_SECONDS, RequestKind
from vkgateway.runtime.views.ownership import Key, owned_by


class TenantServices:
    """Services of one tenant. Before the first compute namespace, no pod of the tenant runs that could use them."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._needed = asyncio.Event()
        self.is_listed = asyncio.Event()
        """Set after the Services were listed, or after a pod has waited for the maximum time."""
        self.unreconciled: set[Key] = set()
        """Services that were created or changed since their last reconciliation."""
        self.services: Reflector[ServiceView] = Reflector(
            scope.client,
            resources.SERVICES,
            decode=decode_service,
            on_change=self._service_changed,
            on_complete=self._list_completed,
        )
        self.slices = TenantSlices(scope)

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        registry.watches(TENANT_ACTIVE, self.start_watching).runs("services", self.run)
        self.slices.set_up(registry)

    @property
    def is_complete(self) -> bool:
        """Whether all of the tenant's Services and slices are known."""
        return self.services.is_complete and self.slices.tenant_slices.is_complete

    def start_watching(self) -> None:
        """Start watching."""
        self._needed.set()

    async def run(self) -> None:
        """Run the watches once they are needed, until cancelled."""
        await self._needed.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.services.run(), name=f"tenant/{self._scope.name}/watch-services")
            group.create_task(self.slices.tenant_slices.run(), name=f"tenant/{self._scope.name}/watch-slices")

    def own_services(self) -> dict[Key, ServiceView]:
        """Return the tenant's Services except those of its API server and of the platform's name server."""
        return {key: view for key, view in self.services.store.items() if not is_platform_service(view)}

    def forwarded_service(self, key: Key) -> ServiceView | None:
        """Return a Service that needs a compute Service; headless and ExternalName Services exist only in DNS."""
        view = self.services.store.get(key)
        if (
            view is None
            or is_platform_service(view)
            or not view.cluster_ip
            or view.metadata.deletion_timestamp is not None
        ):
            return None
        return view

    def _list_completed(self) -> None:
        self.is_listed.set()
        self._scope.watches.notify(TENANT_SERVICES_LISTED)

    def _service_changed(self, old: ServiceView | None, new: ServiceView | None) -> None:
        view = new or old
        assert view is not None
        key = view.metadata.key
        if new is not None and new.cluster_ip and not is_platform_service(new):
            self.unreconciled.add(key)
        else:
            self.unreconciled.discard(key)
        if key != API_SERVICE:
            self._scope.watches.notify(TENANT_SERVICES, key)


ADDRESSES: Final = RequestKind[None]("addresses", BATCH_SECONDS)


class TenantSlices:
    """EndpointSlices that one tenant writes.

    Changed addresses are gathered: there may be thousands of slices, and pods change constantly.
    """

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._by_service: defaultdict[Key, set[Key]] = defaultdict(set)
        """Keys of slices by Service."""
        self._pod_addresses: dict[str, PodAddresses] = {}
        """Pod addresses by compute cluster."""
        self._changed_addresses: set[str] = set()
        """Addresses that were added or removed since slices were last checked."""
        self.tenant_slices: Reflector[SliceView] = Reflector(
            scope.client,
            resources.ENDPOINT_SLICES,
            decode=decode_slice,
            on_change=self._tenant_slice_changed,
            on_complete=partial(scope.watches.notify, TENANT_SERVICES_LISTED),
            label_selector=f"{MANAGED_BY_LABEL}!={MANAGED_BY_KUBERNETES}",
        )

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        registry.for_(ADDRESSES, self.reconcile_addresses).watches(COMPUTE_PODS, self.pod_changed)

    def has_slices(self, service: Key) -> bool:
        """Return whether a Service has slices of the tenant."""
        return service in self._by_service

    def pod_changed(self, key: Key) -> None:
        """Handle a compute pod that was added, changed or deleted; addresses in slices may be affected."""
        if not self._by_service:
            self._pod_addresses.clear()
            return
        for addresses in self._pod_addresses.values():
            addresses.pod_changed(key)
        self._scope.work_queue.enqueue(ADDRESSES, None)

    def pods_listed(self) -> None:
        """Handle a completed pod list: any pod may have changed."""
        for addresses in self._pod_addresses.values():
            addresses.mark_all_changed()
        if self._by_service:
            self._scope.work_queue.enqueue(ADDRESSES, None)

    def addresses_in(self, link: ComputeLink) -> Collection[str]:
        """Return the current addresses of the tenant's pods in a compute cluster; the collection is updated by later
        calls.
        """
        known = self._pod_addresses.get(link.name)
        if known is None or known.link is not link:
            if known is not None:
                self._changed_addresses.update(known.current_addresses)
            known = self._pod_addresses[link.name] = PodAddresses(self._scope.name, link)
        self._changed_addresses |= known.update_addresses()
        return known.current_addresses

    async def reconcile_addresses(self, _key: None) -> None:
        """Enqueue the Services of slices with an added or removed address."""
        for link in list(self._scope.links.values()):
            self.addresses_in(link)
        changed, self._changed_addresses = self._changed_addresses, set()
        for service in self._by_service if changed else ():
            if any(_names_address(view, changed) for view in self._slices_of(service)):
                self._scope.watches.notify(TENANT_SERVICES, service)

    async def reconcile(self, link: ComputeLink, service: Meta, key: Key, *, own: Collection[str]) -> None:
        """Write the compute slices of a Service with the addresses in `own`; `service` is the compute Service of `key`.

        Raises:
            ConflictError: an object of another owner has the name of a slice.
            ApiError: the compute cluster cannot be asked now, or refuses a slice.
        """
        obsolete = {
            view.metadata.name: view
            for view in link.slices.of_service((service.namespace, key[1]))
            if self._is_own(view.metadata)
        }
        for tenant_slice in self._slices_of(key):
            content, _ = slice_content(tenant_slice, pod_addresses=own)
            if content["endpoints"]:
                wanted = forward_slice(tenant_slice, content, service=service, tenant=self._scope.tenant)
                await write_slice(link, wanted, obsolete.pop(tenant_slice.metadata.name, None), owned=self._is_own)
        for view in obsolete.values():
            await delete_slice(link, view.metadata)

    def refused_addresses(self, service: Key, *, own: Collection[str]) -> Iterator[str]:
        """Yield a message for each slice with addresses that are not the tenant's pods'."""
        for view in self._slices_of(service):
            if refused := slice_content(view, pod_addresses=own)[1]:
                named = ", ".join(refused[:5])
                yield f"EndpointSlice {view.metadata.name}: {named}: not the address of a running pod of this tenant"

    def _slices_of(self, service: Key) -> list[SliceView]:
        found = (self.tenant_slices.store.get(key) for key in sorted(self._by_service.get(service, ())))
        return [view for view in found if view is not None]

    def _is_own(self, metadata: Meta) -> bool:
        return owned_by(self._scope.name, metadata)

    def _tenant_slice_changed(self, old: SliceView | None, new: SliceView | None) -> None:
        for view in (old, new):
            if view is None or not view.service_name:
                continue
            service = view.metadata.namespace, view.service_name
            if service in (API_SERVICE, METRICS_SERVICE) or (
                service == DNS_SERVICE and view.managed_by == MANAGED_BY_GATEWAY
            ):
                continue  # every tenant has them, and their endpoints are no pods
            if view is new:
                self._by_service[service].add(view.metadata.key)
            else:
                self._by_service[service].discard(view.metadata.key)
                if not self._by_service[service]:
                    del self._by_service[service]
            self._scope.watches.notify(TENANT_SERVICES, service)


def _names_address(view: SliceView, addresses: Collection[str]) -> bool:
    return any(address in addresses for one in view.endpoints or () for address in one.get("addresses") or ())
