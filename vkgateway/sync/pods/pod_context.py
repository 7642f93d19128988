"""Context of one pod: its state from the stores, and the table's states for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from vkgateway.arbiter.queueing.admission import Admission, AdmissionState
from vkgateway.model.names import COMPUTE_ROOT_CA
from vkgateway.model.objects import Object
from vkgateway.model.requests import MilliResources, device_requests, is_extended, pod_requests
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.pods import record
from vkgateway.sync.storage.claim_users import PodClaims
from vkgateway.sync.tenant_scope import VirtualNodeBinding
from vkgateway.sync.views.annotations import RETAKEN
from vkgateway.sync.views.ownership import Key, Reference
from vkgateway.sync.views.pods import ComputePodView, TenantPodView
from vkgateway.translate.conditions import is_disrupted
from vkgateway.translate.context import PoolContext, TenantContext
from vkgateway.translate.gangs.mark_detection import has_mark
from vkgateway.translate.pod_references import TokenSource, find_references
from vkgateway.translate.policy import Refusal, find_refusals
from vkgateway.translate.to_compute import is_scheduled


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


def decode(raw: bytes) -> Object:
    """Return a complete object from its JSON."""
    decoded: Object = msgspec.json.decode(raw)
    return decoded


def tenant_state(view: TenantPodView | None) -> record.TenantPodState:
    """Return the table's state of the tenant pod."""
    if view is None:
        return record.TenantPodState.ABSENT
    deleting = view.metadata.deletion_timestamp is not None
    if view.is_terminal:
        return record.TenantPodState.TERMINAL_DELETING if deleting else record.TenantPodState.TERMINAL
    if deleting:
        return record.TenantPodState.DELETING
    if view.spec.node_name:
        return record.TenantPodState.BOUND
    return record.TenantPodState.GATED if view.spec.scheduling_gates else record.TenantPodState.UNBOUND


def compute_state(context: PodContext) -> record.ComputePodState:
    """Return the table's state of the compute pod, as far as the cluster can be trusted."""
    view = context.compute
    if not context.link.is_trusted:
        return record.ComputePodState.UNKNOWN
    if view is None:
        return record.ComputePodState.ABSENT
    if context.tenant is not None and (
        view.tenant_uid != context.tenant.metadata.uid or RETAKEN in view.metadata.annotations
    ):
        return record.ComputePodState.STALE
    deleting = view.metadata.deletion_timestamp is not None
    if view.has_ended:
        return record.ComputePodState.TERMINAL_DELETING if deleting else record.ComputePodState.TERMINAL
    return record.ComputePodState.DELETING if deleting else record.ComputePodState.LIVE


def dependency_state(context: PodContext) -> record.DependencyState:
    """Return the table's state of the objects that the pod refers to."""
    if context.plan is not None and context.plan.refusals:
        return record.DependencyState.REFUSED
    return (
        record.DependencyState.MISSING
        if context.missing_references or context.claims.unready
        else record.DependencyState.READY
    )


def admission_state(context: PodContext) -> AdmissionState:
    """Return the table's state of the pod's admission."""
    return context.admission.verdict if context.admission is not None else AdmissionState.FREE


def is_ended_by_platform(view: TenantPodView | None) -> bool:
    """Return whether the platform ended the tenant pod by an eviction or a deletion in the compute cluster."""
    return view is not None and view.is_terminal and is_disrupted(decode(view.status))


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
