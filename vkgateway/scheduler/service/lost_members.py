"""Memory of running gangs: the members that they lost, and their age, until their controllers have replaced them.

The memory is lost with the process. After a restart of the gateway, a gang with placed pods that lacks members counts
as one that lost them. A gang without any placed pod is new then: nothing in the clusters says that it ran.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vkgateway.api.objects import Object
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.snapshot import Gang, Pod, PodState
from vkgateway.scheduler.gangs import Reference
from vkgateway.scheduler.service.member import GangMember, MemberState

HOLD_SECONDS: Final = 600.0
"""Seconds for which a gang counts as the same after a member was lost, and for which the place of the member is held.
A Job's back-off is at most six minutes, and a group that is re-created first waits for its old pods to terminate. A
controller that needs longer has another reason to wait."""

_ATTEMPT: Final = re.compile(r"(?P<gang>[^/]+/jobset/[^/]+)/restart-[0-9]+")
_WITHOUT_PODS: Final = frozenset(("PodGroup", "Workload"))
"""Kinds of companion objects that create no pods: they may outlive the gang's controller."""
_FINAL_CONDITIONS: Final = frozenset(("Complete", "Completed", "Failed", "Succeeded", "Finished"))

LookUp = Callable[[Reference], Object | None]


def lineage_of(group: str) -> str:
    """Return the part of a gang's name that its re-creations share: a JobSet counts its attempts in the name."""
    return _ATTEMPT.sub(r"\g<gang>", group, count=1)


@dataclass(slots=True)
class GangMemory:
    """What a gang was before it lost members."""

    group: str
    """Its present name: each attempt of a JobSet has another one."""
    is_short: bool = False
    """It ran with its min members, and lacks some of them since some failed, were deleted or lost their node."""
    has_run: bool = False
    created: float = 0.0
    """Creation time of its first pod, for a gang that ran (seconds since the epoch)."""
    running: dict[str, Pod] = field(default_factory=dict)
    """Its placed pods by UID, without evicted ones."""
    lost: dict[str, Pod] = field(default_factory=dict)
    """Pods that ended since the gang was last complete, with the time until which they are expected back."""
    controllers: frozenset[str] = frozenset()
    """UIDs of the objects that create its pods."""
    owners: dict[Reference, str] = field(default_factory=dict)
    """Those among them that are watched, with their UIDs."""
    gang: Gang | None = None
    """The gang as it was built last."""
    absent: Gang | None = None
    """The gang without pods, as it was last in a snapshot."""

    def expires_at(self) -> float | None:
        """Return the time until which lost members are expected back; None: none is."""
        return max((pod.deadline for pod in self.lost.values()), default=None)

    def note_pods(
        self, gang: Gang, members: Iterable[GangMember], states: Mapping[str, MemberState], look: LookUp, now: float
    ) -> Gang:
        """Take over the present pods of the gang; return it with its age and what it lost."""
        placed = [pod for pod in gang.pods if pod.state is PodState.PLACED]
        is_first, is_complete = self.gang is None, has_min_members(gang, placed)
        self._note_ends(gang, states, now)
        self._note_controllers(members, states, look, is_complete=is_complete, is_placed=bool(placed))
        evicting = {uid for uid, state in states.items() if state.verdict is not None and state.verdict.is_evicting}
        if is_complete:
            self.created = min(self.created, gang.created) if self.has_run else gang.created
            self.has_run, self.is_short = True, False
            self.lost.clear()
        elif not evicting.isdisjoint(pod.uid for pod in gang.pods):
            self.forget_run()
        elif self.has_run:
            # A deleted member still terminates.
            self.is_short = bool(self.lost) or any(pod.state is PodState.ENDING for pod in gang.pods)
        elif placed and is_first:
            self.has_run = self.is_short = True
            self.created = gang.created
        self.running |= {pod.uid: pod for pod in placed}
        for uid in evicting:
            self.running.pop(uid, None)
        self.gang = gang
        return self._with_memory(gang, look, now)

    def _note_controllers(
        self,
        members: Iterable[GangMember],
        states: Mapping[str, MemberState],
        look: LookUp,
        *,
        is_complete: bool,
        is_placed: bool,
    ) -> None:
        """Record what creates the gang's pods. Waiting pods of other controllers are another gang of the same name."""
        there = [member for member in members if states[member.uid].state is not None]
        waiting = [member for member in there if states[member.uid].state is PodState.WAITING]
        if self.has_run and not is_placed and waiting:
            owners = _owners(waiting, look).items()
            if self.controllers.isdisjoint(_controllers(waiting)) and self.owners.items().isdisjoint(owners):
                self.forget_run()
        if is_complete or not self.has_run:
            self.controllers, self.owners = _controllers(there), _owners(there, look)

    def member_deleted(self, uid: str, state: MemberState) -> None:
        """Note a member that does not exist any more, and its last state."""
        if state.has_succeeded:
            self.running.pop(uid, None)
        elif state.verdict is not None and state.verdict.is_evicting:
            self.running.pop(uid, None)
            self.forget_run()

    def note_absence(self, states: Mapping[str, MemberState], now: float) -> None:
        """Note that none of the gang's pods exists."""
        if self.gang is not None:
            self._note_ends(replace(self.gang, pods=()), states, now)
            self.is_short = self.has_run and bool(self.lost)
            if not self.is_short:
                self.forget_run()

    def gang_without_pods(self, look: LookUp, now: float) -> Gang | None:
        """Return the gang while its controller is expected to re-create it as a whole; None: it is not."""
        if self.gang is None or not self.is_short or not self.owners:
            return None
        found = self._with_memory(replace(self.gang, pods=(), plan=None), look, now)
        return found if found.lost else None

    def move_to(self, group: str, now: float) -> None:
        """Take over another name: the gang's controller creates the pods of its next attempt."""
        self.note_absence({}, now)
        self.group = group

    def forget_run(self) -> None:
        """Treat the gang as one that never ran: the arbiter evicted it, or it is another gang of the same name."""
        self.has_run = self.is_short = False
        self.lost.clear()

    def _note_ends(self, gang: Gang, states: Mapping[str, MemberState], now: float) -> None:
        there = {pod.uid for pod in gang.pods}
        for uid in [uid for uid in self.running if uid not in there]:
            pod, state = self.running.pop(uid), states.get(uid)
            if state is None or not state.has_succeeded:
                self.lost[uid] = replace(pod, deadline=now + HOLD_SECONDS)

    def _with_memory(self, gang: Gang, look: LookUp, now: float) -> Gang:
        if not self.has_run:
            return gang
        gang = replace(gang, created=min(gang.created, self.created))
        if not self.is_short or (
            self.owners and not any(_creates_pods(look(key), uid) for key, uid in self.owners.items())
        ):
            return gang
        there = [pod for pod in gang.pods if pod.state in (PodState.PLACED, PodState.WAITING)]
        expiry = self.expires_at()
        if expiry is not None and expiry <= now and not has_min_members(gang, there):
            self.forget_run()
            return gang
        # Without a known controller, the pods that still run are the sign that others replace the lost ones.
        returns = bool(self.owners) or any(pod.state is PodState.PLACED for pod in there)
        return replace(gang, short=True, lost=_missing_members(gang, there, self.lost.values()) if returns else ())


