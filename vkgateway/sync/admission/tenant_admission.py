"""The governed pods of one tenant, and the arbiter's verdict on each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from msgspec import structs

from vkgateway.arbiter.decisions import Admit, Evict, PendingReport, Promote, Reprieve
from vkgateway.arbiter.queueing.admission import Admission, AdmissionState
from vkgateway.arbiter.reasons.gang_names import gang_text, name_gang_ahead
from vkgateway.arbiter.snapshot import Gang, PodState, PoolKey, Quota, node_name
from vkgateway.sync.admission.accounting import AdmissionObserver, PodAccounting
from vkgateway.sync.admission.binding_gangs import BindingGangs
from vkgateway.sync.admission.gangs import CompletionStore, EvictionTerms, MemberBackoff, TenantGangs
from vkgateway.sync.admission.member import GangMember, gang_id
from vkgateway.sync.admission.member_state import MemberState
from vkgateway.sync.admission.pod_observer import PodObserver, ending_gang, is_arbiter_placed, recover_verdict
from vkgateway.sync.admission.pod_reads import PodReads
from vkgateway.sync.admission.verdict_store import PREEMPTED, PendingMessage, VerdictStore
from vkgateway.sync.admission.virtual_nodes import virtual_nodes_for
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import ComputePodView, TenantPodView
from vkgateway.translate.pending_message import render_message

_BIND_TIMEOUT: Final = 120.0
"""Seconds for which capacity is reserved for an admitted pod that the tenant's scheduler does not bind."""
_BACKOFF_SECONDS: Final = 300.0
"""Seconds after which the admission is retried; a change of the pod causes a retry immediately."""
_NOT_BOUND: Final = "was admitted, but no scheduler of this cluster bound it; its capacity was released, see its events"
_NOT_UNGATED: Final = "was admitted, but its gate could not be lifted; its capacity was released"
_UNREACHABLE: Final = (
    "was admitted while this cluster's API server did not answer; its capacity is released until it does"
)
_MIN_NOTICE_AFTER_RETURN: Final = 5.0
"""Minimum notice in seconds when a pod's cluster, or the gateway's view of it, is back."""
_NO_STATE: Final = MemberState()
_PENDING: Final = Admission(AdmissionState.PENDING)


class ArbitrationService(AdmissionObserver, Protocol):
    """The arbitration, as far as a tenant's admission uses it."""

    def trigger(self) -> None:
        """Request a cycle soon, because something changed."""

    def recount_pod(self, pod: ComputePodView, cluster: str) -> None:
        """Count a compute pod's usage again, after its tenant pod was read or forgotten."""

    def eviction_terms(self, pool: PoolKey | None) -> EvictionTerms:
        """Return the terms of evictions from a pool."""


