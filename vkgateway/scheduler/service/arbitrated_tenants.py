"""The tenants that take part in scheduling cycles: what the cycles need of all of them, and dispatch of decisions."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from vkgateway.kinds.namespaces.reconciler import NEW_NAMESPACE
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.backends.breaches import Eviction
from vkgateway.scheduler.backends.names import gang_namespace
from vkgateway.scheduler.core.decisions import Decisions, PendingReport
from vkgateway.scheduler.core.snapshot import Shape, Snapshot
from vkgateway.scheduler.service.member import gang_id, tenant_of_gang
from vkgateway.scheduler.service.tenant_admission import TenantAdmission

log = structlog.get_logger(__name__)


class ArbitratedTenants:
    """The tenants that take part in scheduling cycles."""

    def __init__(self) -> None:
        self.by_name: dict[str, TenantAdmission] = {}

    def are_known(self, names: Iterable[str]) -> bool:
        """Return whether all governed pods of these tenants are known."""
        return all(name in self.by_name and self.by_name[name].is_known for name in names)

    def known_names(self) -> frozenset[str]:
        """Return the tenants whose governed pods were all known once. After that, only new pods are unknown."""
        for tenant in self.by_name.values():
            tenant.was_known = tenant.was_known or tenant.is_known
        return frozenset(name for name, tenant in self.by_name.items() if tenant.was_known)

    def is_ready(self, tenant: str, uid: str) -> bool:
        """Return whether a governed pod is ready in its compute cluster."""
        known = self.by_name.get(tenant)
        member = known.gangs.find_member(uid) if known is not None else None
        return known is not None and member is not None and known.observer.is_ready(member)

    def take_preempted(self) -> dict[str, Eviction]:
        """Return the evictions of pods by schedulers of compute clusters since the last call, by gang."""
        return {
            gang_id(name, group): eviction
            for name, tenant in self.by_name.items()
            for group, eviction in tenant.observer.scheduler_evictions.take_groups().items()
        }

    def request_namespace(self, gang: str, cluster: str) -> None:
        """Create the namespace of a gang in a compute cluster soon, before its first pod."""
        if (tenant := self._tenant_of(gang)) is not None:
            tenant.work_queue.enqueue(NEW_NAMESPACE, (cluster, gang_namespace(gang)))

    def pod_names(self) -> dict[str, tuple[str, ...]]:
        """Return namespaces, names and controllers of all members by UID. May be called from another thread."""
        return {member.uid: member.name_parts for tenant in list(self.by_name.values()) for member in tenant.gangs}

    def pod_name(self, tenant: str, uid: str) -> str:
        """Return the name of a tenant's member; an empty string if it is unknown."""
        known = self.by_name.get(tenant)
        member = known.gangs.find_member(uid) if known is not None else None
        return member.key[1] if member is not None else ""

    def is_member(self, tenant: str, uid: str) -> bool:
        """Return whether the arbiter itself places the tenant pod with this UID."""
        known = self.by_name.get(tenant)
        return known is not None and known.is_governed_pod(uid)

    def shape_of(self, tenant: str, uid: str) -> Shape | None:
        """Return the shape of a tenant pod that the arbiter places; None for other pods."""
        known = self.by_name.get(tenant)
        member = known.gangs.find_member(uid) if known is not None else None
        return member.shape if member is not None and member.governed else None

    def peer_selectors_of(self, pod: ComputePodView) -> frozenset[str]:
        """Return the names of the selectors of `PeerRules` that select a compute pod of a tenant."""
        known = self.by_name.get(pod.tenant_name)
        return known.peer_selectors_of(pod) if known is not None else frozenset()

    def postpone_evictions(self, cluster: str) -> None:
        """Postpone evictions in a cluster that is reachable again, so that they are decided once more."""
        for tenant in self.by_name.values():
            tenant.verdicts.postpone_evictions(cluster)

    @property
    def has_notices(self) -> bool:
        """Whether a pod was under notice in the last cycle."""
        return any(tenant.verdicts.has_notices for tenant in self.by_name.values())

    def next_deadline(self) -> float | None:
        """Return the next time at which an evicted pod is deleted, or an admitted pod must be bound."""
        times = (tenant.next_deadline() for tenant in self.by_name.values())
        return min((time for time in times if time is not None), default=None)

    def dispatch_decisions(self, decisions: Decisions, snapshot: Snapshot, *, now: float) -> None:
        """Apply each decision to the tenant of its gang. Decisions on tenants that were removed during the cycle are
        dropped.
        """
        for admit in decisions.admits:
            if (tenant := self._tenant_of(admit.gang)) is not None:
                tenant.apply_admit(admit, now=now)
        for evict in decisions.evicts:
            if (tenant := self._tenant_of(evict.gang)) is not None:
                tenant.verdicts.apply_evict(evict)
                log.info(
                    "evicting",
                    gang=evict.gang,
                    pods=len(evict.pods),
                    makes_room_for=evict.makes_room_for,
                    run_limit=evict.reached_limit,
                    gpu_seconds_lost=round(evict.lost),
                    gpu_seconds_saved=round(evict.saved),
                )
        for reprieve in decisions.reprieves:
            if (tenant := self._tenant_of(reprieve.gang)) is not None:
                tenant.verdicts.apply_reprieve(reprieve)
        for promote in decisions.promotes:
            if (tenant := self._tenant_of(promote.gang)) is not None:
                tenant.verdicts.apply_promote(promote)
        self._dispatch_pending_reasons(decisions, snapshot)

    def _dispatch_pending_reasons(self, decisions: Decisions, snapshot: Snapshot) -> None:
        holds: dict[str, list[PendingReport]] = {name: [] for name in self.by_name}
        for report in decisions.holds:
            holds.setdefault(tenant_of_gang(report.gang), []).append(report)
        pools = {gang.id: gang.pools[0] for gang in snapshot.gangs if gang.pools}
        for name, tenant in self.by_name.items():
            tenant.reasons.set_pending_reasons(
                holds[name], pools={report.gang: report.pool or pools.get(report.gang) for report in holds[name]}
            )

    def _tenant_of(self, gang: str) -> TenantAdmission | None:
        return self.by_name.get(tenant_of_gang(gang))
