"""Placed pods that are inside their tenants' guarantees, and what they request."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.arbiter.snapshot import Pod
from vkgateway.model.requests import MilliResources

Mark = tuple[int, dict[str, None]]


class GuaranteedPods:
    """Pods inside guarantees. A journal records the changes of a cycle, so that they can be undone."""

    def __init__(self) -> None:
        self.uids: set[str] = set()
        self.entered_gangs: dict[str, None] = {}
        """Gangs with pods that entered the guarantee since the cycle began."""
        self._used: dict[str, MilliResources] = {}
        self._journal: list[tuple[str, Pod, bool]] = []
        """Pods that entered (True) or left (False) the guarantee since the cycle began."""

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
        self._journal.append((tenant, pod, True))
        self.entered_gangs[gang] = None

    def revert_entry(self, tenant: str, pod: Pod) -> None:
        """Revert the entry of a pod in this cycle; its part is already released."""
        self._journal.remove((tenant, pod, True))
        self.remove_pod(tenant, pod)

    def leave_pod(self, tenant: str, pod: Pod) -> None:
        """Remove a pod whose part is already released."""
        self._journal.append((tenant, pod, False))
        self.remove_pod(tenant, pod)

    def mark(self) -> Mark:
        """Return a mark for `undo`."""
        return len(self._journal), dict(self.entered_gangs)

    def undo(self, mark: Mark) -> list[str]:
        """Undo all changes since the mark; return the gangs whose pods had entered the guarantee."""
        length, entered_before = mark
        while len(self._journal) > length:
            tenant, pod, is_entry = self._journal.pop()
            (self.remove_pod if is_entry else self.add_pod)(tenant, pod)
        entered = list(self.entered_gangs)
        self.entered_gangs.clear()
        self.entered_gangs.update(entered_before)
        return entered

    def _count_requests(self, tenant: str, pod: Pod, times: int) -> None:
        used = self._used.setdefault(tenant, {})
        for name, amount in pod.shape.requests:
            used[name] = used.get(name, 0) + amount * times
