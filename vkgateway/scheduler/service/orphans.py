"""Compute pods that terminate after their tenant pods were deleted: the arbiter counts their resources until then."""

from __future__ import annotations

from typing import Protocol

from vkgateway.api import times
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.core.snapshot import Gang, Pod, PodState, Shape
from vkgateway.scheduler.service.gangs import TenantGangs
from vkgateway.scheduler.service.member import gang_id
from vkgateway.scheduler.service.verdict_store import is_arbiter_placed, recorded_verdict


class UsageCounter(Protocol):
    """The arbitration, as far as it counts the usage of pods that it does not place."""

    def recount_pod(self, pod: ComputePodView, cluster: str) -> None:
        """Count a compute pod's usage again, after its tenant pod was read or forgotten."""


class OrphanedPods:
    """Terminating compute pods of one tenant whose tenant pods were deleted before they were read."""

    def __init__(self, scope: TenantScope, gangs: TenantGangs, usage: UsageCounter) -> None:
        self._scope = scope
        self._gangs = gangs
        self._usage = usage
        self._orphans: dict[str, Gang] = {}
        """Gangs by the UID of the deleted tenant pod."""
        self._uids: dict[tuple[str, Key], str] = {}
        """These UIDs by cluster and name."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._orphans

    def gangs(self) -> list[Gang]:
        """Return a gang for each orphan."""
        return list(self._orphans.values())

    def compute_pod_changed(self, key: Key, link: ComputeLink) -> None:
        """Update the orphan with a tenant pod's name, once all pods of the tenant are known."""
        pod, place = link.pods.find_pod(self._scope.name, key), (link.name, key)
        self._orphans.pop(self._uids.pop(place, ""), None)
        if pod is None or pod.has_ended or not is_arbiter_placed(pod):
            return
        if not self._has_owner(pod) and self._gangs.find_member(pod.tenant_uid) is None:
            self._uids[place] = pod.tenant_uid
            self._orphans[pod.tenant_uid] = ending_gang(self._scope.name, pod, link.name, now=self._scope.clock.time())
            self._usage.recount_pod(pod, link.name)

    def _has_owner(self, pod: ComputePodView) -> bool:
        """Return whether the tenant pod of a compute pod exists."""
        tenant_pod = self._scope.cache.pods.store.get(pod.tenant_key)
        return tenant_pod is not None and tenant_pod.metadata.uid == pod.tenant_uid


def ending_gang(tenant: str, pod: ComputePodView, cluster: str, *, now: float) -> Gang:
    """Return a terminating gang for a compute pod whose tenant pod was deleted."""
    verdict = recorded_verdict(pod, cluster)
    deletion_time = pod.metadata.deletion_timestamp
    grace = pod.spec.termination_grace_period_seconds
    ending = Pod(
        uid=pod.tenant_uid,
        shape=Shape.from_requests(pod.admitted_requests or {}),
        state=PodState.ENDING,
        pool=verdict.pool,
        node=verdict.node,
        borrowed=bool(verdict.borrowed),
        since=verdict.since,
        deadline=times.parse_time(deletion_time).timestamp() if deletion_time else now + (grace or 0),
    )
    name = gang_id(tenant, f"{pod.tenant_key[0]}/gone/{pod.tenant_uid}")
    return Gang(id=name, tenant=tenant, pods=(ending,), pools=(verdict.pool,))
