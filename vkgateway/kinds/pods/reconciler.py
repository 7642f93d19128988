"""Reconciler of pods: it looks up the instructions for a pod's record in the pod table, and executes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import structlog

from vkgateway.api import times
from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.clusters.link import apply_to_each
from vkgateway.kinds.pods import table
from vkgateway.kinds.pods.deleter import PodDeleter
from vkgateway.kinds.pods.failures import FailureDelayedError
from vkgateway.kinds.pods.forwarder import OutdatedPlanError, PodForwarder
from vkgateway.kinds.pods.mirror import PodMirror, ReplacedPods
from vkgateway.kinds.pods.pod_context import (
    PodContext,
    PodPreparer,
    compute_pod_of,
    decode,
    plan_of,
    tenant_pod_of,
)
from vkgateway.kinds.pods.record import ComputePodState, DependencyState, Instruction, Record, TenantPodState
from vkgateway.kinds.pods.reporter import FailureReporter
from vkgateway.kinds.pods.translation.conditions import is_disrupted
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import TENANT_CHANGED, TENANT_CONFIG
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors
from vkgateway.runtime.requests import POD
from vkgateway.runtime.views.annotations import RETAKEN
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import TenantPodView
from vkgateway.scheduler.core.queueing.admission import AdmissionState
from vkgateway.scheduler.gangs.training_jobs import is_recreated_after_deletion

if TYPE_CHECKING:
    from vkgateway.scheduler.service.controller import AdmissionController

log = structlog.get_logger(__name__)

_KUBELET_SECONDS: Final = 60.0
"""Seconds that a force-deleted compute pod waits for its kubelet to report the end; the kubelet of a lost node never
does.
"""
_REQUEUE_SECONDS: Final = 0.2
"""Seconds until a pod is reconciled again that changed during its reconciliation."""
_WATCH_LAG_SECONDS: Final = 5.0
"""Seconds until a pod is reconciled again if the watch has not shown the last write."""


class Executor:
    """Executor of instructions for one tenant's pods. Raises one of vkgateway's errors if an instruction must be
    retried.
    """

    def __init__(
        self,
        mirror: PodMirror,
        forwarder: PodForwarder,
        *,
        deleter: PodDeleter,
        replaced: ReplacedPods,
        admission: AdmissionController,
    ) -> None:
        self.mirror = mirror
        self.forwarder = forwarder
        self._admission = admission
        self._actions: Mapping[Instruction, Callable[[PodContext], Awaitable[None]]] = {
            Instruction.FORGET: _do_nothing,
            Instruction.WAIT: _do_nothing,
            Instruction.DELETE_COMPUTE: deleter.delete_pod,
            Instruction.DELETE_LIKE_TENANT: deleter.delete_like_tenant,
            Instruction.DELETE_AT_DEADLINE: deleter.delete_at_deadline,
            Instruction.DELETE_STALE: deleter.delete_stale,
            Instruction.REMOVE_FINALIZER: deleter.remove_finalizer,
            Instruction.CREATE: forwarder.create_pod,
            Instruction.FORWARD_CHANGES: forwarder.forward_changes,
            Instruction.FORWARD_READINESS: forwarder.readiness.forward_conditions,
            Instruction.REFRESH_TOKENS: forwarder.refresh_tokens,
            Instruction.KEEP_LOGS: deleter.keep_logs,
            Instruction.REPORT_NAME_TAKEN: forwarder.report_name_taken,
            Instruction.REPORT_MISSING: mirror.reporter.report_missing,
            Instruction.REPORT_PENDING: self._report_unadmitted,
            Instruction.REPORT_UNDO: self._log_undo,
            Instruction.GIVE_NOTICE: admission.notices.give_notice,
            Instruction.WITHDRAW_NOTICE: admission.notices.withdraw_notice,
            Instruction.MARK_PROMOTED: admission.notices.mark_promoted,
            Instruction.REVERT: deleter.revert_pod,
            Instruction.FAIL_REJECTED: self._reject_pod,
            Instruction.FAIL_REFUSED: self._fail_refused,
            Instruction.FAIL_LOST: mirror.failures.fail_lost,
            Instruction.UPDATE_STATUS: mirror.update_status,
            Instruction.WRITE_END: mirror.write_end,
            Instruction.EVICT_TENANT: mirror.evict_pod,
            Instruction.END_DELETED: mirror.end_deleted,
            Instruction.REMOVE_REPLACED: replaced.remove_replaced,
            Instruction.DELETE_TENANT: mirror.delete_pod,
        }

    async def execute_instruction(self, instruction: Instruction, context: PodContext) -> None:
        """Execute one instruction for a pod."""
        await self._actions[instruction](context)

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted tenant pod."""
        self.mirror.forget_pod(uid)
        self.forwarder.forget_pod(uid)

    async def _report_unadmitted(self, context: PodContext) -> None:
        assert context.admission is not None
        if context.plan is not None and context.plan.governed:
            await self._admission.report(context)
        else:
            await self.mirror.reporter.report_waiting(
                context, context.admission.code or "Held", context.admission.message, kind="Normal"
            )

    async def _fail_refused(self, context: PodContext) -> None:
        await self.mirror.failures.refuse_pod(tenant_pod_of(context), plan_of(context).refusals)

    async def _reject_pod(self, context: PodContext) -> None:
        assert context.admission is not None
        await self.mirror.failures.fail_pod(
            context, context.admission.code, f"Pod was rejected: {context.admission.message}"
        )

    async def _log_undo(self, context: PodContext) -> None:
        pod = tenant_pod_of(context).metadata
        log.warning(
            "tenant pod is final but its compute pod runs; deleting the compute pod",
            namespace=pod.namespace,
            pod=pod.name,
        )


