"""Limits of tenants on virtual nodes: pods bound past the limit are held until other pods end. A virtual node offers no
more than its tenant's limit, and the tenant's scheduler keeps to that. But a limit may shrink under running pods,
and a deleted tenant pod's compute pod may still run. So the limit is checked again here, in the order of requests.
Pods that a scheduler bound wait. A pod whose `nodeName` was set by hand is rejected, as a kubelet does. While it
waited, the tenant's scheduler would count it, and find no capacity for other pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vkgateway.arbiter.queueing.admission import ADMITTED, Admission, AdmissionState
from vkgateway.model.requests import MilliResources, render_milli

_KUBELET_ORDER: Final = {"pods": 0, "cpu": 1, "memory": 2, "ephemeral-storage": 3}
"""Resources that a kubelet checks first, in this order."""
WAITING_FOR_QUOTA = "WaitingForQuota"


@dataclass(slots=True)
class _NodeUsage:
    """Limit and usage of one tenant on one virtual node."""

    limit: MilliResources = field(default_factory=dict)
    used: MilliResources = field(default_factory=dict)
    pods: dict[str, MilliResources] = field(default_factory=dict)
    waiting: dict[str, MilliResources] = field(default_factory=dict)
    manual_pods: dict[str, MilliResources] = field(default_factory=dict)
    """Pods bound by hand that fit and wait for the arbiter. They count against later pods bound by hand."""


class TenantLimits:
    """Limits and usage of one tenant on all its virtual nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeUsage] = defaultdict(_NodeUsage)
        self._node_by_pod: dict[str, str] = {}

    def set_limit(self, node: str, limit: Mapping[str, int]) -> None:
        """Set the limit on a virtual node; a resource without an entry has the limit 0."""
        self._nodes[node].limit = dict(limit)

    def add_running(self, uid: str, node: str, requests: MilliResources) -> None:
        """Count a pod that already runs, whatever the limit."""
        if uid not in self._node_by_pod:
            self._count_pod(uid, node, requests)

    def request_admission(self, uid: str, node: str, requests: MilliResources, *, by_hand: bool = False) -> Admission:
        """Admit the pod if it is within its tenant's limit on that node, and hold it otherwise. A pod that was bound by
        hand is rejected instead, unless the node's limit is unknown.
        """
        if uid in self._node_by_pod:
            return ADMITTED
        usage = self._nodes[node]
        usage.manual_pods.pop(uid, None)
        if by_hand and (rejected := _find_rejection(usage, requests)) is not None:
            usage.waiting.pop(uid, None)
            return rejected
        over = [name for name, value in requests.items() if usage.used.get(name, 0) + value > usage.limit.get(name, 0)]
        if not over:
            usage.waiting.pop(uid, None)
            self._count_pod(uid, node, requests)
            return ADMITTED
        usage.waiting[uid] = requests
        return Admission(AdmissionState.HELD, WAITING_FOR_QUOTA, _quota_message(node, over, requests, usage))

    def hold_manual_pod(self, uid: str, node: str, requests: MilliResources) -> Admission | None:
        """Hold a pod that was bound by hand for the arbiter, if it fits; otherwise return the rejection."""
        usage = self._nodes[node]
        if uid in self._node_by_pod or usage.manual_pods.get(uid) == requests:
            return None
        usage.manual_pods.pop(uid, None)
        rejected = _find_rejection(usage, requests)
        if rejected is None and usage.limit:
            usage.manual_pods[uid] = requests
        return rejected

    def resize_pod(self, uid: str, requests: MilliResources) -> Admission:
        """Change the requests of a running pod if the increase is within the limit; otherwise keep them."""
        usage = self._nodes[self._node_by_pod[uid]]
        held = usage.pods[uid]
        more = {name: value - held.get(name, 0) for name, value in requests.items() if value > held.get(name, 0)}
        over = [name for name, value in more.items() if usage.used.get(name, 0) + value > usage.limit.get(name, 0)]
        if over:
            return Admission(
                AdmissionState.HELD,
                WAITING_FOR_QUOTA,
                _quota_message(self._node_by_pod[uid], over, more, usage, what="more "),
            )
        for name in requests.keys() | held.keys():
            usage.used[name] = usage.used.get(name, 0) + requests.get(name, 0) - held.get(name, 0)
        usage.pods[uid] = requests
        return ADMITTED

    def counted_requests(self, uid: str) -> MilliResources | None:
        """Return the requests with which a running pod counts; None: it is not known to run."""
        node = self._node_by_pod.get(uid)
        return self._nodes[node].pods[uid] if node is not None else None

    def release_pod(self, uid: str) -> list[str]:
        """Remove an ended or deleted pod. Return the held pods on its node, in the order of requests."""
        for usage in self._nodes.values():
            usage.waiting.pop(uid, None)
            usage.manual_pods.pop(uid, None)
        node = self._node_by_pod.pop(uid, None)
        if node is None:
            return []
        usage = self._nodes[node]
        for name, value in usage.pods.pop(uid).items():
            usage.used[name] -= value
        return list(usage.waiting)

    def held_pods(self, node: str) -> list[str]:
        """Return the held pods on a node, in the order of requests."""
        return list(self._nodes[node].waiting)

    def _count_pod(self, uid: str, node: str, requests: MilliResources) -> None:
        usage = self._nodes[node]
        for name, value in requests.items():
            usage.used[name] = usage.used.get(name, 0) + value
        usage.pods[uid] = requests
        usage.manual_pods.pop(uid, None)
        self._node_by_pod[uid] = node


def _find_rejection(usage: _NodeUsage, requests: MilliResources) -> Admission | None:
    """Return a kubelet's rejection of a pod that does not fit with admitted pods; None: it fits. See
    `InsufficientResourceError` in k8s.io/kubernetes/pkg/kubelet/lifecycle/predicate.go.
    """
    for name in (
        sorted(requests, key=lambda name: (_KUBELET_ORDER.get(name, len(_KUBELET_ORDER)), name)) if usage.limit else ()
    ):
        used = usage.used.get(name, 0) + sum(amounts.get(name, 0) for amounts in usage.manual_pods.values())
        capacity = usage.limit.get(name, 0)
        if requests[name] > 0 and used + requests[name] > capacity:
            told = (amount if name == "cpu" else amount // 1000 for amount in (requests[name], used, capacity))
            wanted, used, capacity = told
            amounts = f"requested: {wanted}, used: {used}, capacity: {capacity}"
            return Admission(
                AdmissionState.REJECTED, f"OutOf{name}", f"Node didn't have enough resource: {name}, {amounts}"
            )
    return None


def _quota_message(node: str, over: list[str], requests: MilliResources, usage: _NodeUsage, *, what: str = "") -> str:
    wanted, used, limit = (
        render_milli({name: amounts.get(name, 0) for name in over}) for amounts in (requests, usage.used, usage.limit)
    )
    return f"needs {what}{wanted} on {node}; in use: {used}; limit: {limit}"
