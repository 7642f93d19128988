"""Admission of one tenant's governed pods: the pods that were read, and the verdicts that the pod reconcilers get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from vkgateway.api import times
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.pods.translation.conditions import PREEMPTED
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.core.decisions import Admit, PendingReport
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.reasons.gang_names import gang_text, name_gangs
from vkgateway.scheduler.core.snapshot import Gang, Pod, PodState, PoolKey, Quota, Shape, node_name
from vkgateway.scheduler.pending_message import render_message
from vkgateway.scheduler.service.accounting import PodAccounting
from vkgateway.scheduler.service.companion_objects import CompanionObjects
from vkgateway.scheduler.service.completion_records import CompletionRecords
from vkgateway.scheduler.service.gang_bindings import GangBindings
from vkgateway.scheduler.service.gangs import TenantGangs
from vkgateway.scheduler.service.member import NO_STATE, GangMember, MemberState, gang_id
from vkgateway.scheduler.service.pending_reporter import PendingMessage
from vkgateway.scheduler.service.pod_observer import PodObserver
from vkgateway.scheduler.service.tenant_verdicts import TenantVerdicts
from vkgateway.scheduler.service.verdict_store import VerdictStore, is_arbiter_placed, recorded_verdict
from vkgateway.scheduler.service.virtual_nodes import virtual_nodes_for

if TYPE_CHECKING:
    from vkgateway.scheduler.service.arbitration import Arbitration


class OrphanedPods:
    """Terminating compute pods of one tenant whose tenant pods were deleted before they were read."""

    def __init__(self, scope: TenantScope, gangs: TenantGangs, arbitration: Arbitration) -> None:
        self._scope = scope
        self._gangs = gangs
        self._arbitration = arbitration
        self._orphans: dict[str, Gang] = {}
        """Gangs by the UID of the deleted tenant pod."""
        self.uids_by_place: dict[tuple[str, Key], str] = {}
        """These UIDs by cluster and name."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._orphans

    def gangs(self) -> list[Gang]:
        """Return a gang for each orphan."""
        return list(self._orphans.values())

    def compute_pod_changed(self, key: Key, link: ComputeLink) -> None:
        """Update the orphan with a tenant pod's name, once all pods of the tenant are known."""
        pod, place = link.pods.find_pod(self._scope.name, key), (link.name, key)
        self._orphans.pop(self.uids_by_place.pop(place, ""), None)
        if pod is None or pod.has_ended or not is_arbiter_placed(pod):
            return
        if not self._has_owner(pod) and self._gangs.find_member(pod.tenant_uid) is None:
            self.uids_by_place[place] = pod.tenant_uid
            self._orphans[pod.tenant_uid] = ending_gang(self._scope.name, pod, link.name, now=self._scope.clock.time())
            self._arbitration.recount_pod(pod, link.name)

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


class PodReads:
    """The pods of one tenant that were not read yet, or must be read again."""

    def __init__(self, companions: CompanionObjects) -> None:
        self._companions = companions
        self.unread: set[Key] = set()
        """Pods that are still to be read."""
        self.outdated: set[str] = set()
        """Pods, by uid, of which a companion object, a pool or a volume changed since they were read."""

    @property
    def is_settled(self) -> bool:
        """Whether everything read of pods is current, including their companion objects."""
        return self._companions.is_complete and not self.outdated


