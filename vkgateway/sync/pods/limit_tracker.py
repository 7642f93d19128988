"""Who uses what of a tenant's limits: told by what runs below, for above the tenant may write what it likes.

A pod that is final above, or gone by force, uses its GPUs until the last of it has ended below; and how long that may
take, its grace, is the tenant's choice too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from vkgateway.arbiter.queueing.node_limits import Admission, TenantLimits
from vkgateway.model.names import POOL_LABEL, virtual_node_name
from vkgateway.model.requests import MilliResources
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import TenantPodView


class LimitTracker:
    """The pods of one tenant that use or wait for room; `wake(key)` asks for a look at one that waits."""

    def __init__(self, tenant: str, limits: TenantLimits, *, wake: Callable[[Key], None]) -> None:
        self._tenant = tenant
        self._limits = limits
        self._wake = wake
        self._uids: defaultdict[Key, set[str]] = defaultdict(set)
        self._pending_pods: dict[str, Key] = {}
        self._counted_clusters: set[ComputeLink] = set()

    def set_limit(self, pool: str, limit: MilliResources) -> list[Key]:
        """Set what may be used of a pool; returns the pods that were held there."""
        self._limits.set_limit(pool, limit)
        return [self._pending_pods[uid] for uid in self._limits.held_pods(pool) if uid in self._pending_pods]

    def admit_pod(
        self, key: Key, link: ComputeLink, *, uid: str, pool: str, requests: MilliResources, by_hand: bool = False
    ) -> Admission:
        """Admit a pod that is not below yet, or hold it; what runs below already comes first."""
        self._count_cluster(link)
        self._uids[key].add(uid)
        admission = self._limits.request_admission(uid, pool, requests, by_hand=by_hand)
        if admission.verdict == "held":
            self._pending_pods[uid] = key
        return admission

    def admit_manual(
        self, key: Key, link: ComputeLink, *, uid: str, pool: str, requests: MilliResources
    ) -> Admission | None:
        """Let a pod that was put on a node by hand wait for the arbiter, if it fits there; else the rejection."""
        self._count_cluster(link)
        self._uids[key].add(uid)
        return self._limits.hold_manual_pod(uid, pool, requests)

    def count_running(self, key: Key, *, uid: str, pool: str, requests: MilliResources) -> None:
        """Note a pod that is known to run, where its compute pod does not tell what it was admitted with."""
        self._uids[key].add(uid)
        self._limits.add_running(uid, pool, requests)

    def resize_pod(self, uid: str, pool: str, requests: MilliResources) -> Admission | None:
        """Count a running pod with what it asks for now, where that fits; None where that is what it counts with."""
        counted = self._limits.counted_requests(uid)
        if counted is None or counted == requests:
            return None
        admission = self._limits.resize_pod(uid, requests)
        if admission.verdict == "admitted":
            for held in self._limits.held_pods(pool):
                if held in self._pending_pods:
                    self._wake(self._pending_pods[held])
        return admission

    def release_pending(self, key: Key, uid: str) -> None:
        """Give back the room of a pod that is not below: it asks for other amounts by now."""
        if uid in self._uids.get(key, ()):
            self._release_pod(key, uid)

    def update_running(
        self,
        key: Key,
        view: TenantPodView | None,
        links: Collection[ComputeLink],
        *,
        created: dict[str, float],
        now: float,
    ) -> float | None:
        """Count what runs below under a name, and give back the room of what has ended.

        `created` are the UIDs of pods that were sent below, with the times until which the watch may not show them.
        Those seen or given up are taken out of it. Returns the seconds until one is given up, None where none is.
        """
        running: set[str] = set()
        ended: set[str] = set()
        for link in links:
            below = link.pods.find_pod(self._tenant, key)
            if below is not None:
                (ended if below.has_ended else running).add(below.tenant_uid)
                created.pop(below.tenant_uid, None)
                self._count_pod(key, link)
        wanted = view.metadata.uid if view is not None and not view.is_terminal else ""
        left = None
        for uid in self._uids.get(key, set()) - running:
            if uid not in ended and created.get(uid, 0.0) > now:
                left = created[uid] - now
            elif uid in ended or uid != wanted:
                created.pop(uid, None)
                self._release_pod(key, uid)
        return left

    def _count_cluster(self, link: ComputeLink) -> None:
        """Count what runs below already, the first time."""
        if link not in self._counted_clusters:
            self._counted_clusters.add(link)
            for other in link.pods.tenant_pod_keys(self._tenant):
                self._count_pod(other, link)

    def _count_pod(self, key: Key, link: ComputeLink) -> None:
        below = link.pods.find_pod(self._tenant, key)
        if below is None or below.has_ended:
            return
        requests = below.admitted_requests
        if requests is not None:
            pool = virtual_node_name(below.metadata.labels.get(POOL_LABEL, ""), link.name)
            self.count_running(key, uid=below.tenant_uid, pool=pool, requests=requests)

    def _release_pod(self, key: Key, uid: str) -> None:
        self._uids[key].discard(uid)
        if not self._uids[key]:
            del self._uids[key]
        self._pending_pods.pop(uid, None)
        for held in self._limits.release_pod(uid):
            if held in self._pending_pods:
                self._wake(self._pending_pods[held])
