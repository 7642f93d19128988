"""Evictions of pods by the schedulers of compute clusters, as their compute pods show them.

A gateway that was not running at that time reads them from the ends of the tenant pods.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from vkgateway.api import times
from vkgateway.api.names import SCHEDULING_MODE
from vkgateway.api.objects import TERMINAL_PHASES, Condition, find_condition, is_condition_true
from vkgateway.api.types import EXTERNAL
from vkgateway.kinds.pods.translation.conditions import DELETED_IN_COMPUTE, DISRUPTION_CONDITION
from vkgateway.runtime.views.annotations import EVICTED
from vkgateway.runtime.views.pods import ComputePodView, TenantPodView
from vkgateway.scheduler.backends.breaches import Eviction
from vkgateway.scheduler.service.member import GangMember

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