class PodReconciler:
    """Reconciler of one tenant's pods."""

    def __init__(
        self,
        scope: TenantScope,
        executor: Executor,
        *,
        preparer: PodPreparer,
        admission: AdmissionController,
    ) -> None:
        self._scope = scope
        self._pods = scope.cache.pods
        self._executor = executor
        self._preparer = preparer
        self._admission = admission
        self._work_queue = scope.work_queue
        self._clock = scope.clock
        self._failures = FailureReporter(scope, executor.mirror.reporter)

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(POD, self.reconcile)
            .watches(TENANT_CHANGED, lambda _old, _new: self._preparer.outdate_plans())
            .watches(TENANT_CONFIG, self._preparer.source_changed)
        )

    async def reconcile(self, key: Key) -> None:
        """Reconcile one pod. Raises `errors.ApiError` if it must be retried."""
        view = self._pods.store.get(key)
        await self._preparer.forget_replaced(key, view)
        remaining = self._preparer.limit_tracker.update_running(key, view)
        if remaining is not None:
            self._work_queue.enqueue(POD, key, remaining)
        if view is None and self._admission.is_governed(key, view):
            self._admission.compute_pod_changed(key)

        async def reconcile_context(context: PodContext) -> None:
            try:
                await self._reconcile_context(context)
            except (errors.ApiError, ConflictError, UnavailableError) as error:
                await self._failures.report_failure(context, error)
                raise

        await apply_to_each(self._pod_contexts(key, view), reconcile_context)
        self._failures.forget_pod(key)

    def _pod_contexts(self, key: Key, view: TenantPodView | None) -> Iterable[PodContext]:
        """Yield the pod in the cluster of its virtual node, and other compute pods of its name in other clusters."""
        binding = self._scope.bindings.get(view.spec.node_name) if view is not None else None
        for link in list(self._scope.links.values()):
            compute_pod = link.pods.find_pod(self._scope.name, key)
            bound_here = binding is not None and binding.link is link
            is_same_pod = compute_pod is not None and view is not None and compute_pod.tenant_uid == view.metadata.uid
            if bound_here or is_same_pod:
                yield PodContext(key=key, link=link, tenant=view, compute=compute_pod, binding=binding)
            elif compute_pod is not None:
                yield PodContext(key=key, link=link, tenant=None, compute=compute_pod, binding=None)

    async def _reconcile_context(self, context: PodContext) -> None:
        record = await self._build_record(context)
        status_refusal: errors.ApiError | None = None
        for instruction in table.find_instructions(record):
            try:
                await self._executor.execute_instruction(instruction, context)
            except OutdatedPlanError:
                self._preparer.outdate_plan(context.key)
                self._work_queue.enqueue(POD, context.key, _REQUEUE_SECONDS)
                return
            except FailureDelayedError:
                return
            except errors.ApiError as error:
                # The tenant's webhooks may refuse a status. Forwarding does not wait for that.
                if instruction is not Instruction.UPDATE_STATUS or error.is_transient:
                    raise
                status_refusal = error
        if context.resize_refused:
            self._count_current_size(context)
        if status_refusal is not None:
            raise status_refusal

    def _count_current_size(self, context: PodContext) -> None:
        """Count the pod with its current compute resources, which it retains."""
        tenant_pod, requests = tenant_pod_of(context), compute_pod_of(context).admitted_requests
        if requests is not None:
            self._preparer.limit_tracker.resize_pod(
                tenant_pod.metadata.uid, self._scope.pool_of(tenant_pod.spec.node_name), requests
            )

    async def _build_record(self, context: PodContext) -> Record:
        """Return the record of a pod; information that its state does not need is not looked up."""
        tenant, compute = _tenant_state(context.tenant), self._compute_state(context)
        if tenant is TenantPodState.BOUND and compute in (ComputePodState.ABSENT, ComputePodState.LIVE):
            await self._preparer.prepare_bound(context, absent=compute is ComputePodState.ABSENT)
            if context.claims.is_early:
                compute = ComputePodState.UNKNOWN
        ended_by_platform = _is_ended_by_platform(context.tenant)
        return Record(
            tenant=tenant,
            compute=compute,
            dependencies=_dependency_state(context),
            admission=_admission_state(context),
            has_run=context.tenant is not None and context.tenant.has_run,
            ended_by_platform=ended_by_platform,
            # The controller replaces such a pod only after its deletion.
            blocks_replacement=ended_by_platform
            and is_recreated_after_deletion(tenant_pod_of(context).metadata.labels),
            list_complete=self._pods.is_complete,
        )

    def _compute_state(self, context: PodContext) -> ComputePodState:
        """Return the compute state from the stores, corrected by just created pods and taken names."""
        state = _shown_compute_state(context)
        if state is ComputePodState.DELETING and self._is_abandoned(context):
            state = ComputePodState.TERMINAL_DELETING
        if context.tenant is None:
            return state
        uid = context.tenant.metadata.uid
        if state is not ComputePodState.ABSENT:
            self._scope.created_until.pop(uid, None)
            return state
        if self._executor.mirror.is_watch_behind(context.tenant.metadata):
            # The pod may have ended, and its end may be written already; the watch will trigger a reconciliation.
            self._work_queue.enqueue(POD, context.key, _WATCH_LAG_SECONDS)
            return ComputePodState.UNKNOWN
        now = self._clock.time()
        if self._scope.created_until.get(uid, 0.0) > now:
            return ComputePodState.UNKNOWN
        if self._executor.forwarder.name_taken_until.get(uid, 0.0) > now:
            return ComputePodState.FOREIGN
        return state

    def _is_abandoned(self, context: PodContext) -> bool:
        """Return whether only vkgateway's finalizer retains a force-deleted compute pod that no kubelet has ended."""
        metadata = compute_pod_of(context).metadata
        if metadata.deletion_grace_period_seconds != 0 or metadata.deletion_timestamp is None:
            return False
        remaining = times.parse_time(metadata.deletion_timestamp).timestamp() + _KUBELET_SECONDS - self._clock.time()
        if remaining > 0:
            self._work_queue.enqueue(POD, context.key, remaining)
        return remaining <= 0


