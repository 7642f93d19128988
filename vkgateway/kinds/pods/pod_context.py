"""Context of one pod: its views, its plan, and its preparation: what it lacks, and whether it may start."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from vkgateway.api.names import COMPUTE_ROOT_CA
from vkgateway.api.objects import Object
from vkgateway.api.requests import MilliResources, device_requests, is_extended, pod_requests
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.node_sizes import rejection_reason
from vkgateway.kinds.configs.reconciler import COPY, CopyReconciler
from vkgateway.kinds.context import PoolContext, TenantContext
from vkgateway.kinds.pods.limit_tracker import LimitTracker
from vkgateway.kinds.pods.policy.rules import Refusal, find_refusals
from vkgateway.kinds.pods.translation.pod_references import TokenSource, find_references
from vkgateway.kinds.pods.translation.to_compute import is_scheduled
from vkgateway.kinds.tenant_scope import TenantScope, VirtualNodeBinding
from vkgateway.kinds.tokens.reconciler import ServiceAccountTokens
from vkgateway.kinds.volumes.claim_users import ClaimUsers, PodClaims
from vkgateway.runtime.requests import POD
from vkgateway.runtime.views.ownership import Key, Reference
from vkgateway.runtime.views.pods import ComputePodView, TenantPodView
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.gangs.mark_detection import has_mark

if TYPE_CHECKING:
    from vkgateway.kinds.pods.mirror import PodMirror
    from vkgateway.scheduler.service.controller import AdmissionController


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardingPlan:
    """Requirements and policy violations of a pod's spec; computed once, and again if the spec of a running pod
    changes.
    """

    uid: str
    state: str
    """State of the spec that the plan was computed from: `TenantPodView.spec_state`."""
    source: bytes
    """Digest of the complete pod that the plan was computed from."""
    references: tuple[Reference, ...]
    mandatory: tuple[Reference, ...]
    optional: tuple[Reference, ...]
    """References to objects without which the pod starts."""
    tokens: tuple[TokenSource, ...]
    claims: tuple[str, ...]
    """Names of the claims that its volumes use."""
    service_account: str
    requests: MilliResources
    governed: bool
    """Whether the pod starts only after the arbiter has admitted it."""
    scheduled: bool
    """Whether a scheduler bound the pod, as opposed to a manually set `nodeName`."""
    refusals: tuple[Refusal, ...]


@dataclass(slots=True, kw_only=True)
class PodContext:
    """Tenant pod and its compute pod in one compute cluster, as the stores show them now."""

    key: Key
    link: ComputeLink
    tenant: TenantPodView | None
    compute: ComputePodView | None
    binding: VirtualNodeBinding | None
    plan: ForwardingPlan | None = None
    pod_document: tuple[bytes, Object] | None = None
    """Complete pod that the plan was computed from in this reconciliation, raw and decoded."""
    missing_references: list[Reference] = field(default_factory=list)
    claims: PodClaims = field(default_factory=PodClaims)
    admission: Admission | None = None
    resize_admission: Admission | None = None
    """Decision about the current requests of a running pod."""
    resize_refused: bool = False
    """Whether the compute cluster has refused the current requests for good."""


def pod_digest(raw: bytes) -> bytes:
    """Return a digest that differs for any two states of a pod."""
    return blake2b(raw, digest_size=16).digest()


def make_plan(
    pod: Object, *, tenant: TenantContext, pool: PoolContext | None, state: str = "", source: bytes = b""
) -> ForwardingPlan:
    """Return the references, requests and policy violations of a tenant pod's spec."""
    references = find_references(pod)
    namespace = pod["metadata"]["namespace"]
    # This name is refused anyway, and a copy of it would replace the tenant's root certificate.
    config_maps = {name: optional for name, optional in references.config_maps.items() if name != COMPUTE_ROOT_CA}
    copied: list[Reference] = [("configmaps", namespace, name) for name in config_maps]
    copied += [("secrets", namespace, name) for name in references.secrets]
    mandatory: list[Reference] = [
        ("configmaps", namespace, name) for name, optional in config_maps.items() if not optional
    ]
    mandatory += [("secrets", namespace, name) for name, optional in references.secrets.items() if not optional]
    requests = pod_requests(pod)
    return ForwardingPlan(
        uid=pod["metadata"]["uid"],
        state=state,
        source=source,
        references=tuple(copied),
        mandatory=tuple(mandatory),
        optional=tuple(reference for reference in copied if reference not in mandatory),
        tokens=references.tokens,
        claims=references.claims,
        service_account=pod["spec"].get("serviceAccountName") or "default",
        requests=requests,
        # Most pods request no device; the first check avoids a second summation.
        governed=has_mark(pod) or (any(map(is_extended, requests)) and bool(device_requests(pod))),
        scheduled=is_scheduled(pod),
        refusals=find_refusals(pod, tenant=tenant, pool=pool),
    )


