"""Reconciler of one tenant's pods: it executes the pod table's instructions, one pod per call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Protocol

import structlog

from vkgateway.arbiter.queueing.admission import Admission, AdmissionState
from vkgateway.kube import errors
from vkgateway.model import times
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.model.objects import Object
from vkgateway.sync.compute.link import apply_to_each
from vkgateway.sync.copies import COPY, CopyReconciler
from vkgateway.sync.pods import table
from vkgateway.sync.pods.executor import Executor
from vkgateway.sync.pods.failures import FailureDelayedError
from vkgateway.sync.pods.forwarder import OutdatedPlanError
from vkgateway.sync.pods.limit_tracker import LimitTracker
from vkgateway.sync.pods.pod_context import (
    ForwardingPlan,
    PodContext,
    admission_state,
    compute_pod_of,
    compute_state,
    decode,
    dependency_state,
    is_ended_by_platform,
    make_plan,
    pod_digest,
    tenant_pod_of,
    tenant_state,
)
from vkgateway.sync.pods.record import ComputePodState, Instruction, Record, TenantPodState
from vkgateway.sync.pods.reporter import FailureReporter
from vkgateway.sync.runtime.registry import Registry
from vkgateway.sync.runtime.requests import POD
from vkgateway.sync.runtime.sources import TENANT_CHANGED, TENANT_CONFIG
from vkgateway.sync.storage.claim_users import ClaimUsers
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.tokens import ServiceAccountTokens
from vkgateway.sync.views.ownership import Key, Reference
from vkgateway.sync.views.pods import TenantPodView
from vkgateway.translate.gangs.training_jobs import is_recreated_after_deletion
from vkgateway.translate.node_sizes import rejection_reason

log = structlog.get_logger(__name__)

_KUBELET_SECONDS: Final = 60.0
"""Seconds that a force-deleted compute pod waits for its kubelet to report the end; the kubelet of a lost node never
does.
"""
_REQUEUE_SECONDS: Final = 0.2
"""Seconds until a pod is reconciled again that changed during its reconciliation."""
_WATCH_LAG_SECONDS: Final = 5.0
"""Seconds until a pod is reconciled again if the watch has not shown the last write."""


class PodAdmission(Protocol):
    """Admission of pods that start only after the arbiter has admitted them."""

    def observe_pod(self, pod: Object, view: TenantPodView) -> None:
        """Observe a complete governed pod after it was bound."""

    def is_ordinary(self, view: TenantPodView) -> bool:
        """Return whether a pod starts without the arbiter although it has a gang annotation or label."""

    def compute_pod_changed(self, key: Key) -> None:
        """Handle a compute pod that was added, changed or deleted, or that is not expected any longer."""

    def admission_for(self, context: PodContext) -> Admission:
        """Return the admission of a pod without a compute pod."""

    def running_admission(self, context: PodContext) -> Admission:
        """Return the admission of a pod with a compute pod."""


class PodReconciler:
    """Reconciler of one tenant's pods; it also enqueues the copies that they refer to, and unused ones."""

    def __init__(
        self,
        scope: TenantScope,
        executor: Executor,
        *,
        copies: CopyReconciler,
        tokens: ServiceAccountTokens,
        claims: ClaimUsers,
        admission: PodAdmission,
    ) -> None:
        self._scope = scope
        self.pods = scope.cache.pods
        self.executor = executor
        self.copies = copies
        self.tokens = tokens
        self._claims = claims
        self._admission = admission
        self._work_queue = scope.work_queue
        self.limit_tracker = LimitTracker(scope)
        self._clock = scope.clock
        self._plans: dict[Key, ForwardingPlan] = {}
        self._outdated_plans: set[Key] = set()
        self._failures = FailureReporter(scope, executor.mirror.reporter)
        self.waiting_pods: dict[Reference, set[Key]] = {}
        """Pods that wait for a missing object."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(POD, self.reconcile)
            .watches(TENANT_CHANGED, lambda _old, _new: self._outdate_plans())
            .watches(TENANT_CONFIG, self._source_changed)
        )

    def _outdate_plans(self) -> None:
        """Compute all plans again before pods are created from them, because the tenant's policy has changed.

        Pods with a compute pod retain theirs: only the policy violations can have changed.
        """
        self._outdated_plans = set(self._plans)

    def _source_changed(self, reference: Reference) -> None:
        for key in self.waiting_pods.pop(reference, ()):
            self._work_queue.enqueue(POD, key)

    async def reconcile(self, key: Key) -> None:
        """Reconcile one pod. Raises `errors.ApiError` if it must be retried."""
        view = self.pods.store.get(key)
        known = self._plans.get(key)
        if known is not None and (view is None or view.metadata.uid != known.uid):
            await self._forget_pod(key, known)
        remaining = self.limit_tracker.update_running(key, view)
        if remaining is not None:
            self._work_queue.enqueue(POD, key, remaining)
        if view is None:
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
                await self.executor.execute_instruction(instruction, context)
            except OutdatedPlanError:
                self._outdated_plans.add(context.key)
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
            self.limit_tracker.resize_pod(
                tenant_pod.metadata.uid, self._scope.pool_of(tenant_pod.spec.node_name), requests
            )

    async def _build_record(self, context: PodContext) -> Record:
        """Return the record of a pod; information that its state does not need is not looked up."""
        tenant, compute = tenant_state(context.tenant), self._compute_state(context)
        if tenant is TenantPodState.BOUND and compute in (ComputePodState.ABSENT, ComputePodState.LIVE):
            await self._prepare_bound(context, absent=compute is ComputePodState.ABSENT)
            if context.claims.is_early:
                compute = ComputePodState.UNKNOWN
        ended_by_platform = is_ended_by_platform(context.tenant)
        return Record(
            tenant=tenant,
            compute=compute,
            dependencies=dependency_state(context),
            admission=admission_state(context),
            has_run=context.tenant is not None and context.tenant.has_run,
            ended_by_platform=ended_by_platform,
            # The controller replaces such a pod only after its deletion.
            blocks_replacement=ended_by_platform
            and is_recreated_after_deletion(tenant_pod_of(context).metadata.labels),
            list_complete=self.pods.is_complete,
        )

    def _compute_state(self, context: PodContext) -> ComputePodState:
        """Return the compute state from the stores, corrected by just created pods and taken names."""
        state = compute_state(context)
        if state is ComputePodState.DELETING and self._is_abandoned(context):
            state = ComputePodState.TERMINAL_DELETING
        if context.tenant is None:
            return state
        uid = context.tenant.metadata.uid
        if state is not ComputePodState.ABSENT:
            self._scope.created_until.pop(uid, None)
            return state
        if self.executor.mirror.is_watch_behind(context.tenant.metadata):
            # The pod may have ended, and its end may be written already; the watch will trigger a reconciliation.
            self._work_queue.enqueue(POD, context.key, _WATCH_LAG_SECONDS)
            return ComputePodState.UNKNOWN
        now = self._clock.time()
        if self._scope.created_until.get(uid, 0.0) > now:
            return ComputePodState.UNKNOWN
        if self.executor.forwarder.name_taken_until.get(uid, 0.0) > now:
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

    async def _prepare_bound(self, context: PodContext, *, absent: bool) -> None:
        """Determine the pod's plan, its missing references and its admission."""
        assert context.tenant is not None
        uid = context.tenant.metadata.uid
        plan = context.plan = self._plans.get(context.key)
        if (
            plan is None
            or (absent and context.key in self._outdated_plans)
            or _is_changed(context, plan, absent=absent)
        ):
            old, plan = plan, await self._make_plan(context)
            context.plan = plan
            if absent and old is not None and old.requests != plan.requests:
                self.limit_tracker.release_pending(context.key, uid)
        if plan.governed and self._admission.is_ordinary(context.tenant):
            context.plan = plan = replace(plan, governed=False)
        if not absent:
            pool = self._scope.pool_of(context.tenant.spec.node_name)
            self.limit_tracker.count_running(context.key, uid=uid, pool=pool, requests=plan.requests)
            if compute_pod_of(context).forwarded_fingerprint != context.tenant.fingerprint:
                context.resize_admission = self.limit_tracker.resize_pod(uid, pool, plan.requests)
            if plan.governed:
                context.admission = self._admission.running_admission(context)
            return
        context.missing_references = [
            reference for reference in plan.mandatory if not self.copies.source_exists(reference)
        ]
        for reference in context.missing_references:
            self.waiting_pods.setdefault(reference, set()).add(context.key)
        if plan.refusals or context.missing_references:
            return
        if plan.claims:
            context.claims = self._claims.find_claims(context.key, plan.claims, context.link)
            if context.claims.unready:
                return
        context.admission = self._admit_pod(context, plan)

    def _admit_pod(self, context: PodContext, plan: ForwardingPlan) -> Admission:
        """Return the admission of a pod without a compute pod: by the tenant's limits, and by the arbiter for governed
        pods.
        """
        tenant_pod = tenant_pod_of(context)
        uid, pool, requests = tenant_pod.metadata.uid, self._scope.pool_of(tenant_pod.spec.node_name), plan.requests
        # Before the compute nodes are known, the capacity of a virtual node is unknown.
        by_hand = not plan.scheduled and context.link.nodes.is_complete
        if (by_hand or not plan.governed) and (too_large := _reject_too_large(context, plan)) is not None:
            self.limit_tracker.release_pending(context.key, uid)
            return too_large
        if not plan.governed:
            return self.limit_tracker.admit_pod(
                context.key, context.link, uid=uid, pool=pool, requests=requests, by_hand=by_hand
            )
        if by_hand:
            rejected = self.limit_tracker.admit_manual(context.key, context.link, uid=uid, pool=pool, requests=requests)
            if rejected is not None:
                return rejected
        admission = self._admission.admission_for(context)
        if admission.verdict == "admitted":
            self.limit_tracker.count_running(context.key, uid=uid, pool=pool, requests=requests)
        return admission

    async def _make_plan(self, context: PodContext) -> ForwardingPlan:
        raw = await self.executor.mirror.read_pod(tenant_pod_of(context))
        pod = decode(raw)
        context.pod_document = raw, pod
        pool = context.binding.pool if context.binding is not None else None
        plan = self._plans[context.key] = make_plan(
            pod, tenant=self._scope.tenant, pool=pool, state=tenant_pod_of(context).spec_state, source=pod_digest(raw)
        )
        if plan.governed:
            self._admission.observe_pod(pod, tenant_pod_of(context))
        self._outdated_plans.discard(context.key)
        # References of a refused pod are not copied; a refused pod with a compute pod retains its copies.
        copied = () if plan.refusals and context.compute is None else plan.references
        self.copies.references.set_references(context.key, copied)
        if context.compute is not None:
            self.copies.references.set_cluster(context.key, context.link)
        for reference in copied:
            self._work_queue.enqueue(COPY, reference)
        return plan

    async def _forget_pod(self, key: Key, plan: ForwardingPlan) -> None:
        """Drop the state and the tokens of a deleted tenant pod."""
        self._plans.pop(key, None)
        self._claims.forget_pod(key)
        self._outdated_plans.discard(key)
        for reference in plan.mandatory:
            waiting = self.waiting_pods.get(reference, set())
            waiting.discard(key)
            if not waiting:
                self.waiting_pods.pop(reference, None)
        for reference in self.copies.references.forget_pod(key):
            self.copies.enqueue_unused(reference)
        if plan.tokens:
            for link in list(self._scope.links.values()):
                await self.tokens.delete_secret(link, key, plan.uid)


def _reject_too_large(context: PodContext, plan: ForwardingPlan) -> Admission | None:
    """Return the rejection of a pod that fits on no node of its pool, so that it does not hold capacity of the virtual
    node.
    """
    nodes = context.link.nodes
    if context.binding is None or not nodes.is_complete:
        return None
    rejection = rejection_reason(plan.requests, nodes.nodes_behind(context.binding.pool).largest_sizes)
    return Admission(AdmissionState.REJECTED, *rejection) if rejection is not None else None


def _is_changed(context: PodContext, plan: ForwardingPlan, *, absent: bool) -> bool:
    """Return whether a changed spec is not in the compute cluster yet; waiting pods can be resized, too."""
    tenant_pod = tenant_pod_of(context)
    return plan.state != tenant_pod.spec_state and (
        absent or compute_pod_of(context).forwarded_fingerprint != tenant_pod.fingerprint
    )
