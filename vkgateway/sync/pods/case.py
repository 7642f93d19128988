"""One pod's case: everything that is known of it, gathered from the stores, and its record for the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from vkgateway.arbiter.facts import PoolKey
from vkgateway.arbiter.limits import Admission
from vkgateway.model.names import COMPUTE_ROOT_CA
from vkgateway.model.objects import Object
from vkgateway.model.requests import Milli, pod_requests
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.copies import Reference
from vkgateway.sync.marks import RETAKEN
from vkgateway.sync.pods import record
from vkgateway.sync.pods.views import ComputePodView, TenantPodView
from vkgateway.sync.storage.users import Claims
from vkgateway.translate.conditions import taken_away
from vkgateway.translate.context import PoolContext, TenantContext
from vkgateway.translate.down import is_scheduled
from vkgateway.translate.gangs.marked import carries_mark
from vkgateway.translate.gangs.training import remade_once_gone
from vkgateway.translate.governed import devices, is_extended
from vkgateway.translate.policy import Refusal, refusals
from vkgateway.translate.references import TokenSource, references


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What a virtual node stands for: a pool of a compute cluster, and the address that the node shows."""

    pool: PoolContext
    link: ComputeLink
    node_ip: str

    @property
    def pool_key(self) -> PoolKey:
        """The pool that it stands for, or for a part of."""
        return self.pool.compute_cluster, self.pool.name

    def has_behind(self, compute_node: str) -> bool:
        """Tell whether a compute node is behind the virtual node, as far as nodes are known."""
        return compute_node in self.link.nodes.behind(self.pool).names


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
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
    requests: Milli
    governed: bool
    """It starts only when the arbiter says so."""
    scheduled: bool
    """A scheduler bound it, rather than somebody who set `nodeName` by hand."""
    refusals: tuple[Refusal, ...]


@dataclass(slots=True, kw_only=True)
class Case:
    """A tenant pod and what stands for it in one compute cluster, as the stores show them now."""

    key: Key
    link: ComputeLink
    tenant: TenantPodView | None
    compute: ComputePodView | None
    binding: Binding | None
    plan: Plan | None = None
    read: tuple[bytes, Object] | None = None
    """The whole pod that the plan was worked out from in this look, as it came and decoded."""
    missing: list[Reference] = field(default_factory=list)
    claims: Claims = field(default_factory=Claims)
    admission: Admission | None = None
    resize: Admission | None = None
    """What limits say of the amounts that a running pod asks for now."""
    resize_refused: bool = False
    """The compute cluster did not take them, and never will."""


def digest(raw: bytes) -> bytes:
    """By which two states of a pod are told apart, whoever made them."""
    return blake2b(raw, digest_size=16).digest()


def make_plan(
    pod: Object, *, tenant: TenantContext, pool: PoolContext | None, state: str = "", source: bytes = b""
) -> Plan:
    """Read a tenant pod's spec for what forwarding it needs and what forbids it."""
    refers = references(pod)
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
    return Plan(
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
        governed=carries_mark(pod) or (any(map(is_extended, requests)) and bool(devices(pod))),
        scheduled=is_scheduled(pod),
        refusals=refusals(pod, tenant=tenant, pool=pool),
    )


def decode(raw: bytes) -> Object:
    """A whole object from its JSON."""
    decoded: Object = msgspec.json.decode(raw)
    return decoded


def tenant_state(view: TenantPodView | None) -> record.TenantPod:
    """The table's word for what the tenant's API server holds."""
    if view is None:
        return record.TenantPod.ABSENT
    deleting = view.metadata.deletion_timestamp is not None
    if view.terminal:
        return record.TenantPod.TERMINAL_DELETING if deleting else record.TenantPod.TERMINAL
    if deleting:
        return record.TenantPod.DELETING
    if view.spec.node_name:
        return record.TenantPod.BOUND
    return record.TenantPod.GATED if view.spec.scheduling_gates else record.TenantPod.UNBOUND


def compute_state(case: Case) -> record.ComputePod:
    """The table's word for what the compute cluster holds, as far as that can be trusted."""
    view = case.compute
    if not case.link.trusted:
        return record.ComputePod.UNKNOWN
    if view is None:
        return record.ComputePod.ABSENT
    if case.tenant is not None and (
        view.tenant_uid != case.tenant.metadata.uid or RETAKEN in view.metadata.annotations
    ):
        return record.ComputePod.STALE
    deleting = view.metadata.deletion_timestamp is not None
    if view.ended:
        return record.ComputePod.TERMINAL_DELETING if deleting else record.ComputePod.TERMINAL
    return record.ComputePod.DELETING if deleting else record.ComputePod.LIVE


def dependency_state(case: Case) -> record.Dependencies:
    """The table's word for what the pod refers to."""
    if case.plan is not None and case.plan.refusals:
        return record.Dependencies.REFUSED
    return record.Dependencies.MISSING if case.missing or case.claims.lacking else record.Dependencies.READY


def admission_state(case: Case) -> record.Admission:
    """The table's word for what the arbiter says."""
    return record.Admission(case.admission.verdict) if case.admission is not None else record.Admission.FREE


def is_taken(view: TenantPodView | None) -> bool:
    """Whether the platform ended the tenant's pod: an eviction, or a deletion in the compute cluster."""
    return view is not None and view.terminal and taken_away(decode(view.status))


def in_the_way(view: TenantPodView | None) -> bool:
    """Whether the controller of a taken pod makes another only once this one does not exist any more."""
    return view is not None and remade_once_gone(view.metadata.labels) and is_taken(view)


def above_of(case: Case) -> TenantPodView:
    """The tenant's pod of a case in which the table has seen one."""
    assert case.tenant is not None
    return case.tenant


def below_of(case: Case) -> ComputePodView:
    """The compute pod of a case in which the table has seen one."""
    assert case.compute is not None
    return case.compute


def plan_of(case: Case) -> Plan:
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
