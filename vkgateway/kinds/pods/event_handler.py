"""Handler of changes of tenant pods and compute pods, which requests reconciles."""

from __future__ import annotations

from vkgateway.kinds.pods.reconciler import Executor
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import COMPUTE_PODS, COMPUTE_TOKENS, RESYNC, TENANT_PODS
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.runtime.requests import POD
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import ComputePodView, TenantPodView
from vkgateway.scheduler.service.controller import AdmissionController


class PodEventHandler:
    """Source of reconcile requests for one tenant's pods.

    It requests none before the pods of the tenant and of one of its compute clusters are known.
    """

    def __init__(self, scope: TenantScope, executor: Executor, admission: AdmissionController) -> None:
        self._scope = scope
        self._executor = executor
        self._admission = admission
        self._is_ready = False

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.watches(RESYNC, self.enqueue_all)
            .watches(TENANT_PODS, self.tenant_pod_changed)
            .watches(COMPUTE_PODS, self.compute_pod_changed)
            .watches(COMPUTE_TOKENS, self._tokens_deleted)
        )

    def _tokens_deleted(self, key: Key) -> None:
        """Reconcile a pod whose tokens were deleted, because it could not restart without them."""
        if key in self._scope.cache.pods.store:
            self._enqueue_changed(key)

    def enqueue_all(self) -> None:
        """Request a reconcile of every tenant pod and every compute pod. All pods of the tenant must be known."""
        links = self._scope.links.values()
        self._is_ready = self._is_ready or not links or any(link.is_trusted for link in links)
        if not self._is_ready:
            return
        tenant_pods = self._scope.cache.pods.store
        # Pods that differ come first: of thousands, few have changed while the gateway was down.
        for key in [
            key for link in links for key in link.pods.tenant_pod_keys(self._scope.name) if key not in tenant_pods
        ]:
            self._scope.work_queue.enqueue(POD, key)
        for key in sorted(tenant_pods, key=lambda key: not self._may_differ(key, tenant_pods[key])):
            self._scope.work_queue.enqueue(POD, key)

    def _may_differ(self, key: Key, tenant_pod: TenantPodView) -> bool:
        """Return whether the views of a tenant pod and its compute pod suggest a difference."""
        compute_pod = self._find_compute_pod(key)
        if compute_pod is None:
            return bool(tenant_pod.spec.node_name) and not tenant_pod.is_terminal
        ending = tenant_pod.metadata.deletion_timestamp or compute_pod.metadata.deletion_timestamp
        return ending is not None or compute_pod.has_ended != tenant_pod.is_terminal

    def tenant_pod_changed(self, old: TenantPodView | None, new: TenantPodView | None) -> None:
        """Handle a change of a tenant pod."""
        view = new or old
        assert view is not None
        key = view.metadata.key
        if self._admission.is_governed(key, view):
            self._admission.drop_pod(view) if new is None else self._admission.put_pod(new)
        if new is None:
            self._executor.forget_pod(view.metadata.uid)
        is_below = self._find_compute_pod(key) is not None
        if is_below and old is not None and new is not None and self._is_echo(old, new):
            return
        if old is not None or view.spec.node_name or is_below:
            self._enqueue_pod(key)

    def _is_echo(self, old: TenantPodView, new: TenantPodView) -> bool:
        """Return whether the only change of a pod is the gateway's own status write, which needs no reconcile."""
        if (
            new.is_terminal
            or not self._executor.mirror.is_own_write(old.metadata, new.metadata)
            or new.fingerprint != old.fingerprint
            or new.spec.node_name != old.spec.node_name
            or new.metadata.deletion_timestamp != old.metadata.deletion_timestamp
        ):
            return False
        if old.raw is None:
            new.raw = None
        return True

    def _find_compute_pod(self, key: Key) -> ComputePodView | None:
        """Return the compute pod of a tenant pod's name in any compute cluster."""
        found = (link.pods.find_pod(self._scope.name, key) for link in self._scope.links.values())
        return next((view for view in found if view is not None), None)

    def compute_pod_changed(self, key: Key) -> None:
        """Handle a change of a compute pod."""
        if self._admission.is_governed(key, self._scope.cache.pods.store.get(key)):
            self._admission.compute_pod_changed(key)
        self._enqueue_changed(key)

    def _enqueue_changed(self, key: Key) -> None:
        view = self._scope.cache.pods.store.get(key)
        if (
            view is None
            or not self._executor.mirror.was_removed(view.metadata.uid)
            or self._find_compute_pod(key) is not None
        ):
            self._enqueue_pod(key)

    def _enqueue_pod(self, key: Key) -> None:
        """Request a reconcile, unless the lists are incomplete: their completion enqueues every pod."""
        if self._is_ready:
            self._scope.work_queue.enqueue(POD, key)
