"""Reconciler of scheduling gates: it lifts the gates of admitted pods, and reports to the others why they wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from vkgateway.api.objects import Object
from vkgateway.clusters.node_sizes import SizeVerdict, admit_patch
from vkgateway.kinds.pods.mirror import PodMirror
from vkgateway.kinds.pods.pod_context import decode
from vkgateway.kinds.pods.translation.conditions import ADMITTED_CONDITION
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.runtime.requests import GATE
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import TenantPodView
from vkgateway.scheduler.core.decisions import PERMANENT_REASONS, PendingReason
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.governed import ungate_patch
from vkgateway.scheduler.service.conditions import set_condition
from vkgateway.scheduler.service.member import GangMember
from vkgateway.scheduler.service.member_reader import MemberReader
from vkgateway.scheduler.service.pending_reporter import PendingMessage, PendingReporter
from vkgateway.scheduler.service.pod_observer import is_gated
from vkgateway.scheduler.service.tenant_admission import TenantAdmission
from vkgateway.scheduler.service.virtual_nodes import narrowing_selector


class GateReconciler:
    """Reconciler of the gates of one tenant's pods."""

    def __init__(
        self,
        scope: TenantScope,
        admission: TenantAdmission,
        members: MemberReader,
        *,
        mirror: PodMirror,
        judge_size: Callable[[Object], SizeVerdict | None],
    ) -> None:
        self._scope = scope
        self._admission = admission
        self._client = scope.client
        self._pods = scope.cache.pods
        self._reads = admission.reads
        self._members = members
        self._mirror = mirror
        self._judge_size = judge_size
        self.reporter = PendingReporter()

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        registry.for_(GATE, self.reconcile)

    async def reconcile(self, key: Key) -> None:
        """Reconcile one pod that has no compute pod."""
        view = self._pods.store.get(key)
        if view is None:
            self._reads.unread.discard(key)
            return
        read = not self._members.needs_read(view) or await self._members.read_pod(view)
        self._reads.unread.discard(key)
        if not read:
            return
        if view.is_terminal or view.metadata.deletion_timestamp is not None:
            return
        member = self._admission.gangs.find_member(view.metadata.uid)
        if member is None or not member.governed:
            if is_gated(view):
                await self._reconcile_size(view)
            return
        verdict = self._admission.verdict_store.verdicts.get(member.uid)
        if verdict is None:
            await self.report_pending(view, member)
        elif verdict.verdict is AdmissionState.ADMITTED and is_gated(view) and not member.waiting_gates:
            await self._remove_gate(view, ungate_patch(view.metadata.uid, self._node_selector(member, verdict)))

    def _node_selector(self, member: GangMember, verdict: Admission) -> dict[str, str]:
        if not member.is_pinned:
            return {}
        return narrowing_selector(verdict.pool, verdict.node, self._scope.bindings, any_part=member.follows_others)

    async def _reconcile_size(self, view: TenantPodView) -> None:
        """Admit a gated pod without devices or marks to nodes of sufficient size, or report why it waits.

        The policy by size has set its gate, or a user has: only the gateway lifts it.
        """
        try:
            document = decode(await self._mirror.read_pod(view))
        except (errors.NotFound, errors.Conflict):
            return
        judged = self._judge_size(document)
        if judged is None:
            return
        if not judged.reason:
            await self._remove_gate(view, admit_patch(document, judged))
            return
        code = PendingReason.ROOM if judged.is_temporary else PendingReason.INFEASIBLE
        group = f"{view.metadata.namespace}/pod/{view.metadata.uid}"
        await self._report_pending(view, group, PendingMessage(code, judged.reason, judged.reason))

    async def _remove_gate(self, view: TenantPodView, patch: Object) -> None:
        """Lift the gate with a patch that may narrow the pod's node selector."""
        metadata = view.metadata
        was_reported = self.reporter.was_reported(metadata.uid)
        self.reporter.forget_pod(metadata.uid)
        try:
            if was_reported:
                await self._set_condition(view, status="True", reason="Admitted", message="the pod may start")
            await self._client.patch(
                resources.PODS,
                metadata.name,
                patch,
                namespace=metadata.namespace,
                kind="strategic",
                metadata_only=True,
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def report_pending(self, view: TenantPodView, member: GangMember) -> None:
        """Report to a pod why it waits: in a condition that is refreshed occasionally, and in an event for each new
        reason.
        """
        pending = self._admission.reasons.pending_message(member)
        if pending is not None:
            await self._report_pending(view, member.gang_group, pending)

    async def _report_pending(self, view: TenantPodView, group: str, pending: PendingMessage) -> None:
        uid = view.metadata.uid
        action = self.reporter.plan_report(uid, group, pending, now=self._scope.clock.monotonic())
        if action.requeue_after is not None:
            self._scope.work_queue.enqueue(GATE, view.metadata.key, action.requeue_after)
        if action.report_now is None:
            return
        try:
            if action.is_new:
                kind: Literal["Normal", "Warning"] = (
                    "Warning" if action.report_now.code in PERMANENT_REASONS else "Normal"
                )
                await self._scope.events.emit_event(
                    view.metadata, reason=action.report_now.code, message=action.report_now.reason, kind=kind
                )
            await self._set_condition(
                view, status="False", reason=action.report_now.code, message=action.report_now.text
            )
        except errors.ApiError:
            self.reporter.report_failed(uid)
            raise

    async def _set_condition(self, view: TenantPodView, *, status: str, reason: str, message: str) -> None:
        await set_condition(self._scope, view, ADMITTED_CONDITION, status=status, reason=reason, message=message)
