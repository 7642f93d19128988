"""Placed pods that are inside their tenants' guarantees, and what they request."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.snapshot import Pod


class GuaranteedPods:
    """Pods inside guarantees."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal or Journal()
        self.uids: set[str] = set()
        self.entered_gangs: dict[str, None] = {}
        """Gangs with pods that entered the guarantee since the cycle began."""
        self._used: dict[str, MilliResources] = {}

    def used_amounts(self, tenant: str) -> Mapping[str, int]:
        """Return what the tenant's pods request, in thousandths by resource."""
        return self._used.get(tenant, {})

    def add_pod(self, tenant: str, pod: Pod) -> None:
        """Add a pod. The journal does not record it."""
        self.uids.add(pod.uid)
        self._count_requests(tenant, pod, 1)

    def remove_pod(self, tenant: str, pod: Pod) -> None:
        """Remove a pod. The journal does not record it."""
        self.uids.discard(pod.uid)
        self._count_requests(tenant, pod, -1)

    def enter_pod(self, tenant: str, pod: Pod, *, gang: str) -> None:
        """Add a pod for which the guarantee is already used."""
        self.add_pod(tenant, pod)
        self._journal.record(self.remove_pod, tenant, pod)
        if gang not in self.entered_gangs:
            self.entered_gangs[gang] = None
            self._journal.record(self.entered_gangs.pop, gang, None)

    def leave_pod(self, tenant: str, pod: Pod) -> None:
        """Remove a pod whose part is already released."""
        self.remove_pod(tenant, pod)
        self._journal.record(self.add_pod, tenant, pod)

    def _count_requests(self, tenant: str, pod: Pod, times: int) -> None:
        used = self._used.setdefault(tenant, {})
        for name, amount in pod.shape.requests:
            used[name] = used.get(name, 0) + amount * times
