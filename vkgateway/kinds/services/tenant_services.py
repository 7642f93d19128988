"""Services and EndpointSlices of one tenant, watched from its first compute namespace on."""

from __future__ import annotations

import asyncio

from vkgateway.kinds.registry import Registry
from vkgateway.kinds.services.tenant_slices import TenantSlices
from vkgateway.kinds.services.translation import API_SERVICE, ServiceView, decode_service, is_platform_service
from vkgateway.kinds.sources import TENANT_ACTIVE, TENANT_SERVICES, TENANT_SERVICES_LISTED
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import resources
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.views.ownership import Key


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
