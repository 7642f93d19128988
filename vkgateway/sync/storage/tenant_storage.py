"""Storage of one tenant: the reconcilers, and the changes that trigger each."""

from __future__ import annotations

from collections.abc import Callable

from vkgateway.sync.namespaces import NamespaceReconciler
from vkgateway.sync.storage.claim_users import ClaimUsers
from vkgateway.sync.storage.storage_classes import StorageClassReconciler
from vkgateway.sync.storage.tenant_volumes import TenantVolumes
from vkgateway.sync.storage.volumes import VolumeReconciler
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.ownership import Key
from vkgateway.translate.context import TenantContext
from vkgateway.translate.storage.storage_classes import allows_volumes


class TenantStorage:
    """Claims, volumes and storage classes of one tenant.

    A tenant without permitted volumes causes no watch. A tenant that may have volumes causes a watch of claims, and
    after the first claim a watch of volumes. `places_changed()` is called when the known location of a volume changes.
    """

    def __init__(
        self,
        tenant: TenantContext,
        shared: TenantScope,
        *,
        namespaces: NamespaceReconciler,
        places_changed: Callable[[], None],
    ) -> None:
        client, links, bindings = shared.client, shared.links, shared.bindings
        self._tenant = tenant
        self._links = links
        self._work_queue = shared.work_queue
        self._locations_changed = places_changed
        self._located_volumes: set[str] = set()
        """Volumes whose reachable nodes are known."""
        self.tenant_volumes = TenantVolumes(
            tenant.name,
            client,
            wake=self._work_queue.enqueue_volume,
            on_claim=self._claim_changed,
            on_complete=self.enqueue_all,
        )
        self.claim_users = ClaimUsers(
            tenant.name, self.tenant_volumes, links=links, later=self._work_queue.enqueue_pod, clock=shared.clock
        )
        self.classes = StorageClassReconciler(tenant, client, bindings=bindings)
        self.volumes = VolumeReconciler(
            tenant,
            client,
            self.tenant_volumes,
            links=links,
            bindings=bindings,
            events=shared.events,
            namespaces=namespaces,
            namespace_uid=shared.cache.namespace_uid,
            later=self._work_queue.enqueue_volume,
            clock=shared.clock,
        )

    @property
    def tenant(self) -> TenantContext:
        """Tenant with its policy."""
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: TenantContext) -> None:
        had_any, self._tenant = allows_volumes(self._tenant), tenant
        self.classes.tenant = self.volumes.tenant = tenant
        self.enqueue_classes(always=had_any)

    async def run(self) -> None:
        """Run the watches once they are needed, until cancelled."""
        if allows_volumes(self._tenant):
            self.tenant_volumes.start_watching()
        await self.tenant_volumes.run()

    def start_watching(self) -> None:
        """Start watching claims, because the tenant has compute pods or may soon have some."""
        self.tenant_volumes.start_watching()

    def enqueue_all(self) -> None:
        """Enqueue every volume and storage class."""
        if allows_volumes(self._tenant):
            self.tenant_volumes.start_watching()
            self.enqueue_classes()
        if any(link.claims.claim_uids(self._tenant.name) for link in self._links.values()):
            self.tenant_volumes.start_watching_volumes()
        if not self.tenant_volumes.is_complete:
            return
        for uid in self.volumes.known_volumes():
            self._work_queue.enqueue_volume(uid)
        self.claim_users.all_changed()
        self._locations_changed()

    def enqueue_classes(self, *, always: bool = False) -> None:
        """Enqueue the storage classes if the tenant may have any. With `always`, former classes are deleted too."""
        if always or allows_volumes(self._tenant):
            self._work_queue.enqueue_classes()

    def compute_claim_changed(self, uid: str) -> None:
        """Handle a compute claim that was added, changed or deleted."""
        self.tenant_volumes.start_watching_volumes()
        self.volumes.compute_claim_changed(uid)
        if not self.claim_users.is_location_known(uid):
            self._located_volumes.discard(uid)
        elif uid not in self._located_volumes:
            self._located_volumes.add(uid)
            self._locations_changed()
        self._work_queue.enqueue_volume(uid)
        self.claim_users.volume_changed(uid)

    def _claim_changed(self, key: Key) -> None:
        self.claim_users.claim_changed(key)
