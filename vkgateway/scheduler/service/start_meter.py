"""Metrics of the phases between a guaranteed pod's creation and its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vkgateway.scheduler.core.decisions import Admit, Decisions, PendingReason
from vkgateway.scheduler.core.snapshot import Band, Gang
from vkgateway.scheduler.service.member import tenant_of_gang
from vkgateway.scheduler.service.metrics import observe_start


@dataclass(slots=True)
class _PendingStart:
    """A gang before its start; times in seconds since the epoch."""

    created: float
    """Creation of the pod that was read last: the gang was not complete before."""
    arrived_at: float
    """When that pod was read."""
    pods: set[str] = field(default_factory=set)
    incomplete_at: float = 0.0
    """The last cycle in which members, or the number of members, were missing."""
    planned: float | None = None
    """When a preemption plan for the gang was decided."""
    deadline: float = 0.0
    """When the last victim is deleted."""

    @property
    def ready_since(self) -> float:
        """Time since when the arbiter could have started the gang."""
        return max(self.arrived_at, self.incomplete_at)


class StartMeter:
    """Meter of the phases of starts.

    Watch: from the creation until the pod is known (creation times are whole seconds). Cycle: until the decision.
    Notice: until the victims are deleted. Grace: until they have terminated. Bind: from the admission until the pod is
    bound.

    Only gangs of the guaranteed band are measured that start inside the guarantee, and fitted into it once they were
    complete. Observations are made at the start, so gangs that borrow, or that wait for their own tenant's pods, are
    not included.
    """

    def __init__(self) -> None:
        self._pending_starts: dict[str, _PendingStart] = {}
        self._binding_since: dict[str, float] = {}

    def pod_arrived(self, gang: str, uid: str, *, created: float, now: float) -> None:
        """Record that a pod of a gang was read for the first time. Pods from before the gateway's start are not
        recorded.
        """
        start = self._pending_starts.setdefault(gang, _PendingStart(created, now))
        start.pods.add(uid)
        if start.planned is None:
            start.created, start.arrived_at = created, now

    def cycle_decided(self, gangs: Mapping[str, Gang], decisions: Decisions, *, at: float, now: float) -> None:
        """Record a finished cycle: its snapshot is from `at`, its decisions were dispatched at `now`."""
        for admit in decisions.admits:
            if not admit.borrowed:
                self._observe_start(gangs.get(admit.gang), admit, now)
        for admit in decisions.admits:
            self._pending_starts.pop(admit.gang, None)
        if self._pending_starts:
            self._update_pending(gangs, decisions, at=at, now=now)

    def pod_bound(self, uid: str, *, now: float) -> None:
        """Record that an admitted pod is bound to a node."""
        since = self._binding_since.pop(uid, None)
        if since is not None:
            observe_start("bind", now - since)

    def pod_gone(self, gang: str, uid: str) -> None:
        """Forget a pod that was deleted, or does not wait any more."""
        self._binding_since.pop(uid, None)
        start = self._pending_starts.get(gang)
        if start is not None:
            start.pods.discard(uid)
            if not start.pods:
                del self._pending_starts[gang]

    def forget_tenant(self, tenant: str) -> None:
        """Forget the pending gangs of a tenant that takes no part any more."""
        self._pending_starts = {
            gang: start for gang, start in self._pending_starts.items() if tenant_of_gang(gang) != tenant
        }

    def overdue_seconds(self, now: float) -> float:
        """Return the longest time in seconds since the notice expired for which a gang waits; 0 if none waits."""
        starts = self._pending_starts.values()
        return max((max(0.0, now - start.deadline) for start in starts if start.planned is not None), default=0.0)

    def _observe_start(self, gang: Gang | None, admit: Admit, now: float) -> None:
        start = self._pending_starts.pop(admit.gang, None)
        if start is None or gang is None or gang.band is not Band.GUARANTEED:
            return
        if start.arrived_at >= start.incomplete_at:
            observe_start("watch", start.arrived_at - start.created)
        observe_start("cycle", (now if start.planned is None else start.planned) - start.ready_since)
        if start.planned is not None:
            observe_start("notice", min(now, start.deadline) - start.planned)
            observe_start("grace", now - start.deadline)
        self._binding_since.update(dict.fromkeys(admit.nodes, now))

    def _update_pending(self, gangs: Mapping[str, Gang], decisions: Decisions, *, at: float, now: float) -> None:
        """Record gangs that wait for victims or members; gangs that wait for anything else are not measured."""
        deadlines: dict[str, float] = {}
        for evict in decisions.evicts:
            deadlines[evict.makes_room_for] = max(evict.deadline, deadlines.get(evict.makes_room_for, 0.0))
        holds = {hold.gang: hold.code for hold in decisions.holds if hold.gang in self._pending_starts}
        for name, start in list(self._pending_starts.items()):
            plan, code = decisions.plans.get(name), holds.get(name)
            if plan is not None and not plan.borrowed and name in gangs:
                if start.planned is None:
                    start.planned, start.deadline = now, deadlines.get(name, now)
                start.deadline = max(start.deadline, deadlines.get(name, 0.0))
            elif code is PendingReason.MEMBERS and start.planned is None:
                start.incomplete_at = at
            elif plan is not None or code is not None:
                del self._pending_starts[name]