class TenantAdmission:
    """The governed pods of one tenant, and the arbiter's verdict on each."""

    def __init__(
        self,
        scope: TenantScope,
        service: ArbitrationService,
        reads: PodReads,
        *,
        completion_store: CompletionStore | None = None,
    ) -> None:
        self._scope = scope
        self.name = scope.name
        self.quotas: tuple[Quota, ...] = ()
        self.verdict_store = VerdictStore()
        self._observer = PodObserver(scope, self.verdict_store)
        self._accounting = PodAccounting(scope, service)
        self.gangs = TenantGangs(
            scope.name,
            states=self._observer,
            terms=service,
            forecast=self._accounting,
            completion_store=completion_store,
        )
        self.reads = reads
        self.is_complete = False
        """Whether all of the tenant's lists were complete once."""
        self.has_notices = False
        """Whether a pod was under notice in the last cycle."""
        self._unread_at_start: set[Key] = set()
        """Pods that existed when the lists were first complete and were not read since."""
        self._service = service
        self._clock = scope.clock
        self._listed_at = 0.0
        """Since when the tenant's API server is reachable, as far as known."""
        self._binding_gangs = BindingGangs()
        self._orphans: dict[str, Gang] = {}
        """Terminating gangs by the UID of the deleted tenant pod."""
        self._orphan_uids: dict[tuple[str, Key], str] = {}
        """Their UIDs by cluster and name."""
        self._last_states: dict[str, MemberState] = {}
        """The last observed state of each member."""

    @property
    def is_known(self) -> bool:
        """Whether every governed pod was read, including those with compute pods, with its companion objects."""
        placed = self._observer.placed_compute_pods()
        read = self.is_complete and not self.reads.unread and self.reads.is_settled
        return read and all(self.is_governed_pod(pod.tenant_uid) for pod in placed)

    def is_governed_pod(self, uid: str) -> bool:
        """Return whether the arbiter places a pod, or placed it until its end."""
        member = self.gangs.find_member(uid)
        return uid in self._orphans if member is None else member.governed

    def runs_arbiter_placed(self, view: TenantPodView) -> bool:
        """Return whether a pod has a running compute pod that the arbiter placed."""
        return self.is_compute_pod_placed(view.metadata.key, view.metadata.uid) is True

    def is_compute_pod_placed(self, key: Key, uid: str) -> bool | None:
        """Return whether the arbiter placed the running compute pod of a pod; None if there is no such compute pod."""
        placed = [
            is_arbiter_placed(pod)
            for pod, _ in self._observer.compute_pods_named(key)
            if pod.tenant_uid == uid and not pod.has_ended
        ]
        return any(placed) if placed else None

    def orphan_gangs(self) -> list[Gang]:
        """Return gangs for the compute pods that terminate after their tenant pods were deleted."""
        return list(self._orphans.values())

    def pods_listed(self) -> None:
        """Record that all pods of the tenant are known, so that missing pods do not exist."""
        if not self.is_complete:
            self._unread_at_start = set(self.reads.unread)
        self.is_complete = True
        self._listed_at = self._clock.time()
        if self._reset_backoff(lambda backoff: backoff.why == _UNREACHABLE):
            self._service.trigger()
        for link in self._scope.links.values():
            for key in link.pods.tenant_pod_keys(self.name):
                self._update_orphan(key, link)

    def put_member(self, member: GangMember) -> None:
        """Add or replace a pod that was read."""
        new = (
            self.is_complete and member.key not in self._unread_at_start and self.gangs.find_member(member.uid) is None
        )
        if new and member.governed and not member.bound:
            self._accounting.pod_arrived(member)
        self._unread_at_start.discard(member.key)
        self.gangs.backoffs.pop(member.uid, None)
        self.gangs.put_member(member)
        self._last_states[member.uid] = self._observer.member_state(member)
        if member.bound:
            self._member_bound(member)
        self._recount_pod(member)
        self._service.trigger()

    def remove_member(self, member: GangMember) -> None:
        """Remove a pod that belongs to no gang any more and requests no devices."""
        self._drop_member(member)
        self._service.trigger()

    def pod_changed(self, key: Key) -> list[GangMember]:
        """Update the members of a name after a change of the tenant pod or compute pod; return the members that were
        deleted.
        """
        deleted = []
        for member in self.gangs.members_named(key):
            state, compute_pod, is_gone = self._observer.observe_member(member)
            if member.governed:
                self._accounting.record_state(
                    member, state, compute_pod=compute_pod, verdict=self.verdict_store.verdicts.get(member.uid)
                )
            if is_gone:
                deleted.append(member)
                self._drop_member(member, state=self._last_states.get(member.uid, state))
            elif state != self._last_states.get(member.uid):
                self._last_states[member.uid] = state
                self.gangs.mark_changed(member.uid)
                if state.has_succeeded:
                    self.gangs.member_succeeded(member.uid)
            else:
                continue
            self._service.trigger()
        for link in self._scope.links.values():
            self._update_orphan(key, link)
        return deleted

    def _update_orphan(self, key: Key, link: ComputeLink) -> None:
        """Record a terminating compute pod whose tenant pod was deleted before it was read."""
        pod, place = link.pods.find_pod(self.name, key), (link.name, key)
        self._orphans.pop(self._orphan_uids.pop(place, ""), None)
        if pod is None or pod.has_ended or not self.is_complete or not is_arbiter_placed(pod):
            return
        if not self._observer.has_owner(pod) and self.gangs.find_member(pod.tenant_uid) is None:
            self._orphan_uids[place] = pod.tenant_uid
            self._orphans[pod.tenant_uid] = ending_gang(self.name, pod, link.name, now=self._clock.time())
            self._service.recount_pod(pod, link.name)

    def _drop_member(self, member: GangMember, *, state: MemberState = _NO_STATE) -> None:
        self._last_states.pop(member.uid, None)
        self.gangs.backoffs.pop(member.uid, None)
        self._accounting.forget_pod(member)
        if self._binding_gangs.is_binding(member.gang_group, member.uid):
            self._cancel_start(member.gang_group)
        self.gangs.drop_member(member.uid, state=state)
        self.verdict_store.forget_pod(member.uid)
        self._observer.forget_pod(member.uid)
        self._recount_pod(member)

    def quotas_changed(self, quotas: Iterable[Quota]) -> None:
        """Replace the quotas, after the tenant's pools or their limits changed."""
        self.quotas = tuple(quotas)
        self.gangs.mark_all_changed()
        self._service.trigger()

    # Decisions of the arbiter.

    def apply_admit(self, admit: Admit, *, now: float) -> None:
        """Record that pods are admitted, each on its node."""
        self._begin_start(admit)
        for uid, node in admit.nodes.items():
            member = self.gangs.find_member(uid)
            if member is None or self._observer.member_state(member).state is not PodState.WAITING:
                continue
            self.verdict_store.verdicts[uid] = Admission(
                verdict=AdmissionState.ADMITTED,
                pool=admit.pool,
                node=node,
                borrowed=admit.borrowed,
                since=now,
                behind=admit.behind,
            )
            self._verdict_changed(member)

    def _begin_start(self, admit: Admit) -> None:
        """Forward no pod of a new gang before all of its pods are bound."""
        members = [member for uid in admit.nodes if (member := self.gangs.find_member(uid)) is not None]
        if len(members) > 1 and not any(map(self._observer.find_compute_pod, self.gangs.members_of(admit.gang))):
            self._binding_gangs.await_binding(
                members[0].gang_group, (member.uid for member in members if not member.bound)
            )

    def _member_bound(self, member: GangMember) -> None:
        """Record a binding; the last one of a gang lets all of its pods be forwarded."""
        if self._binding_gangs.mark_bound(member.gang_group, member.uid):
            for other in self.gangs.members_of(gang_id(self.name, member.gang_group)):
                self._scope.enqueue_pod(other.key)

    def _cancel_start(self, group: str) -> None:
        """Revert the admission of a gang whose pods were not all bound in time, or of which one was deleted."""
        if not self._binding_gangs.is_binding(group):
            return
        self._binding_gangs.cancel_binding(group)
        for member in self.gangs.members_of(gang_id(self.name, group)):
            verdict = self.verdict_store.verdicts.get(member.uid)
            if (
                verdict is not None
                and verdict.verdict is AdmissionState.ADMITTED
                and not self._observer.is_forwarding(member)
            ):
                self.revert_verdict(member.uid)

    def apply_evict(self, evict: Evict) -> None:
        """Record that pods are evicted at the deadline."""
        for uid in evict.pods:
            self._update_verdict(
                uid,
                verdict=AdmissionState.EVICTING,
                deadline=evict.deadline,
                evicted_for=evict.makes_room_for,
                borrowed=True,
            )

    def apply_reprieve(self, reprieve: Reprieve) -> None:
        """Record that evictions are withdrawn."""
        for uid in reprieve.pods:
            self._update_verdict(uid, verdict=AdmissionState.ADMITTED, deadline=0.0, evicted_for="")

    def postpone_evictions(self, cluster: str) -> None:
        """Postpone the evictions that fell due while a cluster was unreachable, so that the next cycle can withdraw
        them.
        """
        soonest = self._clock.time() + _MIN_NOTICE_AFTER_RETURN
        for uid, verdict in list(self.verdict_store.verdicts.items()):
            member = self.gangs.find_member(uid)
            if member is None or verdict.pool[0] != cluster or verdict.verdict is not AdmissionState.EVICTING:
                continue
            if verdict.deadline < soonest and self._observer.member_state(member).state is PodState.NOTIFIED:
                self._update_verdict(uid, deadline=soonest)

    def apply_promote(self, promote: Promote) -> None:
        """Record that pods run inside the tenant's guarantee from now on."""
        for uid in promote.pods:
            self._update_verdict(uid, borrowed=False)

    def set_pending_reasons(self, reports: Iterable[PendingReport], *, pools: Mapping[str, PoolKey | None]) -> None:
        """Replace the pending reasons of all gangs, and enqueue the pods whose reason changed."""
        now = self._clock.time()
        old = self.verdict_store.pending_messages
        self.verdict_store.pending_messages = {
            report.gang: _pending_message(self._with_pod_names(report), pools.get(report.gang), now)
            for report in reports
        }
        for gang, pending in self.verdict_store.pending_messages.items():
            if old.get(gang) != pending:
                for member in self.gangs.members_of(gang):
                    if member.governed and member.uid not in self.verdict_store.verdicts:
                        self._scope.enqueue_pod(member.key)

    def expire_verdicts(self, now: float) -> None:
        """Revert verdicts without a compute pod whose time has expired.

        Evicted pods are not deleted: they wait again. Admitted pods that the tenant's scheduler has not bound release
        their capacity, and are excluded for a while, or until the tenant's API server is reachable again.
        """
        self._reset_backoff(lambda backoff: backoff.until <= now)
        self.has_notices = False
        for uid, verdict in list(self.verdict_store.verdicts.items()):
            self.has_notices |= verdict.verdict is AdmissionState.EVICTING
            member = self.gangs.find_member(uid)
            if (
                member is None
                or self._observer.find_compute_pod(member) is not None
                or self._observer.is_forwarding(member)
            ):
                continue
            if verdict.verdict is AdmissionState.EVICTING and verdict.deadline <= now:
                self.revert_verdict(uid)
            elif (
                verdict.verdict is AdmissionState.ADMITTED and not member.bound and self._bind_deadline(verdict) <= now
            ):
                self.gangs.backoffs[uid] = self._new_backoff(member, now)
                self.revert_verdict(uid)
                self._cancel_start(member.gang_group)

    def _reset_backoff(self, matches: Callable[[MemberBackoff], bool]) -> bool:
        """End the exclusion of matching members; return whether there were any."""
        found = [uid for uid, backoff in self.gangs.backoffs.items() if matches(backoff)]
        for uid in found:
            del self.gangs.backoffs[uid]
            self.gangs.mark_changed(uid)
        return bool(found)

    def _bind_deadline(self, verdict: Admission) -> float:
        """Return the time by which an admitted pod must be bound."""
        return max(verdict.since, self._listed_at) + _BIND_TIMEOUT

    def _new_backoff(self, member: GangMember, now: float) -> MemberBackoff:
        """Return the backoff of a member that was not bound in time, with the reason that the tenant sees."""
        if not self._scope.cache.is_complete:
            return MemberBackoff(math.inf, _UNREACHABLE)
        return MemberBackoff(now + _BACKOFF_SECONDS, _NOT_UNGATED if self._observer.is_gated(member) else _NOT_BOUND)

    def revert_verdict(self, uid: str) -> None:
        """Drop the verdict on a pod, which waits again."""
        self.verdict_store.forget_pod(uid)
        self.gangs.mark_changed(uid)
        self._service.trigger()

    def revert_compute_pod(self, uid: str, compute_uid: str) -> None:
        """Drop the verdict on a pod whose compute pod is removed because no node accepted it."""
        if compute_uid not in self._observer.reverted_pods:
            self._observer.reverted_pods[compute_uid] = uid
            self.revert_verdict(uid)

    def keep_compute_pod(self, uid: str, compute_uid: str) -> None:
        """Restore a compute pod that a node accepted before it was removed."""
        if self._observer.reverted_pods.pop(compute_uid, None) is not None:
            self.revert_verdict(uid)

    def next_deadline(self) -> float | None:
        """Return the next time at which an evicted pod is deleted, or an admitted pod must be bound."""
        now = self._clock.time()
        times = (
            verdict.deadline if verdict.verdict is AdmissionState.EVICTING else self._bind_deadline(verdict)
            for verdict in self.verdict_store.verdicts.values()
        )
        return min((time for time in times if time > now), default=None)

    # Queries of the pod reconcilers.

    def admission_for(self, uid: str, node: str) -> Admission:
        """Return the admission of a pod that is bound to a virtual node and has no compute pod."""
        verdict, member = self.verdict_store.verdicts.get(uid), self.gangs.find_member(uid)
        if member is None:
            return _PENDING
        if verdict is None:
            pending = self.pending_message(member)
            return _PENDING if pending is None else Admission(AdmissionState.HELD, pending.code, pending.reason)
        if node not in virtual_nodes_for(verdict.pool, verdict.node, self._scope.bindings):
            self.revert_verdict(uid)
            return _PENDING
        if verdict.verdict is AdmissionState.EVICTING:
            return self._evicting_admission(uid, verdict)
        if self._binding_gangs.is_binding(member.gang_group):
            return _PENDING
        return Admission(AdmissionState.ADMITTED, node=verdict.node, borrowed=verdict.borrowed, behind=verdict.behind)

    def running_admission(self, uid: str) -> Admission:
        """Return the admission of a pod with a compute pod."""
        verdict = self.verdict_store.verdicts.get(uid)
        if verdict is not None and verdict.verdict is AdmissionState.EVICTING:
            return self._evicting_admission(uid, verdict)
        return Admission(AdmissionState.ADMITTED, borrowed=verdict.borrowed if verdict is not None else None)

    def pending_message(self, member: GangMember) -> PendingMessage | None:
        """Return why a member waits."""
        return self.verdict_store.pending_messages.get(gang_id(self.name, member.gang_group))

    def _evicting_admission(self, uid: str, verdict: Admission) -> Admission:
        is_own = verdict.evicted_for.startswith(f"{self.name}/")
        reason = (
            self._preemptor_text(uid, verdict.evicted_for)
            if is_own
            else "another tenant's workload, which has precedence"
        )
        return Admission(
            AdmissionState.EVICTING,
            code=PREEMPTED,
            message=f"is evicted for {reason}",
            deadline=verdict.deadline,
            evicted_for=verdict.evicted_for,
            grace=self._service.eviction_terms(verdict.pool).grace_max,
        )

    def _preemptor_text(self, uid: str, gang: str) -> str:
        """Return the tenant's own gang for which a pod is evicted, with its priority if that is the reason."""
        text = gang_text(gang.removeprefix(f"{self.name}/"), self._pod_name)
        member, others = self.gangs.find_member(uid), self.gangs.members_of(gang)
        higher = max((other.priority for other in others if other.governed), default=0)
        if member is None or not others or higher <= member.priority:
            return text
        return f"{text}, which has a higher priority ({higher} over {member.priority})"

    def _with_pod_names(self, report: PendingReport) -> PendingReport:
        """Replace UIDs by the names of the tenant's pods."""
        if not report.behind.startswith(f"{self.name}/"):
            return report
        gang_ahead = report.behind.rpartition("/")[2]
        message = name_gang_ahead(report.message, report.behind, {gang_ahead: ("", self._pod_name(gang_ahead))})
        return structs.replace(report, message=message)

    def _pod_name(self, uid: str) -> str:
        member = self.gangs.find_member(uid)
        return member.key[1] if member is not None else ""

    def _update_verdict(self, uid: str, **fields: object) -> None:
        member = self.gangs.find_member(uid)
        if member is None:
            return
        verdict = self.verdict_store.verdicts.get(uid)
        if verdict is None:
            compute_pod = self._observer.find_compute_pod(member)
            if compute_pod is None:
                return
            verdict = recover_verdict(compute_pod[0], compute_pod[1].name)
        self.verdict_store.verdicts[uid] = replace(verdict, **fields)  # type: ignore[arg-type]
        self._verdict_changed(member)

    def _verdict_changed(self, member: GangMember) -> None:
        self._last_states[member.uid] = self._observer.member_state(member)
        self.gangs.mark_changed(member.uid)
        self._scope.enqueue_pod(member.key)

    def _recount_pod(self, member: GangMember) -> None:
        for pod, link in self._observer.compute_pods_named(member.key):
            if pod.tenant_uid == member.uid:
                self._service.recount_pod(pod, link.name)


def _pending_message(report: PendingReport, pool: PoolKey | None, now: float) -> PendingMessage:
    node = node_name(pool) if pool is not None else ""
    return PendingMessage(report.code, report.message, render_message(report, pool=node, now=now))
