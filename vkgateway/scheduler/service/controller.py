"""Admission of one tenant's pods: its parts, and the questions of the pod reconciler that it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from vkgateway.api import times
from vkgateway.api.names import BORROWED_ANNOTATION, COMPUTE_NODE_ANNOTATION, EVICTION_DEADLINE_ANNOTATION, POOL_LABEL
from vkgateway.api.objects import Meta, Object
from vkgateway.kinds.pods.mirror import PodMirror
from vkgateway.kinds.pods.pod_context import PodContext, compute_pod_of, tenant_pod_of
from vkgateway.kinds.pods.translation.conditions import DISRUPTION_CONDITION
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import COMPUTE_PODS, RESYNC, TENANT_PODS
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.volumes.claim_users import ClaimUsers
from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.runtime.requests import GATE, POD
from vkgateway.runtime.views.annotations import EVICTED, EVICTED_FOR
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import TenantPodView
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.snapshot import Quota
from vkgateway.scheduler.governed import VirtualNode
from vkgateway.scheduler.service.companion_objects import CompanionObjects
from vkgateway.scheduler.service.completion_records import CompletionRecords
from vkgateway.scheduler.service.conditions import set_condition
from vkgateway.scheduler.service.gate_reconciler import GateReconciler
from vkgateway.scheduler.service.member_reader import MemberReader
from vkgateway.scheduler.service.pod_observer import is_gated
from vkgateway.scheduler.service.size_policy import NODE_SIZES, SizePolicy
from vkgateway.scheduler.service.tenant_admission import TenantAdmission

if TYPE_CHECKING:
    from vkgateway.scheduler.service.arbitration import Arbitration

RETAKEN: Final = Admission(AdmissionState.RETAKEN)


class AdmissionController:
    """Admission of one tenant's pods."""

    def __init__(self, scope: TenantScope, arbiter: Arbitration, *, mirror: PodMirror, claims: ClaimUsers) -> None:
        self._scope = scope
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
        self.event_handler = GateEventHandler(
            scope,
            self.tenant_admission,
            gates=self.gate_reconciler,
            members=self.member_reader,
            size_policy=self.size_policy,
        )

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        registry.runs("admission", self.run)
        self.gate_reconciler.set_up(registry)
        self.event_handler.set_up(registry)
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

    def compute_pod_changed(self, key: Key) -> None:
        """Handle a compute pod that was added, changed or deleted, or that is not expected any longer."""
        self.event_handler.compute_pod_changed(key)

    def observe_pod(self, pod: Object, view: TenantPodView) -> None:
        """Pass a bound pod that was read to the gates, unless the server must be asked about its kinds first."""
        if self.member_reader.must_read(view) and not self.member_reader.ordinary.must_query_kinds(pod):
            self.member_reader.observe_pod(pod, view.fingerprint)

    def is_ordinary(self, view: TenantPodView) -> bool:
        """Return whether a marked pod starts without the arbiter, because its tenant does not have the kind of the
        mark.
        """
        return self.member_reader.ordinary.is_ordinary(view)

    def admission_for(self, context: PodContext) -> Admission:
        """Return the admission of a pod without a compute pod."""
        tenant_pod = tenant_pod_of(context)
        return self.tenant_admission.admission_for(tenant_pod.metadata.uid, tenant_pod.spec.node_name)

    def running_admission(self, context: PodContext) -> Admission:
        """Return the admission of a pod with a compute pod: retaken if no node has accepted it in time."""
        compute_pod = compute_pod_of(context)
        node = compute_pod.metadata.annotations.get(COMPUTE_NODE_ANNOTATION, "")
        uid, compute_uid = tenant_pod_of(context).metadata.uid, compute_pod.metadata.uid
        if compute_pod.spec.node_name:
            self.tenant_admission.verdicts.keep_compute_pod(uid, compute_uid)
        elif node and not self._arbiter.is_foreign(
            (context.link.name, compute_pod.metadata.labels.get(POOL_LABEL, ""))
        ):
            since = self.tenant_admission.observer.unbound.seen_since(uid, compute_uid)
            remaining = since + self._arbiter.bind_timeout - self._scope.clock.time()
            if remaining <= 0 and self._arbiter.avoid_node(context.link.name, node):
                self.tenant_admission.verdicts.revert_compute_pod(uid, compute_uid)
                return RETAKEN
            self._scope.work_queue.enqueue(POD, context.key, remaining if remaining > 0 else self._arbiter.bind_timeout)
        return self.tenant_admission.running_admission(uid)

    async def report_pending(self, context: PodContext) -> None:
        """Report to a pending pod why it waits."""
        view = tenant_pod_of(context)
        member = self.tenant_admission.gangs.find_member(view.metadata.uid)
        if member is not None:
            await self.gate_reconciler.report_pending(view, member)


