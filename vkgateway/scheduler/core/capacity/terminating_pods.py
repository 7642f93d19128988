"""Terminating pods of a pool, with the quota usage that they return to their tenants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.snapshot import Pod


class TerminatingPods(Mapping[str, Pod]):
    """Pods by uid that are ending, or notified of an eviction that is not withdrawn."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal or Journal()
        self._pods: dict[str, tuple[str, Pod]] = {}
        self._usage_by_tenant: dict[str, MilliResources] = {}

    def __getitem__(self, uid: str) -> Pod:
        return self._pods[uid][1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pods)

    def __len__(self) -> int:
        return len(self._pods)

    def tenant_of(self, uid: str) -> str:
        """Return the tenant of a pod. Raises KeyError for a pod that is not terminating."""
        return self._pods[uid][0]

    def add_pods(self, tenant: str, pods: Iterable[Pod]) -> None:
        for pod in pods:
            self.remove_pod(pod.uid)
            self._put(tenant, pod)
            self._journal.record(self._drop, pod.uid)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod that stays, if it is present."""
        if uid in self._pods:
            self._journal.record(self._put, *self._drop(uid))

    def _put(self, tenant: str, pod: Pod) -> None:
        self._pods[pod.uid] = tenant, pod
        self._count_pod(tenant, pod, 1)

    def _drop(self, uid: str) -> tuple[str, Pod]:
        tenant, pod = self._pods.pop(uid)
        self._count_pod(tenant, pod, -1)
        return tenant, pod

    def usage_of(self, tenant: str) -> MilliResources:
        """Return the resources that a tenant's terminating pods hold, in thousandths."""
        return self._usage_by_tenant.get(tenant, {})

    def copy(self) -> TerminatingPods:
        """Return an independent copy."""
        other = TerminatingPods()
        other._pods = dict(self._pods)
        other._usage_by_tenant = {tenant: dict(amounts) for tenant, amounts in self._usage_by_tenant.items()}
        return other

    def _count_pod(self, tenant: str, pod: Pod, times: int) -> None:
        usage = self._usage_by_tenant.setdefault(tenant, {})
        for name, amount in pod.shape.requests:
            usage[name] = usage.get(name, 0) + amount * times
