"""Observed states of a tenant's governed pods, in the tenant cluster and in the compute clusters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from vkgateway.api import times
from vkgateway.api.names import ADMISSION_GATE, SCHEDULING_MODE
from vkgateway.api.objects import TERMINAL_PHASES, Condition, find_condition, is_condition_true
from vkgateway.api.types import EXTERNAL
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.pods.translation.conditions import DELETED_IN_COMPUTE, DISRUPTION_CONDITION
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube.clock import Clock
from vkgateway.runtime.views.annotations import EVICTED, GANG, RETAKEN
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import ComputePodView, TenantPodView
from vkgateway.scheduler.backends.breaches import Eviction
from vkgateway.scheduler.core.queueing.admission import Admission
from vkgateway.scheduler.core.snapshot import PodState
from vkgateway.scheduler.service.member import NO_STATE, GangMember, MemberState
from vkgateway.scheduler.service.verdict_store import VerdictStore, is_arbiter_placed


class Observation(NamedTuple):
    """A member's state at one moment."""

    state: MemberState
    compute_pod: ComputePodView | None
    """The member's compute pod."""
    is_gone: bool
    """Whether neither the tenant pod nor a compute pod exists."""


class UnboundPods:
    """Compute pods of one tenant that no node has accepted yet.

    The gateway's clock counts: that of the compute cluster may differ.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, tuple[str, float]] = {}
        """By the UID of the tenant pod: the UID of its compute pod, and since when it is seen without a node."""
        self.reverted: dict[str, str] = {}
        """UIDs of compute pods that are being reverted, with the UIDs of their tenant pods."""

    def seen_since(self, uid: str, compute_uid: str) -> float:
        """Return since when a compute pod is seen without a node; now, if it was not seen before."""
        known = self._since.get(uid)
        if known is None or known[0] != compute_uid:
            known = self._since[uid] = compute_uid, self._clock.time()
        return known[1]

    def mark_reverted(self, uid: str, compute_uid: str) -> bool:
        """Record that a compute pod is removed because no node accepted it. Return False if that is known."""
        is_new = compute_uid not in self.reverted
        self.reverted[compute_uid] = uid
        return is_new

    def mark_bound(self, uid: str, compute_uid: str) -> bool:
        """Record that a node accepted a compute pod. Return whether the compute pod was being reverted."""
        self._since.pop(uid, None)
        return self.reverted.pop(compute_uid, None) is not None

    def is_reverted(self, pod: ComputePodView) -> bool:
        """Return whether a compute pod is being reverted."""
        return pod.metadata.uid in self.reverted or RETAKEN in pod.metadata.annotations

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted tenant pod."""
        self._since.pop(uid, None)
        for compute_uid in [each for each, owner in self.reverted.items() if owner == uid]:
            del self.reverted[compute_uid]


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
        self.unbound = UnboundPods(scope.clock)
        self.scheduler_evictions = SchedulerEvictions()
        self.last_states: dict[str, MemberState] = {}
        """State of each member when it was last recorded."""

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

    def record_state(self, member: GangMember) -> None:
        """Record the current state, after the member was read or the verdict on it changed."""
        self.last_states[member.uid] = self.member_state(member)

    def _state_in_tenant(self, member: GangMember, tenant_pod: TenantPodView | None) -> MemberState:
        verdict = self._verdict_store.verdicts.get(member.uid)
        if tenant_pod is None or tenant_pod.is_terminal or tenant_pod.metadata.deletion_timestamp is not None:
            if tenant_pod is not None and tenant_pod.phase == "Failed":
                self.scheduler_evictions.observe_end(member, tenant_pod)
            if verdict is not None and self.is_forwarding(member):
                return _terminating_state(verdict, verdict.node, self._clock.time() + member.grace)
            return self._end_state(member, tenant_pod)
        return MemberState(state=PodState.WAITING) if verdict is None else _placed_state(verdict, verdict.node)

    def _end_state(self, member: GangMember, pod: TenantPodView | ComputePodView | None) -> MemberState:
        """Return the final state of a pod. The gateway may observe the end late, so the time in the pod's status
        counts.
        """
        if pod is None or pod.phase not in TERMINAL_PHASES:
            return NO_STATE
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
        self.last_states.pop(uid, None)
        self.scheduler_evictions.forget_pod(uid)
        self.unbound.forget_pod(uid)

    def find_tenant_pod(self, member: GangMember) -> TenantPodView | None:
        """Return the tenant pod of a member."""
        view = self._pods.store.get(member.key)
        return view if view is not None and view.metadata.uid == member.uid else None

    def find_compute_pod(self, member: GangMember) -> tuple[ComputePodView, ComputeLink] | None:
        """Return the compute pod of a member and its cluster; a reverted compute pod does not count."""
        for pod, link in self.compute_pods_named(member.key):
            if pod.tenant_uid == member.uid and not self.unbound.is_reverted(pod):
                return pod, link
        return None

    def compute_pods_named(self, key: Key) -> Iterator[tuple[ComputePodView, ComputeLink]]:
        """Return the compute pods with a tenant pod's name, and their clusters."""
        for link in self._scope.links.values():
            pod = link.pods.find_pod(self._tenant, key)
            if pod is not None:
                yield pod, link

    def is_ready(self, member: GangMember) -> bool:
        """Return whether the compute pod of a member is ready."""
        found = self.find_compute_pod(member)
        return found is not None and is_ready(found[0].status)

    def has_compute_pod(self, member: GangMember) -> bool:
        """Return whether a member has a compute pod, shown or just created."""
        return self.find_compute_pod(member) is not None or self.is_forwarding(member)

    def is_compute_pod_placed(self, key: Key, uid: str) -> bool | None:
        """Return whether the arbiter placed the running compute pod of a pod; None if there is no such compute pod."""
        placed = [
            is_arbiter_placed(pod)
            for pod, _ in self.compute_pods_named(key)
            if pod.tenant_uid == uid and not pod.has_ended
        ]
        return any(placed) if placed else None

    def admitted_gang(self, key: Key, uid: str) -> str:
        """Return the gang that the running compute pod of a pod was admitted with; empty if there is none."""
        pods = self.compute_pods_named(key)
        return next(
            (pod.metadata.annotations.get(GANG, "") for pod, _ in pods if pod.tenant_uid == uid and not pod.has_ended),
            "",
        )

    def placed_compute_pods(self) -> Iterator[ComputePodView]:
        """Return the running compute pods that the arbiter placed."""
        for link in self._scope.links.values():
            for pod in link.pods.of_tenant(self._tenant):
                if is_arbiter_placed(pod) and not pod.has_ended:
                    yield pod

    def _state_in_compute(
        self, member: GangMember, tenant_pod: TenantPodView | None, pod: ComputePodView, link: ComputeLink
    ) -> MemberState:
        self.scheduler_evictions.observe(member, pod, tenant_pod)
        if pod.has_ended:
            return self._end_state(member, pod)
        verdict = self._verdict_store.recover_verdict(pod, link.name)
        node, deletion_time = pod.spec.node_name or verdict.node, pod.metadata.deletion_timestamp
        if deletion_time is not None:
            return _terminating_state(verdict, node, times.parse_time(deletion_time).timestamp())
        if tenant_pod is None or tenant_pod.is_terminal or tenant_pod.metadata.deletion_timestamp is not None:
            return _terminating_state(verdict, node, self._clock.time() + member.grace)
        return _placed_state(verdict, node)

    def is_forwarding(self, member: GangMember) -> bool:
        """Return whether a member's compute pod was just created, and may not be visible yet."""
        return self._scope.created_until.get(member.uid, 0.0) > self._clock.time()