def _missing_members(gang: Gang, there: Sequence[Pod], lost: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return the lost pods that complete the gang's minimum with these pods, the last ones that were lost first."""
    roles = {role: number - sum(pod.role == role for pod in there) for role, number in gang.role_minimum.items()}
    missing = max(gang.minimum - len(there), sum(number for number in roles.values() if number > 0))
    chosen: list[Pod] = []
    latest = sorted(lost, key=lambda pod: (-pod.deadline, pod.rank, pod.uid))
    for pod in sorted(latest, key=lambda pod: roles.get(pod.role, 0) <= 0):
        if len(chosen) >= missing:
            break
        chosen.append(pod)
    return tuple(sorted(chosen, key=lambda pod: (pod.rank, pod.uid)))


def _controllers(members: Iterable[GangMember]) -> frozenset[str]:
    found = (member.marks.controller_uid for member in members if member.marks is not None)
    return frozenset(uid for uid in found if uid)


def _owners(members: Iterable[GangMember], look: LookUp) -> dict[Reference, str]:
    references = {each for member in members for each in member.companions if each.kind not in _WITHOUT_PODS}
    found: dict[Reference, Any] = {each: look(each) for each in sorted(references, key=str)}
    return {each: str(known["metadata"].get("uid") or "") for each, known in found.items() if known is not None}


def _creates_pods(found: Object | None, uid: str) -> bool:
    """Return whether an object with this UID exists and may create pods: it is not deleted, suspended or finished."""
    if found is None or found["metadata"].get("uid") != uid or found["metadata"].get("deletionTimestamp"):
        return False
    if (found.get("spec") or {}).get("suspend") is True:
        return False
    conditions = (found.get("status") or {}).get("conditions") or ()
    return not any(each.get("type") in _FINAL_CONDITIONS and each.get("status") == "True" for each in conditions)
