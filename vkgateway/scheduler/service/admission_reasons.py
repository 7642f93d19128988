"""Reasons that a tenant sees on its pods: why they wait, and for which workload they are evicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from msgspec import structs

from vkgateway.kinds.pods.translation.conditions import PREEMPTED
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.scheduler.core.decisions import PendingReport
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.reasons.gang_names import gang_text, name_gangs
from vkgateway.scheduler.core.snapshot import PoolKey, node_name
from vkgateway.scheduler.pending_message import render_message
from vkgateway.scheduler.service.gang_builder import TermsSource
from vkgateway.scheduler.service.gangs import TenantGangs
from vkgateway.scheduler.service.member import GangMember, gang_id
from vkgateway.scheduler.service.pending_reporter import PendingMessage
from vkgateway.scheduler.service.verdict_store import VerdictStore

_OTHER_TENANT: Final = "another tenant's workload, which has precedence"
_LOOKS_PER_SECOND: Final = 500.0
"""Gangs per second whose pods are reconciled because only their queue position or expected start changed."""
_BY_SCHEDULER: Final = "is evicted by the scheduler of its pool"
PENDING: Final = Admission(AdmissionState.PENDING)
_STATED: Final = Admission(AdmissionState.EVICTING)


class AdmissionReasons:
    """Reasons of one tenant's pending and evicted pods. Pods of other tenants are not named."""

    def __init__(self, scope: TenantScope, gangs: TenantGangs, *, store: VerdictStore, terms: TermsSource) -> None:
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