def tenant_pod_of(context: PodContext) -> TenantPodView:
    """Return the tenant pod; the table has seen one."""
    assert context.tenant is not None
    return context.tenant


def compute_pod_of(context: PodContext) -> ComputePodView:
    """Return the compute pod; the table has seen one."""
    assert context.compute is not None
    return context.compute


def plan_of(context: PodContext) -> ForwardingPlan:
    """Return the plan of a prepared context."""
    assert context.plan is not None
    return context.plan


def as_object(view: ComputePodView) -> Object:
    """Return the part of a compute pod that mirroring reads."""
    metadata = view.metadata
    return {
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "annotations": metadata.annotations,
            "deletionTimestamp": metadata.deletion_timestamp,
        },
        "spec": {"nodeName": view.spec.node_name},
        "status": msgspec.json.decode(view.status),
    }


def decode(raw: bytes) -> Object:
    """Return a complete object from its JSON."""
    decoded: Object = msgspec.json.decode(raw)
    return decoded


class PodPreparer:
    """Preparer of one tenant's pods: it keeps their plans, and decides with limits and arbiter whether a pod may start.

    It also enqueues the copies that pods refer to, and unused ones.
    """

    def __init__(
        self,
        scope: TenantScope,
        mirror: PodMirror,
        *,
        copies: CopyReconciler,
        tokens: ServiceAccountTokens,
        claims: ClaimUsers,
        admission: AdmissionController,
    ) -> None:
        self._scope = scope
        self._mirror = mirror
        self._copies = copies
        self._tokens = tokens
        self._claims = claims
        self._admission = admission
        self._work_queue = scope.work_queue
        self.limit_tracker = LimitTracker(scope)
        self._plans: dict[Key, ForwardingPlan] = {}
        self._outdated_plans: set[Key] = set()
        self._waiting_pods: dict[Reference, set[Key]] = {}
        """Pods that wait for a missing object."""

    def outdate_plans(self) -> None:
        """Compute all plans again before pods are created from them, because the tenant's policy has changed.

        Pods with a compute pod retain theirs: only the policy violations can have changed.
        """
        self._outdated_plans = set(self._plans)

    def outdate_plan(self, key: Key) -> None:
        """Compute the plan of a pod again, which has changed since."""
        self._outdated_plans.add(key)

    def source_changed(self, reference: Reference) -> None:
        """Reconcile the pods that wait for an object of the tenant."""
        for key in self._waiting_pods.pop(reference, ()):
            self._work_queue.enqueue(POD, key)

    async def prepare_bound(self, context: PodContext, *, absent: bool) -> None:
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
                context.admission = self._admission.admission_of(context)
            return
        context.missing_references = [
            reference for reference in plan.mandatory if not self._copies.source_exists(reference)
        ]
        for reference in context.missing_references:
            self._waiting_pods.setdefault(reference, set()).add(context.key)
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
        admission = self._admission.admission_of(context)
        if admission.verdict == "admitted":
            self.limit_tracker.count_running(context.key, uid=uid, pool=pool, requests=requests)
        return admission

    async def _make_plan(self, context: PodContext) -> ForwardingPlan:
        raw = await self._mirror.read_pod(tenant_pod_of(context))
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
        self._copies.references.set_references(context.key, copied)
        if context.compute is not None:
            self._copies.references.set_cluster(context.key, context.link)
        for reference in copied:
            self._work_queue.enqueue(COPY, reference)
        return plan

    async def forget_replaced(self, key: Key, view: TenantPodView | None) -> None:
        """Drop the state and the tokens of an earlier pod of a name, which was deleted."""
        plan = self._plans.get(key)
        if plan is None or (view is not None and view.metadata.uid == plan.uid):
            return
        self._plans.pop(key, None)
        self._claims.forget_pod(key)
        self._outdated_plans.discard(key)
        for reference in plan.mandatory:
            waiting = self._waiting_pods.get(reference, set())
            waiting.discard(key)
            if not waiting:
                self._waiting_pods.pop(reference, None)
        for reference in self._copies.references.forget_pod(key):
            self._copies.enqueue_unused(reference)
        if plan.tokens:
            for link in list(self._scope.links.values()):
                await self._tokens.delete_secret(link, key, plan.uid)


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
