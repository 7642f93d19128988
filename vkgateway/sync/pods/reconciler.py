"""Brings one tenant's pods, above and below, to where the table says they belong; one pod a call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Protocol

import structlog

from vkgateway.arbiter.queueing.node_limits import Admission, TenantLimits
from vkgateway.kube import errors
from vkgateway.model import times
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.model.names import compute_namespace
from vkgateway.model.objects import Object
from vkgateway.model.requests import MilliResources
from vkgateway.sync.compute.fan_out import apply_to_each
from vkgateway.sync.copies import CopyReconciler
from vkgateway.sync.pods import table
from vkgateway.sync.pods.executor import Executor
from vkgateway.sync.pods.forwarder import OutdatedPlanError
from vkgateway.sync.pods.limit_tracker import LimitTracker
from vkgateway.sync.pods.mirror import FailureDelayedError, clean_message
from vkgateway.sync.pods.pod_context import (
    ForwardingPlan,
    PodContext,
    admission_state,
    blocks_replacement,
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
from vkgateway.sync.refusals import lacks_rights
from vkgateway.sync.storage.claim_users import ClaimUsers
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.tokens import ServiceAccountTokens
from vkgateway.sync.views.ownership import Key, Reference
from vkgateway.sync.views.pods import TenantPodView
from vkgateway.translate.context import TenantContext
from vkgateway.translate.node_sizes import rejection_reason

log = structlog.get_logger(__name__)

_KUBELET_SECONDS: Final = 60.0
"""How long a pod deleted by force below waits for its kubelet to tell how it ended; a lost node's never tells."""
_SERVER_DETAILS: Final = re.compile(r"\w://|\bdial\b|\d{1,3}(?:\.\d{1,3}){3}|\bx509\b")
"""Words of a server about its own troubles: addresses of webhooks and of machines."""
_REQUEUE_SECONDS: Final = 0.2
"""Seconds until a pod is looked at anew that changed while it was looked at."""
_WATCH_LAG_SECONDS: Final = 5.0
"""Seconds until a pod is looked at anyway of which the watch has not shown yet what was written."""
_REPORT_AFTER: Final = 60.0
"""Seconds of trouble after which the tenant is told (design contract: transient failures are visible)."""
_REPORT_TIMEOUT: Final = 5.0


class PodAdmission(Protocol):
    """What is asked about pods that start only when the arbiter says so."""

    def observe_pod(self, pod: Object, view: TenantPodView, *, governed: bool) -> None:
        """The whole of a pod that is bound was read."""

    def is_ordinary(self, view: TenantPodView) -> bool:
        """Whether a pod starts without the arbiter though it carries the mark of a gang."""

    def compute_pod_changed(self, key: Key) -> None:
        """What stands for a pod below came, changed or went, or is not waited for any more."""

    def admission_for(self, case: PodContext) -> Admission:
        """What is said of a pod that is not below yet."""

    def running_admission(self, case: PodContext) -> Admission:
        """What is said of one that is."""