def _tenant_state(view: TenantPodView | None) -> TenantPodState:
    """Return the table's state of the tenant pod."""
    if view is None:
        return TenantPodState.ABSENT
    deleting = view.metadata.deletion_timestamp is not None
    if view.is_terminal:
        return TenantPodState.TERMINAL_DELETING if deleting else TenantPodState.TERMINAL
    if deleting:
        return TenantPodState.DELETING
    if view.spec.node_name:
        return TenantPodState.BOUND
    return TenantPodState.GATED if view.spec.scheduling_gates else TenantPodState.UNBOUND


def _shown_compute_state(context: PodContext) -> ComputePodState:
    """Return the table's state of the compute pod, as far as the cluster can be trusted."""
    view = context.compute
    if not context.link.is_trusted:
        return ComputePodState.UNKNOWN
    if view is None:
        return ComputePodState.ABSENT
    if context.tenant is not None and (
        view.tenant_uid != context.tenant.metadata.uid or RETAKEN in view.metadata.annotations
    ):
        return ComputePodState.STALE
    deleting = view.metadata.deletion_timestamp is not None
    if view.has_ended:
        return ComputePodState.TERMINAL_DELETING if deleting else ComputePodState.TERMINAL
    return ComputePodState.DELETING if deleting else ComputePodState.LIVE


def _dependency_state(context: PodContext) -> DependencyState:
    """Return the table's state of the objects that the pod refers to."""
    if context.plan is not None and context.plan.refusals:
        return DependencyState.REFUSED
    return DependencyState.MISSING if context.missing_references or context.claims.unready else DependencyState.READY


def _admission_state(context: PodContext) -> AdmissionState:
    """Return the table's state of the pod's admission."""
    return context.admission.verdict if context.admission is not None else AdmissionState.FREE


def _is_ended_by_platform(view: TenantPodView | None) -> bool:
    """Return whether the platform ended the tenant pod by an eviction or a deletion in the compute cluster."""
    return view is not None and view.is_terminal and is_disrupted(decode(view.status))


async def _do_nothing(_case: PodContext) -> None:
    return
