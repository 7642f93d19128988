"""All that is done about one tenant's storage: its parts, and what wakes each."""

from __future__ import annotations

from collections.abc import Callable

from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.namespaces import Namespaces
from vkgateway.sync.shared import Shared
from vkgateway.sync.storage.above import Above
from vkgateway.sync.storage.classes import Classes
from vkgateway.sync.storage.users import Users
from vkgateway.sync.storage.volumes import Volumes
from vkgateway.translate.context import TenantContext
from vkgateway.translate.storage.classes import allows_any


class Storage:
    """One tenant's claims, volumes and storage classes.

    A tenant that may have no volumes and has nothing below costs nothing; one that may, a watch of claims, and with the
    first claim another of volumes. `places_changed()` hears that volumes may be elsewhere than was known.
    """

    def __init__(
        self,
        tenant: TenantContext,
        shared: Shared,
        *,
        namespaces: Namespaces,
        places_changed: Callable[[], None],
    ) -> None:
        client, links, bindings = shared.client, shared.links, shared.bindings
        self._tenant = tenant
        self._links = links
        self._agenda = shared.agenda
        self._places_changed = places_changed
        self._placed: set[str] = set()
        """Volumes of which it is known what nodes can reach them."""
        self.above = Above(
            tenant.name,
            client,
            wake=self._agenda.volume,
            on_claim=self._claim_changed,
            on_complete=self.look_at_everything,
        )
        self.users = Users(tenant.name, self.above, links=links, later=self._agenda.pod, clock=shared.clock)
        self.classes = Classes(tenant, client, bindings=bindings)
        self.volumes = Volumes(
            tenant,
            client,
            self.above,
            links=links,
            bindings=bindings,
            events=shared.events,
            namespaces=namespaces,
            namespace_uid=shared.holdings.namespace_uid,
            later=self._agenda.volume,
            clock=shared.clock,
        )

    @property
    def tenant(self) -> TenantContext:
        """The tenant with its policy."""
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: TenantContext) -> None:
        had_any, self._tenant = allows_any(self._tenant), tenant
        self.classes.tenant = self.volumes.tenant = tenant
        self.look_at_classes(always=had_any)

    async def run(self) -> None:
        """Watch, once that is needed, until cancelled."""
        if allows_any(self._tenant):
            self.above.need()
        await self.above.run()

    def need(self) -> None:
        """Something of the tenant runs below, or may soon."""
        self.above.need()

    def look_at_everything(self) -> None:
        """Look at every volume and class again, above and below."""
        if allows_any(self._tenant):
            self.above.need()
            self.look_at_classes()
        if any(link.claims.uids(self._tenant.name) for link in self._links.values()):
            self.above.need_volumes()
        if not self.above.complete:
            return
        for uid in self.volumes.known():
            self._agenda.volume(uid)
        self.users.all_changed()
        self._places_changed()

    def look_at_classes(self, *, always: bool = False) -> None:
        """Look at the classes, if the tenant may have any, or `always`: what it had before is taken away."""
        if always or allows_any(self._tenant):
            self._agenda.classes()

    def below_changed(self, uid: str) -> None:
        """A compute claim came, changed or went."""
        self.above.need_volumes()
        self.volumes.shown_below(uid)
        if not self.users.is_placed(uid):
            self._placed.discard(uid)
        elif uid not in self._placed:
            self._placed.add(uid)
            self._places_changed()
        self._agenda.volume(uid)
        self.users.volume_changed(uid)

    def _claim_changed(self, key: Key) -> None:
        self.users.changed(key)
