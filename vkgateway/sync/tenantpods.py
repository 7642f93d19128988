"""All that is done about one tenant's pods: their admission, the ways down and up, and what wakes each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vkgateway.model.objects import Object
from vkgateway.model.requests import Milli
from vkgateway.sync.admission.desk import ArbiterService, Desk
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.copies import Copies, Reference
from vkgateway.sync.metrics import pod_meter
from vkgateway.sync.network.network import Network
from vkgateway.sync.pods.case import decode
from vkgateway.sync.pods.downward import Downward
from vkgateway.sync.pods.hands import Hands
from vkgateway.sync.pods.pace import FailurePace, Owner
from vkgateway.sync.pods.reconciler import PodReconciler
from vkgateway.sync.pods.replaced import Replaced
from vkgateway.sync.pods.upward import FailureDelayedError, Upward
from vkgateway.sync.pods.views import ComputePodView, TenantPodView
from vkgateway.sync.shared import Shared
from vkgateway.sync.storage.storage import Storage
from vkgateway.sync.tokens import Tokens
from vkgateway.translate.conditions import last_news
from vkgateway.translate.context import TenantContext
from vkgateway.translate.policy import refusals


class TenantPods:
    """One tenant's. The desk speaks to the arbiter, the reconciler has the rest in hands."""

    def __init__(
        self,
        tenant: TenantContext,
        shared: Shared,
        *,
        network: Network,
        copies: Copies,
        storage: Storage,
        arbiter: ArbiterService,
    ) -> None:
        self._tenant = tenant
        self._shared = shared
        self._begun = False
        """Whether all has been known once, here and in a compute cluster: until then there is nothing to look at."""
        meter = pod_meter(tenant.name)
        self.tokens = Tokens(tenant.name, shared.client, clock=shared.clock)
        upward = Upward(
            shared.client,
            events=shared.events,
            meter=meter,
            clock=shared.clock,
            pace=FailurePace(self._failed_before),
            later=self._reconcile_later,
        )
        downward = Downward(
            tenant,
            shared,
            upward=upward,
            namespaces=network.namespaces,
            copies=copies,
            tokens=self.tokens,
            seen_from=network.seen_from,
            grace_max=lambda pool: arbiter.bounds(pool).grace_max,
            meter=meter,
        )
        self.desk = Desk(
            tenant.name,
            shared,
            service=arbiter,
            sent=downward.created,
            whole=upward.whole,
            places=storage.users.places,
            refuse=self._refuse,
        )
        self.hands = Hands(
            upward=upward,
            downward=downward,
            replaced=Replaced(upward, later=shared.agenda.pod, clock=shared.clock),
            notices=self.desk.notices,
            tell_held=self.desk.tell_held,
        )
        self.reconciler = PodReconciler(
            tenant,
            shared,
            hands=self.hands,
            copies=copies,
            tokens=self.tokens,
            claims=storage.users,
            arbiter=self.desk,
        )

    @property
    def tenant(self) -> TenantContext:
        """The tenant with its policy; may be set anew."""
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: TenantContext) -> None:
        self._tenant = self.hands.downward.tenant = self.reconciler.tenant = tenant
        self.reconciler.forget_plans()

    def set_limit(self, pool: str, limit: Milli) -> None:
        """Set what may be used of a pool, and reconcile the pods that were held there."""
        for key in self.reconciler.set_limit(pool, limit):
            self._shared.agenda.pod(key)

    def look_at_everything(self) -> None:
        """Look at every pod again, above and below; everything that the tenant has is known."""
        self.desk.listed()
        links = self._shared.links.values()
        self._begun = self._begun or not links or any(link.trusted for link in links)
        if not self._begun:
            return
        above = self._shared.holdings.pods.items
        # Of thousands few have changed while nobody looked, and somebody waits for these.
        for key in [key for link in links for key in link.pods.keys(self._tenant.name) if key not in above]:
            self._shared.agenda.pod(key)
        for key in sorted(above, key=lambda key: not self._differs(key, above[key])):
            self._shared.agenda.pod(key)

    def _differs(self, key: Key, above: TenantPodView) -> bool:
        """Whether a pod plainly is not below what it is above; in what else they differ only a look tells."""
        below = self._below(key)
        if below is None:
            return bool(above.spec.node_name) and not above.terminal
        ending = above.metadata.deletion_timestamp or below.metadata.deletion_timestamp
        return ending is not None or below.ended != above.terminal

    def above_changed(self, old: TenantPodView | None, new: TenantPodView | None) -> None:
        """A pod of the tenant came, changed or went."""
        view = new or old
        assert view is not None
        if new is None:
            self.hands.forget(view.metadata.uid)
        self.desk.pod_changed(old, new)
        key = view.metadata.key
        is_below = self._below(key) is not None
        if is_below and old is not None and new is not None and self._is_echo(old, new):
            return
        if old is not None or view.spec.node_name or is_below:
            self._look(key)

    def _is_echo(self, old: TenantPodView, new: TenantPodView) -> bool:
        """Whether all that is new of a pod that goes on is the status that we wrote: nothing follows from that."""
        if (
            new.terminal
            or not self.hands.upward.is_own(old.metadata, new.metadata)
            or new.fingerprint != old.fingerprint
            or new.spec.node_name != old.spec.node_name
            or new.metadata.deletion_timestamp != old.metadata.deletion_timestamp
        ):
            return False
        if old.raw is None:
            new.raw = None
        return True

    def _below(self, key: Key) -> ComputePodView | None:
        """What a compute cluster holds under the name of a pod, if one does."""
        found = (link.pods.find(self._tenant.name, key) for link in self._shared.links.values())
        return next((view for view in found if view is not None), None)

    def below_changed(self, key: Key) -> None:
        """What stands for a pod below came, changed or went."""
        self.desk.below_changed(key)
        view = self._shared.holdings.pods.items.get(key)
        if view is None or not self.hands.upward.was_removed(view.metadata.uid) or self._below(key) is not None:
            self._look(key)

    def _look(self, key: Key) -> None:
        """Have a pod looked at, once all is known; then each of them is."""
        if self._begun:
            self._shared.agenda.pod(key)

    def source_changed(self, reference: Reference) -> None:
        """An object that pods may refer to came, changed or went: look at those that wait for it."""
        for key in self.reconciler.waiting.pop(reference, ()):
            self._shared.agenda.pod(key)

    async def _refuse(self, view: TenantPodView, pod: Object) -> bool:
        """Fail a pod that waits for admission and breaks the policy; whether it does."""
        found = refusals(pod, tenant=self._tenant, pool=None)
        if found:
            with contextlib.suppress(FailureDelayedError):
                await self.hands.upward.refuse_pod(view, found)
        return bool(found)

    def _reconcile_later(self, view: TenantPodView, seconds: float) -> None:
        """Have a pod reconciled again: by the gates until it has a node."""
        add = self._shared.agenda.pod if view.spec.node_name else self._shared.agenda.gate
        add(view.metadata.key, seconds)

    def _failed_before(self) -> Iterator[tuple[Owner, float]]:
        """Tell the failures that the tenant's pods still show: of each that never ran, the time of its last news."""
        for view in self._shared.holdings.pods.items.values():
            if view.phase == "Failed" and not view.ran:
                yield view.owner, last_news(decode(view.status), since=view.metadata.creation_timestamp)