class PodReconciler:
    """One tenant's pods; copies that they refer to are freshened, and left when nobody refers to them."""

    def __init__(
        self,
        tenant: TenantContext,
        shared: TenantScope,
        *,
        hands: Executor,
        copies: CopyReconciler,
        tokens: ServiceAccountTokens,
        claims: ClaimUsers,
        arbiter: PodAdmission,
    ) -> None:
        self.tenant = tenant
        self.pods = shared.cache.pods
        self.links = shared.links
        self.bindings = shared.bindings
        self.executor = hands
        self.copies = copies
        self.tokens = tokens
        self._claims = claims
        self._admission = arbiter
        self._work_queue = shared.work_queue
        self._limit_tracker = LimitTracker(tenant.name, TenantLimits(), wake=self._work_queue.enqueue_pod)
        self._clock = shared.clock
        self._plans: dict[Key, ForwardingPlan] = {}
        self._outdated_plans: set[Key] = set()
        self._failing_since: dict[Key, float] = {}
        self.waiting_pods: dict[Reference, set[Key]] = {}
        """Pods that wait for an object which is not there yet."""

    def forget_plans(self) -> None:
        """Work plans out anew before anything is created by them: the tenant's policy has changed.

        Pods that are below already keep theirs, of which only what forbids a pod can have changed.
        """
        self._outdated_plans = set(self._plans)

    def set_limit(self, pool: str, limit: MilliResources) -> list[Key]:
        """Set what may be used of a pool; returns the pods that were held there."""
        return self._limit_tracker.set_limit(pool, limit)

    def _pool_of(self, node: str) -> str:
        """Return the name of the pool that a virtual node belongs to."""
        binding = self.bindings.get(node)
        return binding.pool.pool_name if binding is not None else node

    async def reconcile(self, key: Key) -> None:
        """Look at one pod and do what follows; raises `errors.ApiError` where that must be tried again."""
        view = self.pods.store.get(key)
        known = self._plans.get(key)
        if known is not None and (view is None or view.metadata.uid != known.uid):
            await self._forget_pod(key, known)
        created = self.executor.forwarder.created_until
        left = self._limit_tracker.update_running(key, view, self.links.values(), created=created, now=self._clock())
        if left is not None:
            self._work_queue.enqueue_pod(key, left)
        if view is None:
            self._admission.compute_pod_changed(key)

        async def settle(case: PodContext) -> None:
            try:
                await self._reconcile_context(case)
            except (errors.ApiError, ConflictError, UnavailableError) as error:
                await self._report_failure(case, error)
                raise

        await apply_to_each(self._pod_contexts(key, view), settle)
        self._failing_since.pop(key, None)

    def _pod_contexts(self, key: Key, view: TenantPodView | None) -> Iterable[PodContext]:
        """The pod in the cluster where it belongs, and whatever else stands under its name in the others."""
        binding = self.bindings.get(view.spec.node_name) if view is not None else None
        for link in list(self.links.values()):
            below = link.pods.find_pod(self.tenant.name, key)
            bound_here = binding is not None and binding.link is link
            is_its = below is not None and view is not None and below.tenant_uid == view.metadata.uid
            if bound_here or is_its:
                yield PodContext(key=key, link=link, tenant=view, compute=below, binding=binding)
            elif below is not None:
                yield PodContext(key=key, link=link, tenant=None, compute=below, binding=None)

    async def _reconcile_context(self, case: PodContext) -> None:
        record = await self._build_record(case)
        refused: errors.ApiError | None = None
        for instruction in table.find_instructions(record):
            try:
                await self.executor.execute_instruction(instruction, case)
            except OutdatedPlanError:
                self._outdated_plans.add(case.key)
                self._work_queue.enqueue_pod(case.key, _REQUEUE_SECONDS)
                return
            except FailureDelayedError:
                return
            except errors.ApiError as error:
                # The tenant's own webhooks may refuse a status. What goes down does not wait for that.
                if instruction is not Instruction.STATUS_UP or error.is_transient:
                    raise
                refused = error
        if case.resize_refused:
            self._count_current_size(case)
        if refused is not None:
            raise refused

    def _count_current_size(self, case: PodContext) -> None:
        """Count the pod with what it has below, which it keeps."""
        above, requests = tenant_pod_of(case), compute_pod_of(case).admitted_requests
        if requests is not None:
            self._limit_tracker.resize_pod(above.metadata.uid, self._pool_of(above.spec.node_name), requests)

    async def _build_record(self, case: PodContext) -> Record:
        """Reduce a case to its record; what a state does not need is not looked up."""
        above, below = tenant_state(case.tenant), self._compute_state(case)
        if above is TenantPodState.BOUND and below in (ComputePodState.ABSENT, ComputePodState.LIVE):
            await self._prepare_bound(case, absent=below is ComputePodState.ABSENT)
            if case.claims.is_early:
                below = ComputePodState.UNKNOWN
        return Record(
            tenant=above,
            compute=below,
            dependencies=dependency_state(case),
            admission=admission_state(case),
            has_run=case.tenant is not None and case.tenant.has_run,
            ended_by_platform=is_ended_by_platform(case.tenant),
            blocks_replacement=blocks_replacement(case.tenant),
            list_complete=self.pods.is_complete,
        )

    def _compute_state(self, case: PodContext) -> ComputePodState:
        """What the stores show, and what we know beyond them: pods created a moment ago, and names that are taken."""
        state = compute_state(case)
        if state is ComputePodState.DELETING and self._is_abandoned(case):
            state = ComputePodState.TERMINAL_DELETING
        if case.tenant is None:
            return state
        uid = case.tenant.metadata.uid
        if state is not ComputePodState.ABSENT:
            self.executor.forwarder.created_until.pop(uid, None)
            return state
        if self.executor.mirror.is_watch_behind(case.tenant.metadata):
            # It may have ended, and that was told; the watch has it looked at again.
            self._work_queue.enqueue_pod(case.key, _WATCH_LAG_SECONDS)
            return ComputePodState.UNKNOWN
        now = self._clock()
        if self.executor.forwarder.created_until.get(uid, 0.0) > now:
            return ComputePodState.UNKNOWN
        if self.executor.forwarder.name_taken_until.get(uid, 0.0) > now:
            return ComputePodState.FOREIGN
        return state

    def _is_abandoned(self, case: PodContext) -> bool:
        """Whether a pod was deleted by force below and no kubelet has ended it since: only our finalizer holds it."""
        metadata = compute_pod_of(case).metadata
        if metadata.deletion_grace_period_seconds != 0 or metadata.deletion_timestamp is None:
            return False
        left = times.parse_time(metadata.deletion_timestamp).timestamp() + _KUBELET_SECONDS - self._clock()
        if left > 0:
            self._work_queue.enqueue_pod(case.key, left)
        return left <= 0

    async def _prepare_bound(self, case: PodContext, *, absent: bool) -> None:
        """Work out the pod's plan, what it misses and whether it is admitted."""
        assert case.tenant is not None
        uid = case.tenant.metadata.uid
        plan = case.plan = self._plans.get(case.key)
        if plan is None or (absent and case.key in self._outdated_plans) or self._is_changed(case, plan, absent=absent):
            old, plan = plan, await self._make_plan(case)
            case.plan = plan
            if absent and old is not None and old.requests != plan.requests:
                self._limit_tracker.release_pending(case.key, uid)
        if plan.governed and self._admission.is_ordinary(case.tenant):
            case.plan = plan = replace(plan, governed=False)
        if not absent:
            pool = self._pool_of(case.tenant.spec.node_name)
            self._limit_tracker.count_running(case.key, uid=uid, pool=pool, requests=plan.requests)
            if compute_pod_of(case).forwarded_fingerprint != case.tenant.fingerprint:
                case.resize_admission = self._limit_tracker.resize_pod(uid, pool, plan.requests)
            if plan.governed:
                case.admission = self._admission.running_admission(case)
            return
        case.missing_references = [
            reference for reference in plan.mandatory if not self.copies.source_exists(reference)
        ]
        for reference in case.missing_references:
            self.waiting_pods.setdefault(reference, set()).add(case.key)
        if plan.refusals or case.missing_references:
            return
        case.claims = self._claims.find_claims(case.key, plan.claims, case.link)
        if case.claims.unready:
            return
        case.admission = self._admit_pod(case, plan)

    def _admit_pod(self, case: PodContext, plan: ForwardingPlan) -> Admission:
        """What is said of a pod that is not below yet: by its tenant's limits, and by the arbiter if it governs it."""
        above = tenant_pod_of(case)
        uid, pool, requests = above.metadata.uid, self._pool_of(above.spec.node_name), plan.requests
        # Before the compute nodes are known, nobody can say what a virtual node lacks.
        by_hand = not plan.scheduled and case.link.nodes.is_complete
        if (by_hand or not plan.governed) and (too_large := _reject_too_large(case, plan)) is not None:
            self._limit_tracker.release_pending(case.key, uid)
            return too_large
        if not plan.governed:
            return self._limit_tracker.admit_pod(
                case.key, case.link, uid=uid, pool=pool, requests=requests, by_hand=by_hand
            )
        if by_hand:
            rejected = self._limit_tracker.admit_manual(case.key, case.link, uid=uid, pool=pool, requests=requests)
            if rejected is not None:
                return rejected
        admission = self._admission.admission_for(case)
        if admission.verdict == "admitted":
            self._limit_tracker.count_running(case.key, uid=uid, pool=pool, requests=requests)
        return admission

    @staticmethod
    def _is_changed(case: PodContext, plan: ForwardingPlan, *, absent: bool) -> bool:
        """Whether a pod's spec was changed and that is not below yet: pods can be resized while they wait, too."""
        above = tenant_pod_of(case)
        return plan.state != above.spec_state and (
            absent or compute_pod_of(case).forwarded_fingerprint != above.fingerprint
        )

    async def _make_plan(self, case: PodContext) -> ForwardingPlan:
        raw = await self.executor.mirror.read_pod(tenant_pod_of(case))
        whole = decode(raw)
        case.pod_document = raw, whole
        pool = case.binding.pool if case.binding is not None else None
        plan = self._plans[case.key] = make_plan(
            whole, tenant=self.tenant, pool=pool, state=tenant_pod_of(case).spec_state, source=pod_digest(raw)
        )
        self._admission.observe_pod(whole, tenant_pod_of(case), governed=plan.governed)
        self._outdated_plans.discard(case.key)
        # What a refused pod refers to stays above; one that is below already keeps what it has.
        referred = () if plan.refusals and case.compute is None else plan.references
        self.copies.set_references(case.key, referred)
        if case.compute is not None:
            self.copies.set_cluster(case.key, case.link)
        for reference in referred:
            self._work_queue.enqueue_copy(reference)
        return plan

    async def _forget_pod(self, key: Key, plan: ForwardingPlan) -> None:
        """The pod is gone above: drop what was made for it alone."""
        self._plans.pop(key, None)
        self._claims.forget_pod(key)
        self._outdated_plans.discard(key)
        for reference in plan.mandatory:
            waiting = self.waiting_pods.get(reference, set())
            waiting.discard(key)
            if not waiting:
                self.waiting_pods.pop(reference, None)
        for reference in self.copies.forget_pod(key):
            self._work_queue.enqueue_unused_copy(reference)
        if plan.tokens:
            for link in list(self.links.values()):
                await self.tokens.delete_secret(link, key, plan.uid)

    async def _report_failure(self, case: PodContext, error: Exception) -> None:
        """Note trouble with a pod; once it has lasted, tell the tenant of it."""
        since = self._failing_since.setdefault(case.key, self._clock())
        waited = self._clock() - since >= _REPORT_AFTER
        if case.tenant is None or case.tenant.is_terminal or not waited:
            return
        try:
            said = clean_message(
                case, _error_message(error), namespace=compute_namespace(self.tenant.name, case.key[0])
            )
            # Where it is the tenant's own server that does not answer, telling it must not hold the worker as well.
            async with asyncio.timeout(_REPORT_TIMEOUT):
                await self.executor.mirror.report_waiting(case, "ForwardingDelayed", said)
        except (errors.ApiError, TimeoutError) as second:
            log.warning("cannot tell of a delay", tenant=self.tenant.name, pod="/".join(case.key), error=str(second))


def _reject_too_large(case: PodContext, plan: ForwardingPlan) -> Admission | None:
    """Return the rejection of a pod that no machine of its pool can take: it must not hold the virtual node's sums."""
    nodes = case.link.nodes
    if case.binding is None or not nodes.is_complete:
        return None
    found = rejection_reason(plan.requests, nodes.nodes_behind(case.binding.pool).largest_sizes)
    return Admission("rejected", *found) if found is not None else None


def _error_message(error: Exception) -> str:
    """What a tenant may know of trouble: not which server was asked for what."""
    if isinstance(error, errors.Unreachable):
        return "a server does not answer; it is tried again"
    if isinstance(error, errors.ServerError) and _SERVER_DETAILS.search(error.server_message):
        return f"a server failed ({error.status}); it is tried again"
    if lacks_rights(error):
        return "a server does not let the gateway do that now; it is tried again"
    return error.server_message if isinstance(error, errors.ApiError) else str(error)
