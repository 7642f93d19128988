"""Measures each part of the way from a guaranteed pod's creation to its start, as metrics of the bound on it."""

from __future__ import annotations

from dataclasses import dataclass

from vkgateway.arbiter.decisions import Admit, Decisions
from vkgateway.arbiter.facts import Band, Gang
from vkgateway.sync.arbiter_metrics import Term, observe_start


@dataclass(slots=True)
class _Way:
    """A gang on its way; moments in seconds since the epoch."""

    arrived: float
    planned: float | None = None
    """When it was decided who makes room for it."""
    deadline: float = 0.0
    """When the last of those is deleted."""


class StartMeter:
    """Watch: creation to being known here (times of creation are whole seconds). Cycle: to the decision. Notice: to the
    deletion of those who make room. Grace: until they are gone. Bind: from admission to a node of its own."""

    def __init__(self) -> None:
        self._ways: dict[str, _Way] = {}
        self._binding: dict[str, float] = {}

    def arrived(self, gang: str, *, created: float, now: float) -> None:
        """A pod of a gang was read for the first time."""
        if gang not in self._ways:
            observe_start("watch", now - created)
            self._ways[gang] = _Way(now)

    def decided(self, gangs: dict[str, Gang], decisions: Decisions, *, now: float) -> None:
        """A cycle is done; `now` is when it was decided."""
        deadlines: dict[str, float] = {}
        for evict in decisions.evicts:
            deadlines[evict.makes_room_for] = max(evict.deadline, deadlines.get(evict.makes_room_for, 0.0))
        for gang in decisions.plans:
            way = self._ways.get(gang)
            if way is not None and way.planned is None:
                way.planned, way.deadline = now, deadlines.get(gang, now)
                self._observe(gangs.get(gang), "cycle", now - way.arrived)
        for admit in decisions.admits:
            self._admitted(gangs.get(admit.gang), admit, now)

    def bound(self, uid: str, *, now: float) -> None:
        """A pod that was admitted has its node."""
        since = self._binding.pop(uid, None)
        if since is not None:
            observe_start("bind", now - since)

    def gone(self, gang: str, uid: str) -> None:
        """A pod is gone, or waits no more."""
        self._ways.pop(gang, None)
        self._binding.pop(uid, None)

    def _admitted(self, gang: Gang | None, admit: Admit, now: float) -> None:
        way = self._ways.pop(admit.gang, None)
        if way is None or admit.borrowed:
            return
        if way.planned is None:
            self._observe(gang, "cycle", now - way.arrived)
        else:
            self._observe(gang, "notice", min(now, way.deadline) - way.planned)
            self._observe(gang, "grace", now - way.deadline)
        self._binding.update(dict.fromkeys(admit.nodes, now))

    @staticmethod
    def _observe(gang: Gang | None, term: Term, seconds: float) -> None:
        if gang is not None and gang.band is Band.GUARANTEED:
            observe_start(term, seconds)
