"""Pods of a pool that leave, with what their tenants get back of their limits by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vkgateway.arbiter.snapshot import Pod
from vkgateway.model.requests import MilliResources


class TerminatingPods(Mapping[str, Pod]):
    """Pods by uid that are ending, or were told to go and must."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, Pod]] = {}
        self._usage_by_tenant: dict[str, MilliResources] = {}

    def __getitem__(self, uid: str) -> Pod:
        return self._pods[uid][1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pods)

    def __len__(self) -> int:
        return len(self._pods)

    def tenant_of(self, uid: str) -> str:
        """Whose a pod is. Raises KeyError for one that does not leave."""
        return self._pods[uid][0]

    def add_pods(self, tenant: str, pods: Iterable[Pod]) -> None:
        """These pods of a tenant leave."""
        for pod in pods:
            self.remove_pod(pod.uid)
            self._pods[pod.uid] = tenant, pod
            self._count_pod(tenant, pod, 1)

    def remove_pod(self, uid: str) -> None:
        """A pod stays after all; nothing happens where it was not leaving."""
        known = self._pods.pop(uid, None)
        if known is not None:
            self._count_pod(*known, -1)

    def usage_of(self, tenant: str) -> MilliResources:
        """What a tenant's pods that leave hold, in thousandths."""
        return self._usage_by_tenant.get(tenant, {})

    def copy(self) -> TerminatingPods:
        """The same, to be changed apart from this one."""
        other = TerminatingPods()
        other._pods = dict(self._pods)
        other._usage_by_tenant = {tenant: dict(amounts) for tenant, amounts in self._usage_by_tenant.items()}
        return other

    def _count_pod(self, tenant: str, pod: Pod, times: int) -> None:
        mine = self._usage_by_tenant.setdefault(tenant, {})
        for name, amount in pod.shape.requests:
            mine[name] = mine.get(name, 0) + amount * times