class EvictionNotices:
    """Writer of one tenant's notices. The compute pod comes first, since its containers read the deadline there."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._client = scope.client
        self._events = scope.events

    async def give_notice(self, context: PodContext) -> None:
        """Write the deadline to the compute pod and the tenant pod, once."""
        admission, tenant_metadata, compute_metadata = (
            context.admission,
            tenant_pod_of(context).metadata,
            compute_pod_of(context).metadata,
        )
        assert admission is not None
        deadline = times.render_time(datetime.fromtimestamp(admission.deadline or 0.0, UTC))
        # A run limit may be reached under notice, with the same deadline.
        is_restated = admission.has_reached_limit and compute_metadata.annotations.get(EVICTED) != admission.reason_text
        if compute_metadata.annotations.get(EVICTION_DEADLINE_ANNOTATION) != deadline or is_restated:
            # The reason is written now, so that only the deletion is left at the deadline.
            marks = {EVICTED_FOR: admission.evicted_for, EVICTED: admission.reason_text}
            if not admission.has_reached_limit:
                marks[BORROWED_ANNOTATION] = "true"
            await self._annotate_pod(
                context.link.client, compute_metadata, {EVICTION_DEADLINE_ANNOTATION: deadline, **marks}
            )
        if tenant_metadata.annotations.get(EVICTION_DEADLINE_ANNOTATION) == deadline and not is_restated:
            return
        message = f"{admission.message}; it is deleted at {deadline}"
        await self._events.emit_event(tenant_metadata, reason=admission.code, message=message)
        await self._set_condition(context, status="True", reason=admission.code, message=message)
        await self._annotate_pod(self._client, tenant_metadata, {EVICTION_DEADLINE_ANNOTATION: deadline})

    async def withdraw_notice(self, context: PodContext) -> None:
        """Remove a withdrawn notice from the tenant pod and the compute pod."""
        tenant_metadata, compute_metadata = tenant_pod_of(context).metadata, compute_pod_of(context).metadata
        if EVICTION_DEADLINE_ANNOTATION in tenant_metadata.annotations:
            message = "the eviction is withdrawn: the capacity is not needed any more"
            await self._events.emit_event(tenant_metadata, reason="EvictionWithdrawn", message=message, kind="Normal")
            await self._set_condition(context, status="False", reason="EvictionWithdrawn", message=message)
            await self._annotate_pod(self._client, tenant_metadata, {EVICTION_DEADLINE_ANNOTATION: None})
        if EVICTION_DEADLINE_ANNOTATION in compute_metadata.annotations:
            marks: Object = {EVICTION_DEADLINE_ANNOTATION: None, EVICTED_FOR: None, EVICTED: None}
            await self._annotate_pod(context.link.client, compute_metadata, marks)

    async def mark_promoted(self, context: PodContext) -> None:
        """Record once on a compute pod that it runs inside the tenant's guarantee.

        Its priority class does not change: Kubernetes does not allow that for an existing pod.
        """
        admission, compute_metadata = context.admission, compute_pod_of(context).metadata
        borrows = compute_metadata.annotations.get(BORROWED_ANNOTATION) == "true"
        if admission is None or admission.borrowed is not False or not borrows:
            return
        await self._annotate_pod(context.link.client, compute_metadata, {BORROWED_ANNOTATION: "false"})
        message = "the pod runs inside the tenant's guarantee from now on: its capacity is not reclaimed any more"
        await self._events.emit_event(
            tenant_pod_of(context).metadata, reason="InsideGuarantee", message=message, kind="Normal"
        )

    async def _annotate_pod(self, client: Client, metadata: Meta, annotations: Object) -> None:
        try:
            await client.patch(
                resources.PODS,
                metadata.name,
                {"metadata": {"uid": metadata.uid, "annotations": annotations}},
                namespace=metadata.namespace,
                metadata_only=True,
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def _set_condition(self, context: PodContext, *, status: str, reason: str, message: str) -> None:
        view = tenant_pod_of(context)
        await set_condition(self._scope, view, DISRUPTION_CONDITION, status=status, reason=reason, message=message)


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
