"""Ended pods of a gang that are not replaced, and by which its minimum is lower."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vkgateway.scheduler.core.snapshot import PodState
from vkgateway.scheduler.gangs import GangMarks
from vkgateway.scheduler.service.member import GangMember, MemberState

_GRAIN: Final = 1.0
"""Seconds to which API servers round creation times."""


class Completion(NamedTuple):
    """A pod that succeeded."""

    role: str
    controller: str
    """UID of its controller; empty if it has none."""
    ended: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class MinimumReduction:
    """Number of pods by which a gang's minimum is lower, in total and by role."""

    total: int = 0
    roles: Counter[str] = field(default_factory=Counter)


def completion_of(member: GangMember, seen: MemberState) -> Completion | None:
    """Return the record of a member that succeeded and is not replaced, or None."""
    marks = member.marks
    if not seen.has_succeeded or marks is None or marks.replaces_succeeded:
        return None
    return Completion(marks.role, marks.controller_uid, seen.ended_at)


def reduce_minimum(
    members: Sequence[GangMember],
    seen: Mapping[str, MemberState],
    *,
    done: Iterable[Completion],
    first: Mapping[str, float],
    marks: GangMarks,
    siblings: Iterable[GangMarks] = (),
) -> MinimumReduction:
    """Return the reduction of a gang's minimum by pods that ended and are not replaced.

    `done` are succeeded pods that were deleted, `first` has the time of each controller's first pod of the gang. A
    Job's status counts its pods; `siblings` are the marks of Jobs of the gang that may have no pods. Pods beyond the
    minimum replace pods that failed.
    """
    if marks.excludes_succeeded:
        return MinimumReduction()
    run = _GangRun(members, seen, first)
    jobs = _job_marks(members, seen, run)
    known = {member.marks.controller_uid for member in members if member.marks is not None and member.marks.job_desired}
    others = [each for each in siblings if each.controller_uid not in known]
    jobs += others
    known.update(each.controller_uid for each in others)
    succeeded, lost = Counter[str](), Counter[str]()
    for each in done:
        succeeded[each.role] += each.controller not in known and run.includes_pod(each.controller, each.ended)
    for member in members:
        said, where = member.marks, seen[member.uid]
        if said is None or said.controller_uid in known or not run.includes_pod(said.controller_uid, where.ended_at):
            continue
        succeeded[said.role] += where.has_succeeded and not said.replaces_succeeded
        lost[said.role] += where.has_failed and not said.replaces_failed
    wanted = Counter[str]()
    for said in jobs:
        wanted[said.role] += said.job_desired
        lost[said.role] += said.job_ended
    spare = max(0, (wanted.total() if marks.size is None else marks.size) - marks.minimum)
    roles = Counter(succeeded)
    for role, number in lost.items():
        beyond = max(0, wanted[role] - marks.role_minimum.get(role, 0)) if wanted[role] else spare
        roles[role] += max(0, number - beyond)
    return MinimumReduction(succeeded.total() + max(0, lost.total() - spare), roles)


class _GangRun:
    """One run of a waiting gang: a later gang of the same name is another run.

    A pod that ended before the waiting pods' controllers created any pod belongs to an earlier run, unless one of them
    created it. Without a controller, the start of running pods is the start of the run.
    """

    def __init__(
        self, members: Sequence[GangMember], seen: Mapping[str, MemberState], first: Mapping[str, float]
    ) -> None:
        there = [member for member in members if seen[member.uid].state is not None]
        waiting = [member for member in there if seen[member.uid].state is PodState.WAITING] or there
        self._controllers = {controller for member in waiting if (controller := _controller_of(member))}
        since = [first.get(_controller_of(member), member.created) + _GRAIN for member in waiting]
        since += [
            member.created
            for member in there
            if seen[member.uid].state is not PodState.WAITING and not _controller_of(member)
        ]
        self._since = min(since, default=0.0)

    def includes_pod(self, controller: str, ended: float) -> bool:
        """Return whether a pod that ended at a time belongs to the run."""
        return controller in self._controllers or ended >= self._since


def _job_marks(members: Sequence[GangMember], seen: Mapping[str, MemberState], run: _GangRun) -> list[GangMarks]:
    """Return the marks of one pod for each Job with pods in the run."""
    by_job: dict[str, list[GangMember]] = {}
    for member in members:
        if member.marks is not None and member.marks.job_desired:
            by_job.setdefault(member.marks.controller_uid, []).append(member)
    found = []
    for controller, pods in by_job.items():
        ended = [seen[pod.uid].ended_at for pod in pods if seen[pod.uid].state is None]
        if not ended or any(run.includes_pod(controller, time) for time in ended):
            found += [pod.marks for pod in pods[:1] if pod.marks is not None]
    return found


def _controller_of(member: GangMember) -> str:
    return member.marks.controller_uid if member.marks is not None else ""
