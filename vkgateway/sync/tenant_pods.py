"""All that is done about one tenant's pods: their admission, the ways down and up, and what wakes each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vkgateway.model.objects import Object
from vkgateway.model.requests import MilliResources
from vkgateway.sync.admission.controller import AdmissionController, ArbiterService
from vkgateway.sync.copies import CopyReconciler
from vkgateway.sync.metrics import pod_meter
from vkgateway.sync.network.tenant_network import TenantNetwork
from vkgateway.sync.pods.executor import Executor
from vkgateway.sync.pods.failure_backoff import FailureBackoff
from vkgateway.sync.pods.forwarder import PodForwarder
from vkgateway.sync.pods.mirror import FailureDelayedError, PodMirror
from vkgateway.sync.pods.pod_context import decode
from vkgateway.sync.pods.reconciler import PodReconciler
from vkgateway.sync.pods.replaced_pods import ReplacedPods
from vkgateway.sync.storage.tenant_storage import TenantStorage
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.tokens import ServiceAccountTokens
from vkgateway.sync.views.ownership import Key, Reference
from vkgateway.sync.views.pods import ComputePodView, Owner, TenantPodView
from vkgateway.translate.conditions import last_condition_change
from vkgateway.translate.context import TenantContext
from vkgateway.translate.policy import find_refusals


class TenantPods:
    """One tenant's. The desk speaks to the arbiter, the reconciler has the rest in hands."""

    def __init__(
        self,
        tenant: TenantContext,
        shared: TenantScope,
        *,
        network: TenantNetwork,
        copies: CopyReconciler,
        storage: TenantStorage,
        arbiter: ArbiterService,
    ) -> None:
        self._tenant = tenant
        self._scope = shared
        self._is_ready = False
        """Whether all has been known once, here and in a compute cluster: until then there is nothing to look at."""
        meter = pod_meter(tenant.name)
        self.tokens = ServiceAccountTokens(tenant.name, shared.client, clock=shared.clock)
        upward = PodMirror(
            shared.client,
            events=shared.events,
            meter=meter,
            clock=shared.clock,
            pace=FailureBackoff(self._earlier_failures),
            later=self._reconcile_later,
        )
        downward = PodForwarder(
            tenant,
            shared,
            upward=upward,
            namespaces=network.namespaces,
            copies=copies,
            tokens=self.tokens,
            seen_from=network.tenant_context_in,
            grace_max=lambda pool: arbiter.eviction_terms(pool).grace_max,
            meter=meter,
        )
        self.admission = AdmissionController(
            tenant.name,
            shared,
            service=arbiter,
            sent=downward.created_until,
            whole=upward.read_pod,
            places=storage.claim_users.volume_terms,
            refuse=self._refuse_pod,
        )
        self.executor = Executor(
            upward=upward,
            downward=downward,
            replaced=ReplacedPods(upward, later=shared.work_queue.enqueue_pod, clock=shared.clock),
            notices=self.admission.notices,
            tell_held=self.admission.report_pending,
        )
        self.reconciler = PodReconciler(
            tenant,
            shared,
            hands=self.executor,
            copies=copies,
            tokens=self.tokens,
            claims=storage.claim_users,
            arbiter=self.admission,
        )

    @property
    def tenant(self) -> TenantContext:
        """The tenant with its policy; may be set anew."""
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: TenantContext) -> None:
        self._tenant = self.executor.forwarder.tenant = self.reconciler.tenant = tenant
        self.reconciler.forget_plans()

    def set_limit(self, pool: str, limit: MilliResources) -> None:
        """Set what may be used of a pool, and reconcile the pods that were held there."""
        for key in self.reconciler.set_limit(pool, limit):
            self._scope.work_queue.enqueue_pod(key)

    def enqueue_all(self) -> None:
        """Look at every pod again, above and below; everything that the tenant has is known."""
        self.admission.pods_listed()
        links = self._scope.links.values()
        self._is_ready = self._is_ready or not links or any(link.is_trusted for link in links)
        if not self._is_ready:
            return
        above = self._scope.cache.pods.store
        # Of thousands few have changed while nobody looked, and somebody waits for these.
        for key in [key for link in links for key in link.pods.tenant_pod_keys(self._tenant.name) if key not in above]:
            self._scope.work_queue.enqueue_pod(key)
        for key in sorted(above, key=lambda key: not self._may_differ(key, above[key])):
            self._scope.work_queue.enqueue_pod(key)

    def _may_differ(self, key: Key, above: TenantPodView) -> bool:
        """Whether a pod plainly is not below what it is above; in what else they differ only a look tells."""
        below = self._find_compute_pod(key)
        if below is None:
            return bool(above.spec.node_name) and not above.is_terminal
        ending = above.metadata.deletion_timestamp or below.metadata.deletion_timestamp
        return ending is not None or below.has_ended != above.is_terminal

    def tenant_pod_changed(self, old: TenantPodView | None, new: TenantPodView | None) -> None:
        """A pod of the tenant came, changed or went."""
        view = new or old
        assert view is not None
        if new is None:
            self.executor.forget_pod(view.metadata.uid)
        self.admission.pod_changed(old, new)
        key = view.metadata.key
        is_below = self._find_compute_pod(key) is not None
        if is_below and old is not None and new is not None and self._is_echo(old, new):
            return
        if old is not None or view.spec.node_name or is_below:
            self._enqueue_pod(key)

    def _is_echo(self, old: TenantPodView, new: TenantPodView) -> bool:
        """Whether all that is new of a pod that goes on is the status that we wrote: nothing follows from that."""
        if (
            new.is_terminal
            or not self.executor.mirror.is_own_write(old.metadata, new.metadata)
            or new.fingerprint != old.fingerprint
            or new.spec.node_name != old.spec.node_name
            or new.metadata.deletion_timestamp != old.metadata.deletion_timestamp
        ):
            return False
        if old.raw is None:
            new.raw = None
        return True

    def _find_compute_pod(self, key: Key) -> ComputePodView | None:
        """What a compute cluster holds under the name of a pod, if one does."""
        found = (link.pods.find_pod(self._tenant.name, key) for link in self._scope.links.values())
        return next((view for view in found if view is not None), None)

    def compute_pod_changed(self, key: Key) -> None:
        """What stands for a pod below came, changed or went."""
        self.admission.compute_pod_changed(key)
        view = self._scope.cache.pods.store.get(key)
        if (
            view is None
            or not self.executor.mirror.was_removed(view.metadata.uid)
            or self._find_compute_pod(key) is not None
        ):
            self._enqueue_pod(key)

    def _enqueue_pod(self, key: Key) -> None:
        """Have a pod looked at, once all is known; then each of them is."""
        if self._is_ready:
            self._scope.work_queue.enqueue_pod(key)

    def source_changed(self, reference: Reference) -> None:
        """An object that pods may refer to came, changed or went: look at those that wait for it."""
        for key in self.reconciler.waiting_pods.pop(reference, ()):
            self._scope.work_queue.enqueue_pod(key)

    async def _refuse_pod(self, view: TenantPodView, pod: Object) -> bool:
        """Fail a pod that waits for admission and breaks the policy; whether it does."""
        found = find_refusals(pod, tenant=self._tenant, pool=None)
        if found:
            with contextlib.suppress(FailureDelayedError):
                await self.executor.mirror.refuse_pod(view, found)
        return bool(found)

    def _reconcile_later(self, view: TenantPodView, seconds: float) -> None:
        """Have a pod reconciled again: by the gates until it has a node."""
        add = self._scope.work_queue.enqueue_pod if view.spec.node_name else self._scope.work_queue.enqueue_gate
        add(view.metadata.key, seconds)

    def _earlier_failures(self) -> Iterator[tuple[Owner, float]]:
        """Tell the failures that the tenant's pods still show: of each that never ran, the time of its last news."""
        for view in self._scope.cache.pods.store.values():
            if view.phase == "Failed" and not view.has_run:
                yield view.owner, last_condition_change(decode(view.status), since=view.metadata.creation_timestamp)
