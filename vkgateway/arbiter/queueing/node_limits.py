"""Limits of tenants on virtual nodes: pods bound past their tenant's limit are held until others end.

A tenant's scheduler keeps to what a virtual node offers, and what that offers is never more than the tenant's limit. A
limit, though, may shrink under running pods, and what is gone above may still run below; so the same rule is kept here
again, in the order of asking. Pods that a scheduler bound wait. One whose `nodeName` was set by hand is rejected, as a
kubelet does: while it waited, the tenant's scheduler would count it, and find no room for others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vkgateway.arbiter.queueing.admission import ADMITTED, Admission, AdmissionState
from vkgateway.model.requests import MilliResources, render_milli

_KUBELET_ORDER: Final = {"pods": 0, "cpu": 1, "memory": 2, "ephemeral-storage": 3}
"""Resources that a kubelet looks at first, in this order."""
WAITING_FOR_QUOTA = "WaitingForQuota"


@dataclass(slots=True)
class _NodeUsage:
    """What one tenant may use of one virtual node, and who uses it."""

    limit: MilliResources = field(default_factory=dict)
    used: MilliResources = field(default_factory=dict)
    pods: dict[str, MilliResources] = field(default_factory=dict)
    waiting: dict[str, MilliResources] = field(default_factory=dict)
    manual_pods: dict[str, MilliResources] = field(default_factory=dict)
    """Pods that were put here by hand, have room, and wait for the arbiter: it counts for others like them."""


class TenantLimits:
    """The bookkeeping of one tenant, over all its virtual nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeUsage] = defaultdict(_NodeUsage)
        self._node_by_pod: dict[str, str] = {}

    def set_limit(self, node: str, limit: Mapping[str, int]) -> None:
        """Set what may be used of a virtual node; a resource that is not named cannot be had there."""
        self._nodes[node].limit = dict(limit)

    def add_running(self, uid: str, node: str, requests: MilliResources) -> None:
        """Note a pod that runs already: it counts, whatever the limit says now."""
        if uid not in self._node_by_pod:
            self._count_pod(uid, node, requests)

    def request_admission(self, uid: str, node: str, requests: MilliResources, *, by_hand: bool = False) -> Admission:
        """Admit the pod if it fits below its tenant's limit on that node, and hold it otherwise.

        One that was put there by hand is rejected instead, unless nothing is known of the node.
        """
        if uid in self._node_by_pod:
            return ADMITTED
        room = self._nodes[node]
        room.manual_pods.pop(uid, None)
        if by_hand and (rejected := _find_rejection(room, requests)) is not None:
            room.waiting.pop(uid, None)
            return rejected
        over = [name for name, value in requests.items() if room.used.get(name, 0) + value > room.limit.get(name, 0)]
        if not over:
            room.waiting.pop(uid, None)
            self._count_pod(uid, node, requests)
            return ADMITTED
        room.waiting[uid] = requests
        return Admission(AdmissionState.HELD, WAITING_FOR_QUOTA, _quota_message(node, over, requests, room))

    def hold_manual_pod(self, uid: str, node: str, requests: MilliResources) -> Admission | None:
        """Let a pod that was put there by hand wait for the arbiter, if it fits; else the rejection."""
        room = self._nodes[node]
        if uid in self._node_by_pod or room.manual_pods.get(uid) == requests:
            return None
        room.manual_pods.pop(uid, None)
        rejected = _find_rejection(room, requests)
        if rejected is None and room.limit:
            room.manual_pods[uid] = requests
        return rejected

    def resize_pod(self, uid: str, requests: MilliResources) -> Admission:
        """Let a pod that runs use other amounts, if what it wants more of fits; otherwise it keeps what it has."""
        room = self._nodes[self._node_by_pod[uid]]
        held = room.pods[uid]
        more = {name: value - held.get(name, 0) for name, value in requests.items() if value > held.get(name, 0)}
        over = [name for name, value in more.items() if room.used.get(name, 0) + value > room.limit.get(name, 0)]
        if over:
            return Admission(
                AdmissionState.HELD,
                WAITING_FOR_QUOTA,
                _quota_message(self._node_by_pod[uid], over, more, room, what="more "),
            )
        for name in requests.keys() | held.keys():
            room.used[name] = room.used.get(name, 0) + requests.get(name, 0) - held.get(name, 0)
        room.pods[uid] = requests
        return ADMITTED

    def counted_requests(self, uid: str) -> MilliResources | None:
        """What a pod that runs is counted with; None where it is not known to run."""
        node = self._node_by_pod.get(uid)
        return self._nodes[node].pods[uid] if node is not None else None

    def release_pod(self, uid: str) -> list[str]:
        """Forget a pod that has ended or gone; returns the pods that were held on its node, in the order of asking."""
        for room in self._nodes.values():
            room.waiting.pop(uid, None)
            room.manual_pods.pop(uid, None)
        node = self._node_by_pod.pop(uid, None)
        if node is None:
            return []
        room = self._nodes[node]
        for name, value in room.pods.pop(uid).items():
            room.used[name] -= value
        return list(room.waiting)

    def held_pods(self, node: str) -> list[str]:
        """The pods held on a node, in the order of asking."""
        return list(self._nodes[node].waiting)

    def _count_pod(self, uid: str, node: str, requests: MilliResources) -> None:
        room = self._nodes[node]
        for name, value in requests.items():
            room.used[name] = room.used.get(name, 0) + value
        room.pods[uid] = requests
        room.manual_pods.pop(uid, None)
        self._node_by_pod[uid] = node


def _find_rejection(room: _NodeUsage, requests: MilliResources) -> Admission | None:
    """What a kubelet says to a pod that does not fit beside those that it has admitted; None if it does.

    See `InsufficientResourceError` in k8s.io/kubernetes/pkg/kubelet/lifecycle/predicate.go.
    """
    for name in (
        sorted(requests, key=lambda name: (_KUBELET_ORDER.get(name, len(_KUBELET_ORDER)), name)) if room.limit else ()
    ):
        used = room.used.get(name, 0) + sum(standing.get(name, 0) for standing in room.manual_pods.values())
        capacity = room.limit.get(name, 0)
        if requests[name] > 0 and used + requests[name] > capacity:
            told = (amount if name == "cpu" else amount // 1000 for amount in (requests[name], used, capacity))
            wanted, used, capacity = told
            amounts = f"requested: {wanted}, used: {used}, capacity: {capacity}"
            return Admission(
                AdmissionState.REJECTED, f"OutOf{name}", f"Node didn't have enough resource: {name}, {amounts}"
            )
    return None


def _quota_message(node: str, over: list[str], requests: MilliResources, room: _NodeUsage, *, what: str = "") -> str:
    wanted, used, limit = (
        render_milli({name: amounts.get(name, 0) for name in over}) for amounts in (requests, room.used, room.limit)
    )
    return f"needs {what}{wanted} on {node}; in use: {used}; limit: {limit}"