class TenantAdmission:
    """The governed pods of one tenant.

    They are put in when they were read, and removed when they do not exist in any cluster. `verdicts` takes the
    arbiter's decisions, `bindings` delays forwarding until a gang is bound, `reasons` explains verdicts to the tenant.
    """

    def __init__(
        self,
        scope: TenantScope,
        arbitration: Arbitration,
        companions: CompanionObjects,
        completion_records: CompletionRecords,
    ) -> None:
        self._scope = scope
        self._arbitration = arbitration
        self.name = scope.name
        self.quotas: tuple[Quota, ...] = ()
        self.reads = PodReads(companions)
        self.verdict_store = store = VerdictStore()
        self.observer = observer = PodObserver(scope, store)
        self._accounting = PodAccounting(scope, arbitration)
        self.gangs = gangs = TenantGangs(
            scope.name,
            state_of=observer.member_state,
            terms=arbitration,
            expected_run=self._accounting.expected_run,
            completion_records=completion_records,
            look=companions.get_object,
            namespaces=scope.cache.namespace_labels,
            clock=scope.clock,
        )
        self.verdicts = TenantVerdicts(scope, gangs, observer, store=store, trigger=arbitration.trigger)
        self.bindings = GangBindings(scope, gangs, observer, self.verdicts)
        self.reasons = AdmissionReasons(scope, gangs, store=store, terms=arbitration)
        self.orphans = OrphanedPods(scope, gangs, arbitration)
        self.work_queue = scope.work_queue
        self.is_complete = False
        """Whether all of the tenant's lists were complete once."""
        self.was_known = False
        """Whether `is_known` was true in a cycle of a pool of another scheduler."""
        self._unread_at_start: set[Key] = set()
        """Pods that existed when the lists were first complete and were not read since."""

    @property
    def is_known(self) -> bool:
        """Whether every governed pod was read, including those with compute pods, with its companion objects."""
        placed = self.observer.placed_compute_pods()
        read = self.is_complete and not self.reads.unread and self.reads.is_settled
        return read and all(self.is_governed_pod(pod.tenant_uid) for pod in placed)

    def is_governed_pod(self, uid: str) -> bool:
        """Return whether the arbiter places a pod, or placed it until its end."""
        member = self.gangs.find_member(uid)
        return uid in self.orphans if member is None else member.governed

    def pods_listed(self) -> None:
        """Record that all pods of the tenant are known, so that missing pods do not exist."""
        if not self.is_complete:
            self._unread_at_start = set(self.reads.unread)
        self.is_complete = True
        if self.bindings.server_returned():
            self._arbitration.trigger()
        for link in self._scope.links.values():
            for key in link.pods.tenant_pod_keys(self.name):
                self.orphans.compute_pod_changed(key, link)

    def put_member(self, member: GangMember) -> None:
        """Add or replace a pod that was read."""
        new = (
            self.is_complete and member.key not in self._unread_at_start and self.gangs.find_member(member.uid) is None
        )
        if new and member.governed and not member.bound:
            self._accounting.pod_arrived(member)
        self._unread_at_start.discard(member.key)
        selects_more = self.gangs.put_member(member)
        self.observer.record_state(member)
        if member.bound:
            self.bindings.member_bound(member)
        self._recount_pod(member)
        for link in self._scope.links.values() if selects_more else ():
            for pod in link.pods.of_tenant(self.name):
                self._arbitration.recount_pod(pod, link.name)
        self._arbitration.trigger()

    def remove_member(self, member: GangMember) -> None:
        """Remove a pod that belongs to no gang any more and requests no devices."""
        self._drop_member(member)
        self._arbitration.trigger()

    def pod_changed(self, key: Key) -> list[GangMember]:
        """Update the members of a name after a change of the tenant pod or compute pod; return the members that were
        deleted.
        """
        deleted = []
        for member in self.gangs.members_named(key):
            state, compute_pod, is_gone = self.observer.observe_member(member)
            last = self.observer.last_states.get(member.uid)
            if member.governed:
                self._accounting.record_state(
                    member, state, compute_pod=compute_pod, verdict=self.verdict_store.verdicts.get(member.uid)
                )
            if is_gone:
                deleted.append(member)
                self._drop_member(member, state=last or state)
            elif state != last:
                self.observer.last_states[member.uid] = state
                self.gangs.mark_changed(member.uid)
                if state.has_succeeded:
                    self.gangs.member_succeeded(member.uid)
            else:
                continue
            self._arbitration.trigger()
        if self.is_complete:
            for link in self._scope.links.values():
                self.orphans.compute_pod_changed(key, link)
        return deleted

    def _drop_member(self, member: GangMember, *, state: MemberState = NO_STATE) -> None:
        self._accounting.forget_pod(member)
        self.bindings.member_deleted(member)
        self.gangs.drop_member(member.uid, state=state)
        self.verdict_store.verdicts.pop(member.uid, None)
        self.observer.forget_pod(member.uid)
        self._recount_pod(member)

    def _recount_pod(self, member: GangMember) -> None:
        for pod, link in self.observer.compute_pods_named(member.key):
            if pod.tenant_uid == member.uid:
                self._arbitration.recount_pod(pod, link.name)

    def peer_selectors_of(self, pod: ComputePodView) -> frozenset[str]:
        """Return the names of the selectors in hard constraints of the tenant's members that select a compute pod."""
        selectors, view = self.gangs.peer_selectors, self._scope.cache.pods.store.get(pod.tenant_key)
        if not selectors or view is None or view.metadata.uid != pod.tenant_uid:
            return frozenset()
        terminating = (pod.metadata.deletion_timestamp or view.metadata.deletion_timestamp) is not None
        return selectors.names_for(view.metadata.namespace, view.metadata.labels, terminating=terminating)

    def quotas_changed(self, quotas: Iterable[Quota]) -> None:
        """Replace the quotas, after the tenant's pools or their limits changed."""
        self.quotas = tuple(quotas)
        self.gangs.mark_all_changed()
        self._arbitration.trigger()

    def apply_admit(self, admit: Admit, *, now: float) -> None:
        """Record that pods are admitted; those of a new gang wait until all of them are bound."""
        self.bindings.await_bindings(admit)
        self.verdicts.apply_admit(admit, now=now)

    def expire_verdicts(self, now: float) -> None:
        """Revert verdicts without a compute pod whose time has expired."""
        self.bindings.expire_bindings(now)
        self.verdicts.expire_evictions(now)

    def next_deadline(self) -> float | None:
        """Return the next time at which an evicted pod is deleted, an admitted pod must be bound, or a lost member is
        not expected back any more.
        """
        now = self._scope.clock.time()
        expiry = self.gangs.next_expiry(now)
        times = (
            verdict.deadline if verdict.is_evicting else self.bindings.bind_deadline(verdict)
            for verdict in self.verdict_store.verdicts.values()
        )
        return min((time for time in (*times, *filter(None, [expiry])) if time > now), default=None)

    # Queries of the pod reconcilers.

    def admission_for(self, uid: str, node: str) -> Admission:
        """Return the admission of a pod that is bound to a virtual node and has no compute pod."""
        verdict, member = self.verdict_store.verdicts.get(uid), self.gangs.find_member(uid)
        if member is None:
            return PENDING
        if verdict is None:
            return self.reasons.pending_admission(member)
        if node not in virtual_nodes_for(verdict.pool, verdict.node, self._scope.bindings):
            self.verdicts.revert_verdict(uid)
            return PENDING
        if verdict.is_evicting:
            return self.reasons.evicting_admission(uid, verdict)
        if self.bindings.is_binding(member.gang_group):
            return PENDING
        return Admission(
            AdmissionState.ADMITTED,
            node=verdict.node,
            borrowed=verdict.borrowed,
            marks=verdict.marks,
            gang=member.gang_group,
            behind=verdict.behind,
        )

    def running_admission(self, uid: str) -> Admission:
        """Return the admission of a pod with a compute pod."""
        verdict = self.verdict_store.verdicts.get(uid)
        if verdict is not None and verdict.is_evicting:
            return self.reasons.evicting_admission(uid, verdict)
        return Admission(AdmissionState.ADMITTED, borrowed=verdict.borrowed if verdict is not None else None)