def is_gated(view: TenantPodView) -> bool:
    """Return whether vkgateway's scheduling gate is on a pod."""
    return any(gate.name == ADMISSION_GATE for gate in view.spec.scheduling_gates)


def _placed_state(verdict: Admission, node: str) -> MemberState:
    return MemberState(
        state=PodState.NOTIFIED if verdict.is_evicting else PodState.PLACED,
        verdict=verdict if node == verdict.node else replace(verdict, node=node),
    )


def _terminating_state(verdict: Admission, node: str, deadline: float) -> MemberState:
    """Return the state of a placed pod while it terminates until the deadline."""
    return MemberState(state=PodState.ENDING, verdict=replace(verdict, node=node, deadline=deadline))


def is_ready(status: bytes) -> bool:
    """Return whether a pod with this status is ready."""
    return is_condition_true(read_conditions(status), "Ready")


class _Terminated(msgspec.Struct, rename="camel", gc=False):
    finished_at: str | None = None


class _ContainerState(msgspec.Struct, gc=False):
    terminated: _Terminated | None = None


class _Container(msgspec.Struct, gc=False):
    state: _ContainerState = msgspec.field(default_factory=_ContainerState)


class _Status(msgspec.Struct, rename="camel", gc=False):
    container_statuses: tuple[_Container, ...] = ()


