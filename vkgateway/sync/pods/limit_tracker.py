"""Usage of a tenant's limits, counted from compute pods, because the tenant may write anything in its own cluster.

A pod that is final or force-deleted in the tenant cluster uses its GPUs until its compute pod has ended. The tenant
also chooses how long that takes, by the grace period.
"""

from __future__ import annotations

from collections import defaultdict

from vkgateway.arbiter.queueing.admission import Admission
from vkgateway.arbiter.queueing.node_limits import TenantLimits
from vkgateway.model.names import POOL_LABEL, virtual_node_name
from vkgateway.model.requests import MilliResources
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.runtime.requests import POD
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import TenantPodView


class LimitTracker:
    """Pods of one tenant that use capacity or wait for it."""

    def __init__(self, scope: TenantScope, limits: TenantLimits) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._limits = limits
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