_OTHER_TENANT: Final = "another tenant's workload, which has precedence"
_LOOKS_PER_SECOND: Final = 500.0
"""Gangs per second whose pods are reconciled because only their queue position or expected start changed."""
_BY_SCHEDULER: Final = "is evicted by the scheduler of its pool"
PENDING: Final = Admission(AdmissionState.PENDING)
_STATED: Final = Admission(AdmissionState.EVICTING)


class AdmissionReasons:
    """Reasons of one tenant's pending and evicted pods. Pods of other tenants are not named."""

    def __init__(self, scope: TenantScope, gangs: TenantGangs, *, store: VerdictStore, terms: Arbitration) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._gangs = gangs
        self._store = store
        self._terms = terms
        self.pending_messages: dict[str, PendingMessage] = {}
        """By gang."""

    def set_pending_reasons(self, reports: Iterable[PendingReport], *, pools: Mapping[str, PoolKey | None]) -> None:
        """Replace the pending reasons of all gangs, and enqueue the pods whose reason changed.

        Each cycle can change the queue positions of all gangs. So with many gangs, such changes are enqueued later.
        """
        now = self._scope.clock.time()
        old = self.pending_messages
        self.pending_messages = {
            report.gang: _pending_message(self._with_pod_names(report), pools.get(report.gang), now)
            for report in reports
        }
        later = len(self.pending_messages) / _LOOKS_PER_SECOND
        for gang, pending in self.pending_messages.items():
            known = old.get(gang)
            if known == pending:
                continue
            is_new = known is None or (known.code, known.reason) != (pending.code, pending.reason)
            for member in self._gangs.members_of(gang):
                if member.governed and member.uid not in self._store.verdicts:
                    self._scope.enqueue_pod(member.key, 0.0 if is_new else later)

    def pending_message(self, member: GangMember) -> PendingMessage | None:
        """Return why a member waits."""
        return self.pending_messages.get(gang_id(self._tenant, member.gang_group))

    def pending_admission(self, member: GangMember) -> Admission:
        """Return the admission of a member without a verdict: held, if its reason is known."""
        pending = self.pending_message(member)
        return PENDING if pending is None else Admission(AdmissionState.HELD, pending.code, pending.reason)

    def evicting_admission(self, uid: str, verdict: Admission) -> Admission:
        """Return the admission of an evicted pod, with its deadline and the reason."""
        grace = self._terms.eviction_terms(verdict.pool).grace_max
        if verdict.has_reached_limit:
            return replace(_STATED, code=verdict.code, message=verdict.message, deadline=verdict.deadline, grace=grace)
        is_own = verdict.evicted_for.startswith(f"{self._tenant}/")
        reason = self._preemptor_text(uid, verdict.evicted_for) if is_own else _OTHER_TENANT
        return Admission(
            AdmissionState.EVICTING,
            code=PREEMPTED,
            message=f"is evicted for {reason}" if verdict.evicted_for else _BY_SCHEDULER,
            deadline=verdict.deadline,
            evicted_for=verdict.evicted_for,
            grace=grace,
        )

    def _preemptor_text(self, uid: str, gang: str) -> str:
        """Return the tenant's own gang for which a pod is evicted, with its priority if that is the reason."""
        text = gang_text(gang.removeprefix(f"{self._tenant}/"), self._pod_name)
        member, others = self._gangs.find_member(uid), self._gangs.members_of(gang)
        higher = max((other.priority for other in others if other.governed), default=0)
        if member is None or not others or higher <= member.priority:
            return text
        return f"{text}, which has a higher priority ({higher} over {member.priority})"

    def _with_pod_names(self, report: PendingReport) -> PendingReport:
        """Replace UIDs by the names of the tenant's pods."""
        own = [gang for gang in (report.behind, report.ends) if gang.startswith(f"{self._tenant}/")]
        if not own:
            return report
        names = {uid: ("", self._pod_name(uid)) for uid in (gang.rpartition("/")[2] for gang in own)}
        return structs.replace(report, message=name_gangs(report, names))

    def _pod_name(self, uid: str) -> str:
        member = self._gangs.find_member(uid)
        return member.key[1] if member is not None else ""


def _pending_message(report: PendingReport, pool: PoolKey | None, now: float) -> PendingMessage:
    node = node_name(pool) if pool is not None else ""
    return PendingMessage(report.code, report.message, render_message(report, pool=node, now=now))
