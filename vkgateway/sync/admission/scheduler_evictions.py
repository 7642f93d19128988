"""Evictions of pods by the schedulers of compute clusters, as their compute pods show them."""

from __future__ import annotations

from typing import Final

import msgspec

from vkgateway.model.api import EXTERNAL
from vkgateway.model.names import SCHEDULING_MODE
from vkgateway.model.objects import TERMINAL_PHASES, Condition, find_condition, is_condition_true
from vkgateway.sync.admission.member import GangMember
from vkgateway.sync.views.annotations import EVICTED
from vkgateway.sync.views.pods import ComputePodView, TenantPodView
from vkgateway.translate.conditions import DISRUPTION_CONDITION

_PREEMPTION: Final = b"PreemptionByScheduler"
"""Reason of the condition DisruptionTarget by which schedulers mark the pods that they evict."""


class SchedulerEvictions:
    """Gangs of one tenant of which schedulers evicted pods."""

    def __init__(self) -> None:
        self._groups: set[str] = set()
        """Groups of gangs; the next cycle takes them."""
        self._pods: dict[str, str] = {}
        """UIDs of evicted compute pods by the UIDs of their tenant pods: each counts once."""

    def observe(self, member: GangMember, pod: ComputePodView, tenant_pod: TenantPodView | None) -> None:
        """Record whether a member's compute pod is being evicted."""
        uid = pod.metadata.uid
        if is_scheduler_eviction(pod, tenant_pod) and self._pods.get(member.uid) != uid:
            self._pods[member.uid] = uid
            self._groups.add(member.gang_group)

    def take_groups(self) -> set[str]:
        """Return the groups of gangs of which a scheduler evicted pods since the last call."""
        taken, self._groups = self._groups, set()
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
