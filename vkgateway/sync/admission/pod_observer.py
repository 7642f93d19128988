"""Observed states of a tenant's governed pods, and verdicts recovered from annotations of compute pods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from vkgateway.arbiter.queueing.admission import Admission, AdmissionState
from vkgateway.arbiter.snapshot import Gang, Pod, PodState, Shape
from vkgateway.model import times
from vkgateway.model.names import (
    ADMISSION_GATE,
    BORROWED_ANNOTATION,
    COMPUTE_NODE_ANNOTATION,
    EVICTION_DEADLINE_ANNOTATION,
    POOL_LABEL,
)
from vkgateway.sync.admission.end_time import ended_at
from vkgateway.sync.admission.member import GangMember, gang_id
from vkgateway.sync.admission.member_state import MemberState
from vkgateway.sync.admission.verdict_store import VerdictStore
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.annotations import BEHIND, EVICTED_FOR, RETAKEN
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import TERMINAL_PHASES, ComputePodView, TenantPodView

_NO_STATE: Final = MemberState()


class Observation(NamedTuple):
    """A member's state at one moment."""

    state: MemberState
    compute_pod: ComputePodView | None
    """The member's compute pod."""
    is_gone: bool
    """Whether neither the tenant pod nor a compute pod exists."""


class PodObserver:
    """Observer of one tenant's governed pods, in the tenant cluster and in the compute clusters."""

    def __init__(self, scope: TenantScope, verdict_store: VerdictStore) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._pods = scope.cache.pods
        self._verdict_store = verdict_store
        self._clock = scope.clock
        self._end_times: dict[str, float] = {}
        """Times at which ended pods were first observed, by UID."""
        self.reverted_pods: dict[str, str] = {}
        """UIDs of compute pods that are being reverted, with the UIDs of their tenant pods."""

    def observe_member(self, member: GangMember) -> Observation:
        """Return the state of a member with its compute pod."""
        tenant_pod, found = self.find_tenant_pod(member), self.find_compute_pod(member)
        if found is not None:
            return Observation(self._state_in_compute(member, tenant_pod, *found), found[0], is_gone=False)
        return Observation(
            self._state_in_tenant(member, tenant_pod),
            None,
            is_gone=tenant_pod is None and not self.is_forwarding(member),
        )

    def member_state(self, member: GangMember) -> MemberState:
        """Return the current state of a member."""
        return self.observe_member(member).state

    def _state_in_tenant(self, member: GangMember, tenant_pod: TenantPodView | None) -> MemberState:
        verdict = self._verdict_store.verdicts.get(member.uid)
        if tenant_pod is None or tenant_pod.is_terminal or tenant_pod.metadata.deletion_timestamp is not None:
            if verdict is not None and self.is_forwarding(member):
                return _terminating_state(_placed_state(verdict, verdict.node), self._clock.time() + member.grace)
            return self._end_state(member, tenant_pod)
        return MemberState(state=PodState.WAITING) if verdict is None else _placed_state(verdict, verdict.node)

    def _end_state(self, member: GangMember, pod: TenantPodView | ComputePodView | None) -> MemberState:
        """Return the final state of a pod. The gateway may observe the end late, so the time in the pod's status
        counts.
        """
        if pod is None or pod.phase not in TERMINAL_PHASES:
            return _NO_STATE
        if member.uid not in self._end_times:
            now = self._clock.time()
            self._end_times[member.uid] = min(now, ended_at(pod.status) or now)
        return MemberState(
            has_succeeded=pod.phase == "Succeeded",
            has_failed=pod.phase == "Failed",
            ended_at=self._end_times[member.uid],
        )

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted pod."""
        self._end_times.pop(uid, None)
        for compute_uid in [each for each, owner in self.reverted_pods.items() if owner == uid]:
            del self.reverted_pods[compute_uid]

    def find_tenant_pod(self, member: GangMember) -> TenantPodView | None:
        """Return the tenant pod of a member."""
        view = self._pods.store.get(member.key)
        return view if view is not None and view.metadata.uid == member.uid else None

    def is_gated(self, member: GangMember) -> bool:
        """Return whether vkgateway's gate is still on a member."""
        view = self.find_tenant_pod(member)
        return view is not None and any(gate.name == ADMISSION_GATE for gate in view.spec.scheduling_gates)

    def find_compute_pod(self, member: GangMember) -> tuple[ComputePodView, ComputeLink] | None:
        """Return the compute pod of a member and its cluster; a reverted compute pod does not count."""
        for pod, link in self.compute_pods_named(member.key):
            if pod.tenant_uid == member.uid and not self._is_reverted(pod):
                return pod, link
        return None

    def compute_pods_named(self, key: Key) -> Iterator[tuple[ComputePodView, ComputeLink]]:
        """Return the compute pods with a tenant pod's name, and their clusters."""
        for link in self._scope.links.values():
            pod = link.pods.find_pod(self._tenant, key)
            if pod is not None:
                yield pod, link

    def placed_compute_pods(self) -> Iterator[ComputePodView]:
        """Return the running compute pods that the arbiter placed."""
        for link in self._scope.links.values():
            for pod in link.pods.of_tenant(self._tenant):
                if is_arbiter_placed(pod) and not pod.has_ended:
                    yield pod

    def has_owner(self, pod: ComputePodView) -> bool:
        """Return whether the tenant pod of a compute pod exists."""
        tenant_pod = self._pods.store.get(pod.tenant_key)
        return tenant_pod is not None and tenant_pod.metadata.uid == pod.tenant_uid

    def _state_in_compute(
        self, member: GangMember, tenant_pod: TenantPodView | None, pod: ComputePodView, link: ComputeLink
    ) -> MemberState:
        if pod.has_ended:
            return self._end_state(member, pod)
        verdict = self._verdict_store.verdicts.get(member.uid)
        if verdict is None:
            verdict = self._verdict_store.verdicts[member.uid] = recover_verdict(pod, link.name)
        observed = _placed_state(verdict, pod.spec.node_name or verdict.node)
        deletion_time = pod.metadata.deletion_timestamp
        if deletion_time is not None:
            return _terminating_state(observed, times.parse_time(deletion_time).timestamp())
        if tenant_pod is None or tenant_pod.is_terminal or tenant_pod.metadata.deletion_timestamp is not None:
            return _terminating_state(observed, self._clock.time() + member.grace)
        return observed

    def is_forwarding(self, member: GangMember) -> bool:
        """Return whether a member's compute pod was just created, and may not be visible yet."""
        return self._scope.created_until.get(member.uid, 0.0) > self._clock.time()

    def _is_reverted(self, pod: ComputePodView) -> bool:
        return pod.metadata.uid in self.reverted_pods or RETAKEN in pod.metadata.annotations


