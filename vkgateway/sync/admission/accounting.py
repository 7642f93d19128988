"""Keeps account of one tenant's governed pods: how long their starts take, and what they used when they have ended."""

from __future__ import annotations

from typing import Protocol

from vkgateway.arbiter.queueing.admission import Admission, AdmissionState
from vkgateway.sync.admission.member import GangMember, gang_id
from vkgateway.sync.admission.member_state import MemberState
from vkgateway.sync.admission.run_history import RunHistory
from vkgateway.sync.admission.start_meter import StartMeter
from vkgateway.sync.admission.verdict_store import PREEMPTED, PodRun
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.pods import ComputePodView


class AdmissionObserver(Protocol):
    """Who hears of it."""

    @property
    def start_meter(self) -> StartMeter:
        """Measures the way to guaranteed starts."""

    def pod_ended(self, tenant: str, ran: PodRun) -> None:
        """A pod that ran has ended."""


class PodAccounting:
    """One tenant's."""

    def __init__(self, scope: TenantScope, observer: AdmissionObserver) -> None:
        self._tenant = scope.name
        self._observer = observer
        self._clock = scope.clock
        self._history = RunHistory()
        self._start_times: dict[str, float] = {}
        """Since when (seconds since the epoch) each pod, by uid, holds what it was given below."""

    def expected_run(self, member: GangMember) -> float | None:
        """Seconds that a pod will run, by those like it; None: too few are known."""
        return self._history.expected_run(*member.key)

    def pod_arrived(self, member: GangMember) -> None:
        """A pod that is to be placed was read for the first time."""
        self._observer.start_meter.pod_arrived(
            self._gang_id(member), member.uid, created=member.created, now=self._clock()
        )

    def record_state(
        self, member: GangMember, seen: MemberState, *, below: ComputePodView | None, verdict: Admission | None
    ) -> None:
        """A pod stands like this now."""
        uid = member.uid
        if seen.state is None:
            self._observer.start_meter.pod_gone(self._gang_id(member), uid)
            start = self._start_times.pop(uid, None)
            if start is not None and seen.has_succeeded:
                self._history.add_run(*member.key, self._clock() - start)
            if start is not None and verdict is not None:
                self._observer.pod_ended(
                    self._tenant, self._build_run(member, verdict, start=start, done=seen.has_succeeded)
                )
        elif below is not None:
            self._start_times.setdefault(uid, seen.since)
            if below.spec.node_name:
                self._observer.start_meter.pod_bound(uid, now=self._clock())

    def forget_pod(self, member: GangMember) -> None:
        """A pod is gone, or of no gang any more."""
        self._observer.start_meter.pod_gone(self._gang_id(member), member.uid)
        self._start_times.pop(member.uid, None)

    def _build_run(self, member: GangMember, verdict: Admission, *, start: float, done: bool) -> PodRun:
        return PodRun(
            namespace=member.key[0],
            name=member.key[1],
            gang=self._gang_id(member),
            band=member.band,
            verdict=verdict,
            shape=member.shape,
            start=start,
            end=self._clock(),
            checkpoint=member.marks.checkpoint if member.marks is not None else 0.0,
            end_reason=PREEMPTED if verdict.verdict is AdmissionState.EVICTING else "Succeeded" if done else "Ended",
        )

    def _gang_id(self, member: GangMember) -> str:
        return gang_id(self._tenant, member.gang_group)
