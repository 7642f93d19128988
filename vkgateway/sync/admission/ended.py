"""Pods of a gang that ended and are not replaced: its minimum does not wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vkgateway.arbiter.facts import PodState
from vkgateway.sync.admission.member import Member
from vkgateway.sync.admission.seen import Seen
from vkgateway.translate.gangs import GangMarks

_GRAIN: Final = 1.0
"""Seconds to which API servers round creation times down."""


class Done(NamedTuple):
    """A pod that succeeded."""

    role: str
    controller: str
    """UID of its controller; empty: none."""
    ended: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Shrink:
    """The number of pods by which a gang's minimum is lower, in all and of each role."""

    total: int = 0
    roles: Counter[str] = field(default_factory=Counter)


def done_of(member: Member, seen: Seen) -> Done | None:
    """Return the record of a member that succeeded and is not replaced, or None."""
    marks = member.marks
    if not seen.done or marks is None or marks.replaces_succeeded:
        return None
    return Done(marks.role, marks.controller, seen.ended)


def shrink(
    members: Sequence[Member],
    seen: Mapping[str, Seen],
    *,
    done: Iterable[Done],
    first: Mapping[str, float],
    marks: GangMarks,
) -> Shrink:
    """Return by how much the minimum of a gang is lower because pods ended and are not replaced.

    `done` are succeeded pods that were deleted, `first` is when each controller created its first pod of the gang.
    A Job's status counts its pods. Pods beyond the minimum make up for those that ended otherwise than well.
    """
    if marks.counts_done:
        return Shrink()
    run = _Run(members, seen, first)
    jobs = _jobs(members, seen, run)
    known = {member.marks.controller for member in members if member.marks is not None and member.marks.job_wanted}
    succeeded, lost = Counter[str](), Counter[str]()
    for each in done:
        succeeded[each.role] += each.controller not in known and run.includes(each.controller, each.ended)
    for member in members:
        said, where = member.marks, seen[member.uid]
        if said is None or said.controller in known or not run.includes(said.controller, where.ended):
            continue
        succeeded[said.role] += where.done and not said.replaces_succeeded
        lost[said.role] += where.failed and not said.replaces_failed
    wanted = Counter[str]()
    for said in jobs:
        wanted[said.role] += said.job_wanted
        lost[said.role] += said.job_ended
    spare = max(0, (wanted.total() if marks.size is None else marks.size) - marks.minimum)
    roles = Counter(succeeded)
    for role, number in lost.items():
        beyond = max(0, wanted[role] - marks.role_minimum.get(role, 0)) if wanted[role] else spare
        roles[role] += max(0, number - beyond)
    return Shrink(succeeded.total() + max(0, lost.total() - spare), roles)


class _Run:
    """The run of a gang that waits: a name that is used again names another one.

    A pod that ended before the waiting pods' controllers created any pod belongs to an earlier run, unless one of them
    created it. Without a controller, pods that run tell since when the run lasts.
    """

    def __init__(self, members: Sequence[Member], seen: Mapping[str, Seen], first: Mapping[str, float]) -> None:
        there = [member for member in members if seen[member.uid].state is not None]
        waiting = [member for member in there if seen[member.uid].state is PodState.WAITING] or there
        self._controllers = {controller for member in waiting if (controller := _controller(member))}
        since = [first.get(_controller(member), member.created) + _GRAIN for member in waiting]
        since += [
            member.created
            for member in there
            if seen[member.uid].state is not PodState.WAITING and not _controller(member)
        ]
        self._since = min(since, default=0.0)

    def includes(self, controller: str, ended: float) -> bool:
        """Whether a pod that ended then is one of the run."""
        return controller in self._controllers or ended >= self._since


def _jobs(members: Sequence[Member], seen: Mapping[str, Seen], run: _Run) -> list[GangMarks]:
    """What each Job says whose pods are of the run: the marks of one of them."""
    by_job: dict[str, list[Member]] = {}
    for member in members:
        if member.marks is not None and member.marks.job_wanted:
            by_job.setdefault(member.marks.controller, []).append(member)
    found = []
    for controller, pods in by_job.items():
        ended = [seen[pod.uid].ended for pod in pods if seen[pod.uid].state is None]
        if not ended or any(run.includes(controller, time) for time in ended):
            found += [pod.marks for pod in pods[:1] if pod.marks is not None]
    return found


def _controller(member: Member) -> str:
    return member.marks.controller if member.marks is not None else ""
