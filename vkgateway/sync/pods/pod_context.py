"""One pod's case: everything that is known of it, gathered from the stores, and its record for the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from vkgateway.arbiter.queueing.node_limits import Admission
from vkgateway.model.names import COMPUTE_ROOT_CA
from vkgateway.model.objects import Object
from vkgateway.model.requests import MilliResources, pod_requests
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.node_binding import VirtualNodeBinding
from vkgateway.sync.pods import record
from vkgateway.sync.storage.claim_users import PodClaims
from vkgateway.sync.views.annotations import RETAKEN
from vkgateway.sync.views.ownership import Key, Reference
from vkgateway.sync.views.pods import ComputePodView, TenantPodView
from vkgateway.translate.conditions import is_disrupted
from vkgateway.translate.context import PoolContext, TenantContext
from vkgateway.translate.gangs.mark_detection import has_mark
from vkgateway.translate.gangs.training_jobs import is_recreated_after_deletion
from vkgateway.translate.governed import device_requests, is_extended
from vkgateway.translate.pod_references import TokenSource, find_references
from vkgateway.translate.policy import Refusal, find_refusals
from vkgateway.translate.to_compute import is_scheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardingPlan:
    """What a pod's spec means for forwarding it; worked out once, and anew where the spec of a running pod changes."""

    uid: str
    state: str
    """The state of the spec that it was worked out from: `TenantPodView.spec_state`."""
    source: bytes
    """A digest of the whole pod that it was worked out from."""
    references: tuple[Reference, ...]
    mandatory: tuple[Reference, ...]
    optional: tuple[Reference, ...]
    """References without which the pod starts all the same."""
    tokens: tuple[TokenSource, ...]
    claims: tuple[str, ...]
    """Names of the claims that its volumes are from."""
    service_account: str
    requests: MilliResources
    governed: bool
    """It starts only when the arbiter says so."""
    scheduled: bool
    """A scheduler bound it, rather than somebody who set `nodeName` by hand."""
    refusals: tuple[Refusal, ...]


@dataclass(slots=True, kw_only=True)
class PodContext:
    """A tenant pod and what stands for it in one compute cluster, as the stores show them now."""

    key: Key
    link: ComputeLink
    tenant: TenantPodView | None
    compute: ComputePodView | None
    binding: VirtualNodeBinding | None
    plan: ForwardingPlan | None = None
    pod_document: tuple[bytes, Object] | None = None
    """The whole pod that the plan was worked out from in this look, as it came and decoded."""
    missing_references: list[Reference] = field(default_factory=list)
    claims: PodClaims = field(default_factory=PodClaims)
    admission: Admission | None = None
    resize_admission: Admission | None = None
    """What limits say of the amounts that a running pod asks for now."""
    resize_refused: bool = False
    """The compute cluster did not take them, and never will."""


def pod_digest(raw: bytes) -> bytes:
    """By which two states of a pod are told apart, whoever made them."""
    return blake2b(raw, digest_size=16).digest()


def make_plan(
    pod: Object, *, tenant: TenantContext, pool: PoolContext | None, state: str = "", source: bytes = b""
) -> ForwardingPlan:
    """Read a tenant pod's spec for what forwarding it needs and what forbids it."""
    refers = find_references(pod)
    namespace = pod["metadata"]["namespace"]
    # Refused, but for that a copy of it would stand in the place of the tenant's root certificate.
    config_maps = {name: optional for name, optional in refers.config_maps.items() if name != COMPUTE_ROOT_CA}
    everything: list[Reference] = [("configmaps", namespace, name) for name in config_maps]
    everything += [("secrets", namespace, name) for name in refers.secrets]
    mandatory: list[Reference] = [
        ("configmaps", namespace, name) for name, optional in config_maps.items() if not optional
    ]
    mandatory += [("secrets", namespace, name) for name, optional in refers.secrets.items() if not optional]
    requests = pod_requests(pod)
    return ForwardingPlan(
        uid=pod["metadata"]["uid"],
        state=state,
        source=source,
        references=tuple(everything),
        mandatory=tuple(mandatory),
        optional=tuple(reference for reference in everything if reference not in mandatory),
        tokens=refers.tokens,
        claims=refers.claims,
        service_account=pod["spec"].get("serviceAccountName") or "default",
        requests=requests,
        # Most pods ask for no device: those are not summed up a second time.
        governed=has_mark(pod) or (any(map(is_extended, requests)) and bool(device_requests(pod))),
        scheduled=is_scheduled(pod),
        refusals=find_refusals(pod, tenant=tenant, pool=pool),
    )


def decode(raw: bytes) -> Object:
    """A whole object from its JSON."""
    decoded: Object = msgspec.json.decode(raw)
    return decoded


def tenant_state(view: TenantPodView | None) -> record.TenantPodState:
    """The table's word for what the tenant's API server holds."""
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


def compute_state(case: PodContext) -> record.ComputePodState:
    """The table's word for what the compute cluster holds, as far as that can be trusted."""
    view = case.compute
    if not case.link.is_trusted:
        return record.ComputePodState.UNKNOWN
    if view is None:
        return record.ComputePodState.ABSENT
    if case.tenant is not None and (
        view.tenant_uid != case.tenant.metadata.uid or RETAKEN in view.metadata.annotations
    ):
        return record.ComputePodState.STALE
    deleting = view.metadata.deletion_timestamp is not None
    if view.has_ended:
        return record.ComputePodState.TERMINAL_DELETING if deleting else record.ComputePodState.TERMINAL
    return record.ComputePodState.DELETING if deleting else record.ComputePodState.LIVE


def dependency_state(case: PodContext) -> record.DependencyState:
    """The table's word for what the pod refers to."""
    if case.plan is not None and case.plan.refusals:
        return record.DependencyState.REFUSED
    return (
        record.DependencyState.MISSING
        if case.missing_references or case.claims.unready
        else record.DependencyState.READY
    )


def admission_state(case: PodContext) -> record.AdmissionState:
    """The table's word for what the arbiter says."""
    return record.AdmissionState(case.admission.verdict) if case.admission is not None else record.AdmissionState.FREE


def is_ended_by_platform(view: TenantPodView | None) -> bool:
    """Whether the platform ended the tenant's pod: an eviction, or a deletion in the compute cluster."""
    return view is not None and view.is_terminal and is_disrupted(decode(view.status))


def blocks_replacement(view: TenantPodView | None) -> bool:
    """Whether the controller of a taken pod makes another only once this one does not exist any more."""
    return view is not None and is_recreated_after_deletion(view.metadata.labels) and is_ended_by_platform(view)


def tenant_pod_of(case: PodContext) -> TenantPodView:
    """The tenant's pod of a case in which the table has seen one."""
    assert case.tenant is not None
    return case.tenant


def compute_pod_of(case: PodContext) -> ComputePodView:
    """The compute pod of a case in which the table has seen one."""
    assert case.compute is not None
    return case.compute


def plan_of(case: PodContext) -> ForwardingPlan:
    """The plan of a case that was prepared."""
    assert case.plan is not None
    return case.plan


def as_object(view: ComputePodView) -> Object:
    """The part of a compute pod that the translation upward looks at."""
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