_status = msgspec.json.Decoder(_Status)


def ended_at(status: bytes) -> float | None:
    """Return the end of the last container (seconds since the epoch); None if the status does not have it."""
    try:
        ends = (each.state.terminated for each in _status.decode(status).container_statuses)
        found = [times.parse_time(end.finished_at).timestamp() for end in ends if end is not None and end.finished_at]
    except (msgspec.DecodeError, ValueError, OverflowError):
        return None
    return max(found, default=None)


# A gateway that was not running at that time reads them from the ends of the tenant pods.
_PREEMPTION: Final = b"PreemptionByScheduler"
"""Reason of the condition DisruptionTarget by which schedulers mark the pods that they evict."""


class SchedulerEvictions:
    """Gangs of one tenant of which schedulers evicted pods."""

    def __init__(self) -> None:
        self._groups: dict[str, Eviction] = {}
        """The last evictions by groups of gangs; the next cycle takes them."""
        self._pods: dict[str, str] = {}
        """UIDs of evicted compute pods by the UIDs of their tenant pods: each counts once."""

    def observe(self, member: GangMember, pod: ComputePodView, tenant_pod: TenantPodView | None) -> None:
        """Record whether a member's compute pod is being evicted."""
        uid = pod.metadata.uid
        if is_scheduler_eviction(pod, tenant_pod) and self._pods.get(member.uid) != uid:
            self._pods[member.uid] = uid
            self._add(member, Eviction(math.inf))

    def observe_end(self, member: GangMember, tenant_pod: TenantPodView) -> None:
        """Record whether the end of a tenant pod shows an eviction that this process did not observe."""
        if member.uid in self._pods:
            return
        self._pods[member.uid] = ""
        if (eviction := read_eviction(tenant_pod.status)) is not None:
            self._add(member, eviction)

    def _add(self, member: GangMember, eviction: Eviction) -> None:
        known = self._groups.get(member.gang_group)
        self._groups[member.gang_group] = eviction if known is None else max(known, eviction)

    def take_groups(self) -> dict[str, Eviction]:
        """Return the last evictions since the last call, by groups of gangs."""
        taken, self._groups = self._groups, {}
        return taken

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted tenant pod."""
        self._pods.pop(uid, None)


class _Conditions(msgspec.Struct, gc=False):
    conditions: tuple[Condition, ...] = ()


_conditions = msgspec.json.Decoder(_Conditions)


def read_conditions(status: bytes) -> tuple[Condition, ...]:
    """Return the conditions in the status of a pod."""
    return _conditions.decode(status).conditions


def is_preempted(status: bytes) -> bool:
    """Return whether a pod with this status ends because its scheduler needs its resources for another pod."""
    if _PREEMPTION not in status:
        return False
    found = find_condition(read_conditions(status), DISRUPTION_CONDITION)
    return found is not None and found.status == "True" and found.reason == _PREEMPTION.decode()


def read_eviction(status: bytes) -> Eviction | None:
    """Return the eviction by a scheduler that the status of an ended tenant pod shows, or None."""
    if _PREEMPTION not in status and DELETED_IN_COMPUTE.encode() not in status:
        return None
    found = find_condition(read_conditions(status), DISRUPTION_CONDITION)
    if found is None or found.status != "True" or found.reason not in (_PREEMPTION.decode(), DELETED_IN_COMPUTE):
        return None
    changed = found.last_transition_time
    at = times.parse_time(changed).timestamp() if changed else 0.0
    return Eviction(at, is_explained=found.reason != DELETED_IN_COMPUTE)


def is_scheduler_eviction(pod: ComputePodView, tenant_pod: TenantPodView | None) -> bool:
    """Return whether a compute pod is being deleted because its scheduler evicted it.

    External schedulers may delete pods without a word. Such a deletion counts, unless the tenant or the gateway
    requested it, the pod had ended before, or a condition says who ended it: a drain, a taint, a kubelet, or the
    collection of pods of lost nodes.
    """
    if pod.metadata.deletion_timestamp is None:
        return False
    if is_preempted(pod.status):
        return True
    annotations = pod.metadata.annotations
    is_unexplained = (
        annotations.get(SCHEDULING_MODE) == EXTERNAL
        and EVICTED not in annotations
        and pod.phase not in TERMINAL_PHASES
        and not is_condition_true(read_conditions(pod.status), DISRUPTION_CONDITION)
    )
    return is_unexplained and tenant_pod is not None and tenant_pod.metadata.deletion_timestamp is None