def is_arbiter_placed(pod: ComputePodView) -> bool:
    """Return whether the arbiter placed a compute pod."""
    return COMPUTE_NODE_ANNOTATION in pod.metadata.annotations


def recover_verdict(pod: ComputePodView, cluster: str) -> Admission:
    """Return the verdict that the annotations of a running compute pod record."""
    annotations = pod.metadata.annotations
    deadline = _parse_seconds(annotations.get(EVICTION_DEADLINE_ANNOTATION))
    return Admission(
        verdict=AdmissionState.EVICTING if deadline else AdmissionState.ADMITTED,
        pool=(cluster, pod.metadata.labels.get(POOL_LABEL, "")),
        node=pod.spec.node_name or annotations.get(COMPUTE_NODE_ANNOTATION, ""),
        borrowed=annotations.get(BORROWED_ANNOTATION) != "false",
        since=_parse_seconds(pod.metadata.creation_timestamp),
        deadline=deadline,
        evicted_for=annotations.get(EVICTED_FOR, ""),
        behind=annotations.get(BEHIND, ""),
    )


def ending_gang(tenant: str, pod: ComputePodView, cluster: str, *, now: float) -> Gang:
    """Return a terminating gang for a compute pod whose tenant pod was deleted."""
    verdict = recover_verdict(pod, cluster)
    deletion_time = pod.metadata.deletion_timestamp
    grace = pod.spec.termination_grace_period_seconds
    ending = Pod(
        uid=pod.tenant_uid,
        shape=Shape.from_requests(pod.admitted_requests or {}),
        state=PodState.ENDING,
        pool=verdict.pool,
        node=verdict.node,
        borrowed=bool(verdict.borrowed),
        since=verdict.since,
        deadline=times.parse_time(deletion_time).timestamp() if deletion_time else now + (grace or 0),
    )
    name = gang_id(tenant, f"{pod.tenant_key[0]}/gone/{pod.tenant_uid}")
    return Gang(id=name, tenant=tenant, pods=(ending,), pools=(verdict.pool,))


def _parse_seconds(text: str | None) -> float:
    """Return seconds since the epoch; 0 for a missing or invalid time, as annotations can be edited."""
    try:
        return times.parse_time(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


def _placed_state(verdict: Admission, node: str) -> MemberState:
    evicting = verdict.verdict is AdmissionState.EVICTING
    return MemberState(
        state=PodState.NOTIFIED if evicting else PodState.PLACED,
        pool=verdict.pool,
        node=node,
        borrowed=bool(verdict.borrowed),
        since=verdict.since,
        deadline=verdict.deadline,
        evicted_for=verdict.evicted_for,
        behind=verdict.behind,
    )


def _terminating_state(observed: MemberState, deadline: float) -> MemberState:
    """Return the state of the same pod while it terminates until the deadline."""
    return replace(observed, state=PodState.ENDING, deadline=deadline)
