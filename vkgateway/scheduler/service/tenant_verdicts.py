"""Changes of the verdicts on one tenant's pods: decisions of the arbiter, reverts, and evictions that fall due."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from vkgateway.api.names import GANG_RUN_LIMIT_ANNOTATION
from vkgateway.api.run_limits import render_duration
from vkgateway.kinds.pods.translation.conditions import RUN_LIMIT_REACHED
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.scheduler.core.decisions import Admit, Evict, Promote, Reprieve
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.snapshot import Band, PodState
from vkgateway.scheduler.service.gangs import TenantGangs
from vkgateway.scheduler.service.member import GangMember
from vkgateway.scheduler.service.pod_observer import PodObserver
from vkgateway.scheduler.service.verdict_store import VerdictStore, recorded_verdict

_MIN_NOTICE_AFTER_RETURN: Final = 5.0
"""Minimum notice in seconds when a pod's cluster, or the gateway's view of it, is back."""


class TenantVerdicts:
    """Writer of the verdicts on one tenant's pods. A changed verdict rebuilds the gang and enqueues the pod."""

    def __init__(
        self,
        scope: TenantScope,
        gangs: TenantGangs,
        observer: PodObserver,
        *,
        store: VerdictStore,
        trigger: Callable[[], None],
    ) -> None:
        self._scope = scope
        self._gangs = gangs
        self._observer = observer
        self.store = store
        self._verdicts = store.verdicts
        self._trigger = trigger
        self.has_notices = False
        """Whether a pod was under notice in the last cycle."""

    def apply_admit(self, admit: Admit, *, now: float) -> None:
        """Record that pods are admitted, each on its node."""
        for uid, node in admit.nodes.items():
            member = self._gangs.find_member(uid)
            if member is None or self._observer.member_state(member).state is not PodState.WAITING:
                continue
            self._verdicts[uid] = Admission(
                verdict=AdmissionState.ADMITTED,
                pool=admit.pool,
                node=node,
                borrowed=admit.borrowed,
                marks=admit.marks.get(uid),
                since=now,
                behind=admit.behind,
            )
            self._verdict_changed(member)

    def apply_evict(self, evict: Evict) -> None:
        """Record that pods are evicted at the deadline."""
        fields: dict[str, object] = {"code": "", "message": "", "borrowed": True}
        if evict.reached_limit:
            message = run_limit_message(evict.reached_limit, self._gangs.members_of(evict.gang))
            fields = {"code": RUN_LIMIT_REACHED, "message": message}
        for uid in evict.pods:
            self._update_verdict(
                uid,
                verdict=AdmissionState.EVICTING,
                deadline=evict.deadline,
                evicted_for=evict.makes_room_for,
                **fields,
            )

    def apply_reprieve(self, reprieve: Reprieve) -> None:
        """Record that evictions are withdrawn."""
        for uid in reprieve.pods:
            self._update_verdict(uid, verdict=AdmissionState.ADMITTED, deadline=0.0, evicted_for="")

    def apply_promote(self, promote: Promote) -> None:
        """Record that pods run inside the tenant's guarantee from now on."""
        for uid in promote.pods:
            self._update_verdict(uid, borrowed=False)

    def postpone_evictions(self, cluster: str) -> None:
        """Postpone the evictions that fell due while a cluster was unreachable, so that the next cycle can withdraw
        them.
        """
        soonest = self._scope.clock.time() + _MIN_NOTICE_AFTER_RETURN
        for uid, verdict in list(self._verdicts.items()):
            member = self._gangs.find_member(uid)
            if member is None or verdict.pool[0] != cluster or not verdict.is_evicting:
                continue
            if verdict.deadline < soonest and self._observer.member_state(member).state is PodState.NOTIFIED:
                self._update_verdict(uid, deadline=soonest)

    def expire_evictions(self, now: float) -> None:
        """Revert the eviction of pods without a compute pod at their deadline: nothing is deleted, they wait again."""
        self.has_notices = False
        for uid, verdict in list(self._verdicts.items()):
            if not verdict.is_evicting:
                continue
            self.has_notices = True
            member = self._gangs.find_member(uid)
            if member is not None and verdict.deadline <= now and not self._observer.has_compute_pod(member):
                self.revert_verdict(uid)

    def revert_verdict(self, uid: str) -> None:
        """Drop the verdict on a pod, which waits again."""
        self._verdicts.pop(uid, None)
        self._gangs.mark_changed(uid)
        self._trigger()

    def revert_compute_pod(self, uid: str, compute_uid: str) -> None:
        """Drop the verdict on a pod whose compute pod is removed because no node accepted it."""
        if self._observer.unbound.mark_reverted(uid, compute_uid):
            self.revert_verdict(uid)

    def keep_compute_pod(self, uid: str, compute_uid: str) -> None:
        """Record that a node accepted a compute pod, even if it was being removed."""
        if self._observer.unbound.mark_bound(uid, compute_uid):
            self.revert_verdict(uid)

    def _update_verdict(self, uid: str, **fields: object) -> None:
        member = self._gangs.find_member(uid)
        if member is None:
            return
        verdict = self._verdicts.get(uid)
        if verdict is None:
            compute_pod = self._observer.find_compute_pod(member)
            if compute_pod is None:
                return
            verdict = recorded_verdict(compute_pod[0], compute_pod[1].name)
        self._verdicts[uid] = replace(verdict, **fields)  # type: ignore[arg-type]
        self._verdict_changed(member)

    def _verdict_changed(self, member: GangMember) -> None:
        self._observer.record_state(member)
        self._gangs.mark_changed(member.uid)
        self._scope.enqueue_pod(member.key)


def run_limit_message(limit: float, members: Iterable[GangMember]) -> str:
    """Return why the pods of a gang are evicted at its run limit in seconds, for their owner."""
    governed = [member for member in members if member.governed]
    marks = [member.marks for member in governed if member.marks is not None]
    declared = [each for each in marks if each.run_limit is not None]
    # As `merge_marks` does: a gang has a declared limit if all its pods have one.
    if declared and len(declared) == len(governed):
        said = max(declared, key=lambda each: (each.run_limit == limit, each.run_limit or 0.0)).run_limit_source
        return f"reaches its run limit of {render_duration(limit)} ({said}); {_way_out('raise that limit')}"
    is_low = any(member.band is Band.LOW for member in governed)
    band = "low pods" if is_low else "pods of the guaranteed band"
    way_out = _way_out(f"declare a longer limit with annotation {GANG_RUN_LIMIT_ANNOTATION}")
    return f"reaches its run limit of {render_duration(limit)} (the pool's default for {band}); {way_out}"


def _way_out(longer: str) -> str:
    return f"to run longer, {longer}, or save checkpoints from which the next run continues"
