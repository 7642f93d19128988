"""Measures each part of the way from a guaranteed pod's creation to its start, as metrics of the bound on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vkgateway.arbiter.decisions import Admit, Decisions, PendingReason
from vkgateway.arbiter.snapshot import Band, Gang
from vkgateway.sync.arbiter_metrics import observe_start


@dataclass(slots=True)
class _PendingStart:
    """A gang on its way; moments in seconds since the epoch."""

    created: float
    """When the pod was created that was read last; the gang was not complete before."""
    arrived_at: float
    """When it was read."""
    pods: set[str] = field(default_factory=set)
    incomplete_at: float = 0.0
    """The last cycle's time in which members were missing, or what says how many they are."""
    planned: float | None = None
    """When it was decided who makes room for it."""
    deadline: float = 0.0
    """When the last of those is deleted."""

    @property
    def ready_since(self) -> float:
        """Since when the arbiter could have started it."""
        return max(self.arrived_at, self.incomplete_at)


class StartMeter:
    """Watch: creation to being known here (times of creation are whole seconds). Cycle: to the decision. Notice: to the
    deletion of those who make room. Grace: until they are gone. Bind: from admission to a node of its own.

    Measured are gangs of the guaranteed band that start inside the guarantee, and fitted into it once they were
    complete. Nothing is observed before the start, so whatever comes to borrow, or waits for its own tenant's work to
    end, is not in the figures.
    """

    def __init__(self) -> None:
        self._pending_starts: dict[str, _PendingStart] = {}
        self._binding_since: dict[str, float] = {}

    def pod_arrived(self, gang: str, uid: str, *, created: float, now: float) -> None:
        """A pod of a gang was read for the first time. Pods that were there before the gateway began do not arrive."""
        way = self._pending_starts.setdefault(gang, _PendingStart(created, now))
        way.pods.add(uid)
        if way.planned is None:
            way.created, way.arrived_at = created, now

    def cycle_decided(self, gangs: Mapping[str, Gang], decisions: Decisions, *, at: float, now: float) -> None:
        """A cycle is done: about what there was at one moment, until now."""
        for admit in decisions.admits:
            if not admit.borrowed:
                self._observe_start(gangs.get(admit.gang), admit, now)
        for admit in decisions.admits:
            self._pending_starts.pop(admit.gang, None)
        if self._pending_starts:
            self._update_pending(gangs, decisions, at=at, now=now)

    def pod_bound(self, uid: str, *, now: float) -> None:
        """A pod that was admitted has its node."""
        since = self._binding_since.pop(uid, None)
        if since is not None:
            observe_start("bind", now - since)

    def pod_gone(self, gang: str, uid: str) -> None:
        """A pod is gone, or waits no more."""
        self._binding_since.pop(uid, None)
        way = self._pending_starts.get(gang)
        if way is not None:
            way.pods.discard(uid)
            if not way.pods:
                del self._pending_starts[gang]

    def _observe_start(self, gang: Gang | None, admit: Admit, now: float) -> None:
        way = self._pending_starts.pop(admit.gang, None)
        if way is None or gang is None or gang.band is not Band.GUARANTEED:
            return
        if way.arrived_at >= way.incomplete_at:
            observe_start("watch", way.arrived_at - way.created)
        observe_start("cycle", (now if way.planned is None else way.planned) - way.ready_since)
        if way.planned is not None:
            observe_start("notice", min(now, way.deadline) - way.planned)
            observe_start("grace", now - way.deadline)
        self._binding_since.update(dict.fromkeys(admit.nodes, now))

    def _update_pending(self, gangs: Mapping[str, Gang], decisions: Decisions, *, at: float, now: float) -> None:
        """Note who waits for others to go, or for members; whoever waits for anything else is not measured."""
        deadlines: dict[str, float] = {}
        for evict in decisions.evicts:
            deadlines[evict.makes_room_for] = max(evict.deadline, deadlines.get(evict.makes_room_for, 0.0))
        holds = {hold.gang: hold.code for hold in decisions.holds if hold.gang in self._pending_starts}
        for name, way in list(self._pending_starts.items()):
            plan, code = decisions.plans.get(name), holds.get(name)
            if plan is not None and not plan.borrowed and name in gangs:
                if way.planned is None:
                    way.planned, way.deadline = now, deadlines.get(name, now)
                way.deadline = max(way.deadline, deadlines.get(name, 0.0))
            elif code is PendingReason.MEMBERS and way.planned is None:
                way.incomplete_at = at
            elif plan is not None or code is not None:
                del self._pending_starts[name]
