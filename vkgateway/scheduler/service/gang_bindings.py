"""Bindings of admitted gangs by the tenant's scheduler: a gang is forwarded as a whole, or reverted and backs off.

Ordinary pods can take capacity of a virtual node between the admission of a gang and the binding of its last pod.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.scheduler.core.decisions import Admit
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.service.gang_builder import MemberBackoff
from vkgateway.scheduler.service.gangs import TenantGangs
from vkgateway.scheduler.service.member import GangMember, gang_id
from vkgateway.scheduler.service.pod_observer import PodObserver, is_gated
from vkgateway.scheduler.service.tenant_verdicts import TenantVerdicts

_BIND_TIMEOUT: Final = 120.0
"""Seconds for which capacity is reserved for an admitted pod that the tenant's scheduler does not bind."""
_BACKOFF_SECONDS: Final = 300.0
"""Seconds after which the admission is retried; a change of the pod causes a retry immediately."""
_NOT_BOUND: Final = "was admitted, but no scheduler of this cluster bound it; its capacity was released, see its events"
_NOT_UNGATED: Final = "was admitted, but its gate could not be lifted; its capacity was released"
_UNREACHABLE: Final = (
    "was admitted while this cluster's API server did not answer; its capacity is released until it does"
)


class GangBindings:
    """Admitted gangs of one tenant that wait for bindings.

    No pod of a gang is forwarded before all pods that start with it are bound. Pods that the arbiter does not govern
    may use up the capacity of a virtual node before the scheduler binds the last pod of a gang. The other pods would
    then run as an incomplete gang.
    """

    def __init__(
        self,
        scope: TenantScope,
        gangs: TenantGangs,
        observer: PodObserver,
        verdicts: TenantVerdicts,
    ) -> None:
        self._scope = scope
        self._gangs = gangs
        self._observer = observer
        self._verdicts = verdicts
        self._unbound: dict[str, set[str]] = {}
        """UIDs of unbound pods by gang."""
        self._listed_at = 0.0
        """Since when the tenant's API server is reachable, as far as known."""

    def await_bindings(self, admit: Admit) -> None:
        """Forward no pod of a new gang before all of its pods are bound."""
        members = [member for uid in admit.nodes if (member := self._gangs.find_member(uid)) is not None]
        unbound = {member.uid for member in members if not member.bound}
        if len(members) < 2 or not unbound:
            return
        if not any(map(self._observer.find_compute_pod, self._gangs.members_of(admit.gang))):
            self._unbound.setdefault(members[0].gang_group, set()).update(unbound)

    def is_binding(self, group: str) -> bool:
        """Return whether a pod of the gang is not bound yet."""
        return group in self._unbound

    def member_bound(self, member: GangMember) -> None:
        """Record a binding; the last one of a gang lets all of its pods be forwarded."""
        unbound = self._unbound.get(member.gang_group, set())
        if member.uid not in unbound:
            return
        unbound.discard(member.uid)
        if not unbound:
            del self._unbound[member.gang_group]
            for other in self._gangs.members_of(gang_id(self._scope.name, member.gang_group)):
                self._scope.enqueue_pod(other.key)

    def member_deleted(self, member: GangMember) -> None:
        """Revert the admission of a gang if one of its unbound pods was deleted."""
        if member.uid in self._unbound.get(member.gang_group, ()):
            self._cancel_start(member.gang_group)

    def server_returned(self) -> bool:
        """Retry the admissions that failed while the tenant's API server did not answer; return whether there were
        any.
        """
        self._listed_at = self._scope.clock.time()
        return self._end_backoffs(lambda backoff: backoff.why == _UNREACHABLE)

    def expire_bindings(self, now: float) -> None:
        """Revert the admissions of pods that were not bound in time.

        They release their capacity, and are excluded for a while, or until the tenant's API server is reachable again.
        """
        self._end_backoffs(lambda backoff: backoff.until <= now)
        for uid, verdict in list(self._verdicts.store.verdicts.items()):
            if verdict.verdict is not AdmissionState.ADMITTED or self.bind_deadline(verdict) > now:
                continue
            member = self._gangs.find_member(uid)
            if member is not None and not member.bound and not self._observer.has_compute_pod(member):
                self._gangs.backoffs[uid] = self._new_backoff(member, now)
                self._verdicts.revert_verdict(uid)
                self._cancel_start(member.gang_group)

    def bind_deadline(self, verdict: Admission) -> float:
        """Return the time by which an admitted pod must be bound."""
        return max(verdict.since, self._listed_at) + _BIND_TIMEOUT

    def _cancel_start(self, group: str) -> None:
        """Revert the admission of a gang whose pods were not all bound in time, or of which one was deleted."""
        if self._unbound.pop(group, None) is None:
            return
        for member in self._gangs.members_of(gang_id(self._scope.name, group)):
            verdict = self._verdicts.store.verdicts.get(member.uid)
            is_admitted = verdict is not None and verdict.verdict is AdmissionState.ADMITTED
            if is_admitted and not self._observer.is_forwarding(member):
                self._verdicts.revert_verdict(member.uid)

    def _end_backoffs(self, matches: Callable[[MemberBackoff], bool]) -> bool:
        """End the exclusion of matching members; return whether there were any."""
        found = [uid for uid, backoff in self._gangs.backoffs.items() if matches(backoff)]
        for uid in found:
            del self._gangs.backoffs[uid]
            self._gangs.mark_changed(uid)
        return bool(found)

    def _new_backoff(self, member: GangMember, now: float) -> MemberBackoff:
        """Return the backoff of a member that was not bound in time, with the reason that the tenant sees."""
        if not self._scope.cache.is_complete:
            return MemberBackoff(math.inf, _UNREACHABLE)
        view = self._observer.find_tenant_pod(member)
        return MemberBackoff(
            now + _BACKOFF_SECONDS, _NOT_UNGATED if view is not None and is_gated(view) else _NOT_BOUND
        )
