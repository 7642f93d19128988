"""All that is done about one tenant's storage: its parts, and what wakes each."""

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
    """One tenant's claims, volumes and storage classes.

    A tenant that may have no volumes and has nothing below costs nothing; one that may, a watch of claims, and with the
    first claim another of volumes. `places_changed()` hears that volumes may be elsewhere than was known.
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
        """Volumes of which it is known what nodes can reach them."""
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
        """The tenant with its policy."""
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: TenantContext) -> None:
        had_any, self._tenant = allows_volumes(self._tenant), tenant
        self.classes.tenant = self.volumes.tenant = tenant
        self.enqueue_classes(always=had_any)

    async def run(self) -> None:
        """Watch, once that is needed, until cancelled."""
        if allows_volumes(self._tenant):
            self.tenant_volumes.start_watching()
        await self.tenant_volumes.run()

    def start_watching(self) -> None:
        """Something of the tenant runs below, or may soon."""
        self.tenant_volumes.start_watching()

    def enqueue_all(self) -> None:
        """Look at every volume and class again, above and below."""
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
        """Look at the classes, if the tenant may have any, or `always`: what it had before is taken away."""
        if always or allows_volumes(self._tenant):
            self._work_queue.enqueue_classes()

    def compute_claim_changed(self, uid: str) -> None:
        """A compute claim came, changed or went."""
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
