"""Limits of a tenant on its virtual nodes, and their usage.

Usage is counted from compute pods, because the tenant may write anything in its own cluster.

A pod that is final or force-deleted in the tenant cluster uses its GPUs until its compute pod has ended. The tenant
also chooses how long that takes, by the grace period.

Until a limit admits it, a pod that a scheduler bound is held: a virtual node offers no more than the limit, and the
tenant's scheduler keeps to that, but a limit may shrink, and a deleted tenant pod's compute pod may still run. A pod
whose `nodeName` was set by hand is rejected, as a kubelet does. While it waited, the tenant's scheduler would count it,
and find no capacity for other pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vkgateway.api.names import POOL_LABEL, virtual_node_name
from vkgateway.api.requests import MilliResources, render_milli
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.runtime.requests import POD
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import TenantPodView
from vkgateway.scheduler.core.queueing.admission import ADMITTED, Admission, AdmissionState

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


class LimitTracker:
    """Pods of one tenant that use capacity or wait for it."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._limits = TenantLimits()
        self._uids: defaultdict[Key, set[str]] = defaultdict(set)
        self._pending_pods: dict[str, Key] = {}
        self._counted_clusters: set[ComputeLink] = set()

    def set_limit(self, pool: str, limit: MilliResources) -> None:
        """Set the limit of a pool over all its virtual nodes, and enqueue the pods that were held there."""
        self._limits.set_limit(pool, limit)
        for uid in self._limits.held_pods(pool):
            if uid in self._pending_pods:
                self._scope.work_queue.enqueue(POD, self._pending_pods[uid])

    def admit_pod(
        self, key: Key, link: ComputeLink, *, uid: str, pool: str, requests: MilliResources, by_hand: bool = False
    ) -> Admission:
        """Admit or hold a pod without a compute pod; running compute pods are counted first."""
        self._count_cluster(link)
        self._uids[key].add(uid)
        admission = self._limits.request_admission(uid, pool, requests, by_hand=by_hand)
        if admission.verdict == "held":
            self._pending_pods[uid] = key
        return admission

    def admit_manual(
        self, key: Key, link: ComputeLink, *, uid: str, pool: str, requests: MilliResources
    ) -> Admission | None:
        """Return the rejection of a pod that was bound manually and exceeds the limit; None lets it wait for the
        arbiter.
        """
        self._count_cluster(link)
        self._uids[key].add(uid)
        return self._limits.hold_manual_pod(uid, pool, requests)

    def count_running(self, key: Key, *, uid: str, pool: str, requests: MilliResources) -> None:
        """Count a running pod whose compute pod does not record its admitted requests."""
        self._uids[key].add(uid)
        self._limits.add_running(uid, pool, requests)

    def resize_pod(self, uid: str, pool: str, requests: MilliResources) -> Admission | None:
        """Count a running pod with its current requests if they fit; return None if they are unchanged."""
        counted = self._limits.counted_requests(uid)
        if counted is None or counted == requests:
            return None
        admission = self._limits.resize_pod(uid, requests)
        if admission.verdict == "admitted":
            for held in self._limits.held_pods(pool):
                if held in self._pending_pods:
                    self._scope.work_queue.enqueue(POD, self._pending_pods[held])
        return admission

    def release_pending(self, key: Key, uid: str) -> None:
        """Release the capacity of a pod without a compute pod, because its requests have changed."""
        if uid in self._uids.get(key, ()):
            self._release_pod(key, uid)

    def update_running(
        self,
        key: Key,
        view: TenantPodView | None,
    ) -> float | None:
        """Count the compute pods of a tenant pod's name, and release the capacity of ended ones.

        Compute pods that were created and that the watch has not shown count until `TenantScope.created_until`. Returns
        the seconds until the next one expires, or None.
        """
        created, now = self._scope.created_until, self._scope.clock.time()
        running: set[str] = set()
        ended: set[str] = set()
        for link in self._scope.links.values():
            compute_pod = link.pods.find_pod(self._tenant, key)
            if compute_pod is not None:
                (ended if compute_pod.has_ended else running).add(compute_pod.tenant_uid)
                created.pop(compute_pod.tenant_uid, None)
                self._count_pod(key, link)
        live_uid = view.metadata.uid if view is not None and not view.is_terminal else ""
        remaining = None
        for uid in self._uids.get(key, set()) - running:
            if uid not in ended and created.get(uid, 0.0) > now:
                remaining = created[uid] - now
            elif uid in ended or uid != live_uid:
                created.pop(uid, None)
                self._release_pod(key, uid)
        return remaining

    def _count_cluster(self, link: ComputeLink) -> None:
        """Count the existing compute pods of a cluster, the first time."""
        if link not in self._counted_clusters:
            self._counted_clusters.add(link)
            for other in link.pods.tenant_pod_keys(self._tenant):
                self._count_pod(other, link)

    def _count_pod(self, key: Key, link: ComputeLink) -> None:
        compute_pod = link.pods.find_pod(self._tenant, key)
        if compute_pod is None or compute_pod.has_ended:
            return
        requests = compute_pod.admitted_requests
        if requests is not None:
            pool = virtual_node_name(compute_pod.metadata.labels.get(POOL_LABEL, ""), link.name)
            self.count_running(key, uid=compute_pod.tenant_uid, pool=pool, requests=requests)

    def _release_pod(self, key: Key, uid: str) -> None:
        self._uids[key].discard(uid)
        if not self._uids[key]:
            del self._uids[key]
        self._pending_pods.pop(uid, None)
        for held in self._limits.release_pod(uid):
            if held in self._pending_pods:
                self._scope.work_queue.enqueue(POD, self._pending_pods[held])
