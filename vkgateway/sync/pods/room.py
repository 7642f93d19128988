"""Who uses what of a tenant's limits: told by what runs below, for above the tenant may write what it likes.

A pod that is final above, or gone by force, uses its GPUs until the last of it has ended below; and how long that may
take, its grace, is the tenant's choice too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from vkgateway.arbiter.limits import Admission, Limits
from vkgateway.model.names import POOL_LABEL, virtual_node_name
from vkgateway.model.requests import Milli
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.pods.views import TenantPodView


class Room:
    """The pods of one tenant that use or wait for room; `wake(key)` asks for a look at one that waits."""

    def __init__(self, tenant: str, limits: Limits, *, wake: Callable[[Key], None]) -> None:
        self._tenant = tenant
        self._limits = limits
        self._wake = wake
        self._uids: defaultdict[Key, set[str]] = defaultdict(set)
        self._held: dict[str, Key] = {}
        self._counted: set[ComputeLink] = set()

    def set_limit(self, pool: str, limit: Milli) -> list[Key]:
        """Set what may be used of a pool; returns the pods that were held there."""
        self._limits.set_limit(pool, limit)
        return [self._held[uid] for uid in self._limits.waiting(pool) if uid in self._held]

    def ask(
        self, key: Key, link: ComputeLink, *, uid: str, pool: str, requests: Milli, by_hand: bool = False
    ) -> Admission:
        """Admit a pod that is not below yet, or hold it; what runs below already comes first."""
        self._look(link)
        self._uids[key].add(uid)
        admission = self._limits.ask(uid, pool, requests, by_hand=by_hand)
        if admission.verdict == "held":
            self._held[uid] = key
        return admission

    def stand(self, key: Key, link: ComputeLink, *, uid: str, pool: str, requests: Milli) -> Admission | None:
        """Let a pod that was put on a node by hand wait for the arbiter, if it fits there; else the rejection."""
        self._look(link)
        self._uids[key].add(uid)
        return self._limits.stand(uid, pool, requests)

    def running(self, key: Key, *, uid: str, pool: str, requests: Milli) -> None:
        """Note a pod that is known to run, where its compute pod does not tell what it was admitted with."""
        self._uids[key].add(uid)
        self._limits.running(uid, pool, requests)

    def resize(self, uid: str, pool: str, requests: Milli) -> Admission | None:
        """Count a running pod with what it asks for now, where that fits; None where that is what it counts with."""
        counted = self._limits.counted(uid)
        if counted is None or counted == requests:
            return None
        admission = self._limits.resize(uid, requests)
        if admission.verdict == "admitted":
            for held in self._limits.waiting(pool):
                if held in self._held:
                    self._wake(self._held[held])
        return admission

    def withdraw(self, key: Key, uid: str) -> None:
        """Give back the room of a pod that is not below: it asks for other amounts by now."""
        if uid in self._uids.get(key, ()):
            self._release(key, uid)

    def settle(
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
            below = link.pods.find(self._tenant, key)
            if below is not None:
                (ended if below.ended else running).add(below.tenant_uid)
                created.pop(below.tenant_uid, None)
                self._count(key, link)
        wanted = view.metadata.uid if view is not None and not view.terminal else ""
        left = None
        for uid in self._uids.get(key, set()) - running:
            if uid not in ended and created.get(uid, 0.0) > now:
                left = created[uid] - now
            elif uid in ended or uid != wanted:
                created.pop(uid, None)
                self._release(key, uid)
        return left

    def _look(self, link: ComputeLink) -> None:
        """Count what runs below already, the first time."""
        if link not in self._counted:
            self._counted.add(link)
            for other in link.pods.keys(self._tenant):
                self._count(other, link)

    def _count(self, key: Key, link: ComputeLink) -> None:
        below = link.pods.find(self._tenant, key)
        if below is None or below.ended:
            return
        requests = below.requests
        if requests is not None:
            pool = virtual_node_name(below.metadata.labels.get(POOL_LABEL, ""), link.name)
            self.running(key, uid=below.tenant_uid, pool=pool, requests=requests)

    def _release(self, key: Key, uid: str) -> None:
        self._uids[key].discard(uid)
        if not self._uids[key]:
            del self._uids[key]
        self._held.pop(uid, None)
        for held in self._limits.release(uid):
            if held in self._held:
                self._wake(self._held[held])
