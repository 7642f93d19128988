"""Watches of admission: which changes request that a pod is read, or that its gate is reconciled."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import COMPUTE_PODS, RESYNC, TENANT_PODS
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.runtime.requests import GATE
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import TenantPodView
from vkgateway.scheduler.core.snapshot import Quota
from vkgateway.scheduler.governed import VirtualNode
from vkgateway.scheduler.service.gate_reconciler import GateReconciler
from vkgateway.scheduler.service.member_reader import MemberReader
from vkgateway.scheduler.service.pod_observer import is_gated
from vkgateway.scheduler.service.size_policy import NODE_SIZES, SizePolicy
from vkgateway.scheduler.service.tenant_admission import TenantAdmission


class GateEventHandler:
    """Requests reconciles of the gates of one tenant's pods."""

    def __init__(
        self,
        scope: TenantScope,
        admission: TenantAdmission,
        *,
        gates: GateReconciler,
        members: MemberReader,
        size_policy: SizePolicy,
    ) -> None:
        self._scope = scope
        self._pods = scope.cache.pods
        self._admission = admission
        self._gates = gates
        self._members = members
        self._size_policy = size_policy

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.watches(RESYNC, self._pods_listed)
            .watches(TENANT_PODS, self._pod_changed)
            .watches(COMPUTE_PODS, self.compute_pod_changed)
            .watches(NODE_SIZES, self._node_sizes_changed)
        )

    def set_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set what the tenant is guaranteed of each pool, and may use of it at most."""
        self._admission.quotas_changed(quotas)
        self._size_policy.pools_changed()
        self._reachable_nodes_changed()

    def set_node(self, name: str, node: VirtualNode) -> None:
        """Set the labels and taints of a virtual node, as the tenant's API server shows them."""
        if self._scope.virtual_nodes.get(name) != node:
            self._scope.virtual_nodes[name] = node
            self._reachable_nodes_changed()

    def compute_pod_changed(self, key: Key) -> None:
        """Handle a change of a compute pod."""
        for member in self._admission.pod_changed(key):
            self._gates.reporter.forget_pod(member.uid)
            self._members.forget_member(member)
        self._members.compute_pod_changed(key)

    def _pod_changed(self, old: TenantPodView | None, new: TenantPodView | None) -> None:
        view = new or old
        assert view is not None
        key = view.metadata.key
        if new is None:
            self._gates.reporter.forget_pod(view.metadata.uid)
            self._members.ordinary.forget_pod(view.metadata.uid)
        elif self._members.needs_read(new):
            self._members.enqueue_read(key)
        self.compute_pod_changed(key)

    def _pods_listed(self) -> None:
        """Request what was put off: pods that were not read are read, gated pods are reconciled."""
        self._admission.reads.unread.intersection_update(self._pods.store)
        for key, view in self._pods.store.items():
            if self._members.needs_read(view):
                self._members.enqueue_read(key)
            elif is_gated(view):
                self._scope.work_queue.enqueue(GATE, key)
        self._admission.pods_listed()

    def _reachable_nodes_changed(self) -> None:
        self._members.pools_changed()
        for member in self._admission.gangs:
            self._scope.work_queue.enqueue(GATE, member.key)
        self._node_sizes_changed()

    def _node_sizes_changed(self) -> None:
        """Reconcile the pods that wait because of their size, or whose size could not be judged yet."""
        for key, view in self._pods.store.items():
            if is_gated(view) and not self._admission.is_governed_pod(view.metadata.uid):
                self._scope.work_queue.enqueue(GATE, key)
