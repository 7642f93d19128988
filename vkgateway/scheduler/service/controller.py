"""Interface of the arbiter for the reconcilers of one tenant's pods: changes, admissions and reports, in one class."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from vkgateway.api.names import COMPUTE_NODE_ANNOTATION, POOL_LABEL
from vkgateway.api.objects import Object
from vkgateway.kinds.pods.mirror import PodMirror
from vkgateway.kinds.pods.pod_context import PodContext, compute_pod_of, tenant_pod_of
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import RESYNC
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.volumes.claim_users import ClaimUsers
from vkgateway.runtime.requests import GATE, POD
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import TenantPodView
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.snapshot import Quota
from vkgateway.scheduler.gangs.mark_detection import may_be_member
from vkgateway.scheduler.governed import VirtualNode
from vkgateway.scheduler.service.companion_objects import CompanionObjects
from vkgateway.scheduler.service.completion_records import CompletionRecords
from vkgateway.scheduler.service.eviction_notices import EvictionNotices
from vkgateway.scheduler.service.gate_reconciler import GateReconciler
from vkgateway.scheduler.service.member_reader import MemberReader
from vkgateway.scheduler.service.pod_observer import is_gated
from vkgateway.scheduler.service.size_policy import NODE_SIZES, SizePolicy
from vkgateway.scheduler.service.tenant_admission import TenantAdmission
from vkgateway.scheduler.service.verdict_store import is_arbiter_placed

if TYPE_CHECKING:
    from vkgateway.scheduler.service.arbitration import Arbitration

RETAKEN: Final = Admission(AdmissionState.RETAKEN)


class AdmissionController:
    """Admission of one tenant's pods.

    The pod reconcilers report changes of pods that are governed (`is_governed`) with `put_pod`, `drop_pod` and
    `compute_pod_changed`. `admission_of` says whether a governed pod may start, or continue to run.
    """

    def __init__(self, scope: TenantScope, arbiter: Arbitration, *, mirror: PodMirror, claims: ClaimUsers) -> None:
        self._scope = scope
        self._pods = scope.cache.pods
        self._arbiter = arbiter
        self.notices = EvictionNotices(scope)
        self.companions = CompanionObjects(scope)
        self.size_policy = SizePolicy(scope)
        self.completion_records = CompletionRecords(scope)
        self.tenant_admission = TenantAdmission(scope, arbiter, self.companions, self.completion_records)
        self.member_reader = MemberReader(scope, self.tenant_admission, self.companions, mirror=mirror, claims=claims)
        self.gate_reconciler = GateReconciler(
            scope, self.tenant_admission, self.member_reader, mirror=mirror, judge_size=self.size_policy.judge_pod
        )

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        registry.runs("admission", self.run)
        self.gate_reconciler.set_up(registry)
        registry.watches(RESYNC, self._pods_listed).watches(NODE_SIZES, self._node_sizes_changed)
        self.member_reader.set_up(registry)

    async def run(self) -> None:
        """Take part in the arbitration until cancelled."""
        self._arbiter.add_tenant(self.tenant_admission)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.companions.run(), name=f"tenant/{self._scope.name}/companions")
                group.create_task(
                    self.completion_records.run(self.tenant_admission), name=f"tenant/{self._scope.name}/done"
                )
                group.create_task(self.size_policy.run(), name=f"tenant/{self._scope.name}/machines")
        finally:
            self._arbiter.remove_tenant(self._scope.name)

    # Changes of pods.

    def is_governed(self, key: Key, view: TenantPodView | None) -> bool:
        """Return whether the arbiter governs a pod of this name, or may: its view or a compute pod says so.

        Views have no requests. A pod with devices that bypasses the gate is governed from `observe_pod` on.
        """
        # Most pods are not governed, and pass nothing else of this package. So the test only looks up names and UIDs.
        if key in self.tenant_admission.gangs.uids_by_pod:
            return True
        if view is not None:
            uid = view.metadata.uid
            if uid in self.gate_reconciler.reporter.pod_reports or uid in self.member_reader.ordinary.marks:
                return True
            if view.spec.scheduling_gates or may_be_member(view):
                return True
        for link in self._scope.links.values():
            compute_pod = link.pods.find_pod(self._scope.name, key)
            if compute_pod is not None and is_arbiter_placed(compute_pod):
                return True
            if (link.name, key) in self.tenant_admission.orphans.uids_by_place:
                return True
        return False

    def put_pod(self, view: TenantPodView) -> None:
        """Handle a tenant pod that was added or changed: it is read as a whole if it may be a member of a gang."""
        if self.member_reader.needs_read(view):
            self.member_reader.enqueue_read(view.metadata.key)
        self.compute_pod_changed(view.metadata.key)

    def drop_pod(self, view: TenantPodView) -> None:
        """Handle a tenant pod that was deleted. Its compute pod may still run."""
        self.gate_reconciler.reporter.forget_pod(view.metadata.uid)
        self.member_reader.ordinary.forget_pod(view.metadata.uid)
        self.compute_pod_changed(view.metadata.key)

    def compute_pod_changed(self, key: Key) -> None:
        """Handle a compute pod that was added, changed or deleted, or that is not expected any longer."""
        for member in self.tenant_admission.pod_changed(key):
            self.gate_reconciler.reporter.forget_pod(member.uid)
            self.member_reader.forget_member(member)
        self.member_reader.compute_pod_changed(key)

    def observe_pod(self, pod: Object, view: TenantPodView) -> None:
        """Take over a bound pod that was read as a whole, unless the server must be asked about its kinds first."""
        if self.member_reader.must_read(view) and not self.member_reader.ordinary.must_query_kinds(pod):
            self.member_reader.observe_pod(pod, view.fingerprint)

    # Questions about pods.

    def is_ordinary(self, view: TenantPodView) -> bool:
        """Return whether a marked pod starts without the arbiter, because its tenant does not have the kind of the
        mark.
        """
        return self.member_reader.ordinary.is_ordinary(view)

    def admission_of(self, context: PodContext) -> Admission:
        """Return whether a governed pod that is bound to a virtual node may start, or continue to run.

        A compute pod that no node has accepted in time is retaken.
        """
        tenant_pod = tenant_pod_of(context)
        uid = tenant_pod.metadata.uid
        if context.compute is None:
            return self.tenant_admission.admission_for(uid, tenant_pod.spec.node_name)
        return RETAKEN if self._is_retaken(context, uid) else self.tenant_admission.running_admission(uid)

    def _is_retaken(self, context: PodContext, uid: str) -> bool:
        compute_pod, link = compute_pod_of(context), context.link
        node, compute_uid = compute_pod.metadata.annotations.get(COMPUTE_NODE_ANNOTATION, ""), compute_pod.metadata.uid
        if compute_pod.spec.node_name:
            self.tenant_admission.verdicts.keep_compute_pod(uid, compute_uid)
        elif node and not self._arbiter.is_foreign((link.name, compute_pod.metadata.labels.get(POOL_LABEL, ""))):
            since = self.tenant_admission.observer.unbound.seen_since(uid, compute_uid)
            remaining = since + self._arbiter.bind_timeout - self._scope.clock.time()
            if remaining <= 0 and self._arbiter.avoid_node(link.name, node):
                self.tenant_admission.verdicts.revert_compute_pod(uid, compute_uid)
                return True
            self._scope.work_queue.enqueue(POD, context.key, remaining if remaining > 0 else self._arbiter.bind_timeout)
        return False

    async def report(self, context: PodContext) -> None:
        """Report to a pending pod why it waits."""
        view = tenant_pod_of(context)
        member = self.tenant_admission.gangs.find_member(view.metadata.uid)
        if member is not None:
            await self.gate_reconciler.report_pending(view, member)

    # Changes of all pods, of quotas and of nodes.

    def set_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set what the tenant is guaranteed of each pool, and may use of it at most."""
        self.tenant_admission.quotas_changed(quotas)
        self.size_policy.pools_changed()
        self._reachable_nodes_changed()

    def set_node(self, name: str, node: VirtualNode) -> None:
        """Set the labels and taints of a virtual node, as the tenant's API server shows them."""
        if self._scope.virtual_nodes.get(name) != node:
            self._scope.virtual_nodes[name] = node
            self._reachable_nodes_changed()

    def _pods_listed(self) -> None:
        """Request what was put off: pods that were not read are read, gated pods are reconciled."""
        self.tenant_admission.reads.unread.intersection_update(self._pods.store)
        for key, view in self._pods.store.items():
            if self.member_reader.needs_read(view):
                self.member_reader.enqueue_read(key)
            elif is_gated(view):
                self._scope.work_queue.enqueue(GATE, key)
        self.tenant_admission.pods_listed()

    def _reachable_nodes_changed(self) -> None:
        self.member_reader.pools_changed()
        for member in self.tenant_admission.gangs:
            self._scope.work_queue.enqueue(GATE, member.key)
        self._node_sizes_changed()

    def _node_sizes_changed(self) -> None:
        """Reconcile the pods that wait because of their size, or whose size could not be judged yet."""
        for key, view in self._pods.store.items():
            if is_gated(view) and not self.tenant_admission.is_governed_pod(view.metadata.uid):
                self._scope.work_queue.enqueue(GATE, key)
