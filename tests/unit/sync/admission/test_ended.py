"""The minimum of a gang counts pods that can still arrive, and only pods of the run that waits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sync.admission.samples import BORN_AT, POOL, marks, member
from vkgateway.arbiter.snapshot import PodState
from vkgateway.sync.admission.completions import Completion, MinimumReduction, completion_of, reduce_minimum
from vkgateway.sync.admission.end_time import ended_at
from vkgateway.sync.admission.member import GangMember
from vkgateway.sync.admission.member_state import MemberState

WAITING = MemberState(state=PodState.WAITING)
RUNNING = MemberState(state=PodState.PLACED, pool=POOL, node="host-1")


def succeeded(at: float) -> MemberState:
    return MemberState(has_succeeded=True, ended_at=at)


def failed(at: float = 500.0) -> MemberState:
    return MemberState(has_failed=True, ended_at=at)


def pod(uid: str, seen: MemberState, created: float = 100.0, **said: Any) -> tuple[GangMember, MemberState]:
    return member(uid, created=created, marks=marks(**{"minimum": 4, **said})), seen


def less(
    *pods: tuple[GangMember, MemberState], done: tuple[Completion, ...] = (), size: int | None = 4
) -> MinimumReduction:
    members = [one for one, _ in pods]
    first: dict[str, float] = {}
    for one in members:
        assert one.marks is not None
        if one.marks.controller_uid:
            first[one.marks.controller_uid] = min(one.created, first.get(one.marks.controller_uid, one.created))
    said = members[0].marks
    assert said is not None
    seen = {one.uid: seen for one, seen in pods}
    return reduce_minimum(members, seen, done=done, first=first, marks=replace(said, size=size))


def test_pods_of_an_earlier_run_are_no_members_of_the_next() -> None:
    """A CronJob's next run: its predecessor's pods have ended and still exist, or were deleted."""
    before = [pod(f"a{index}", succeeded(300.0), controller_uid="run-1") for index in range(2)]
    now = [pod(f"b{index}", WAITING, 400.0, controller_uid="run-2") for index in range(2)]

    assert less(*now, *before).total == 0
    assert less(*now, done=(Completion("", "run-1", 300.0),)).total == 0
    assert less(*now, done=(Completion("", "", 300.0),)).total == 0


def test_pods_that_the_same_controller_created_count() -> None:
    again = pod("b", WAITING, 400.0, controller_uid="w")
    assert less(again, pod("a", succeeded(300.0), controller_uid="w")).total == 1
    assert less(again, done=(Completion("", "w", 300.0),)).total == 1


def test_a_replacement_belongs_to_the_run_in_which_its_controller_began() -> None:
    """One Job per worker: the first worker succeeds, and later the second one is replaced."""
    replaced = [pod("b1", failed(350.0), controller_uid="job-b"), pod("b2", WAITING, 360.0, controller_uid="job-b")]
    assert less(*replaced, pod("a", succeeded(300.0), controller_uid="job-a")).total == 1


def test_pods_without_a_controller_belong_to_the_run_of_those_that_run() -> None:
    again = pod("b", WAITING, 400.0)
    assert less(again, pod("a", succeeded(300.0))).total == 0
    assert less(again, pod("a", succeeded(300.0)), pod("c", RUNNING)).total == 1
    assert less(again, pod("a", succeeded(300.0)), pod("c", RUNNING, controller_uid="run-1")).total == 0


def test_creation_times_are_rounded_down() -> None:
    waits = pod("b", WAITING, 400.0)
    assert less(waits, done=(Completion("", "", 400.9),)).total == 0
    assert less(waits, done=(Completion("", "", 401.0),)).total == 1


def job(uid: str, seen: MemberState, ended: int, *, wanted: int = 4, controller_uid: str = "j", **said: Any) -> Any:
    return pod(uid, seen, controller_uid=controller_uid, job_desired=wanted, job_ended=ended, **said)


def test_a_job_counts_its_pods_itself() -> None:
    """Two of six completions of a Job that runs four at once lower nothing; an index that failed for good does."""
    pods = [job("a", succeeded(300.0), 0), job("b", succeeded(300.0), 0), job("c", WAITING, 0)]
    assert less(*pods, done=(Completion("", "j", 300.0),)).total == 0
    assert less(*[job(one.uid, seen, 1) for one, seen in pods]).total == 1


def test_pods_beyond_the_minimum_make_up_for_those_that_failed_for_good() -> None:
    assert less(job("a", WAITING, 1), size=6).total == 0
    assert less(job("a", WAITING, 3), size=6).total == 1
    assert less(job("a", WAITING, 3, wanted=6), size=None).total == 1


def test_the_job_of_an_earlier_run_counts_for_nothing() -> None:
    run = [job("a", succeeded(90.0), 2, wanted=2, controller_uid="run-1"), job("b", WAITING, 0, controller_uid="run-2")]
    assert less(*run[::-1], size=None).total == 0
    part = job("a", succeeded(300.0), 2, wanted=2, controller_uid="run-1")
    assert less(run[1], part).total == 2


def test_roles_are_counted_by_themselves() -> None:
    roles = {"ps": 1, "worker": 3}
    said: dict[str, Any] = {"role": "worker", "role_minimum": roles}
    found = less(job("a", WAITING, 1, wanted=3, **said), pod("p", RUNNING, role="ps", role_minimum=roles))
    assert (found.total, found.roles["worker"], found.roles["ps"]) == (1, 1, 0)
    assert less(job("a", WAITING, 1, wanted=5, **said), size=6).roles["worker"] == 0


def test_a_replica_that_failed_counts_where_nobody_replaces_it() -> None:
    assert less(pod("a", WAITING), pod("b", failed())).total == 0
    assert less(pod("a", WAITING), pod("b", failed(), replaces_failed=False)).total == 1


def test_a_pod_that_is_replaced_when_it_succeeds_is_waited_for() -> None:
    one, seen = pod("b", succeeded(300.0), replaces_succeeded=True)
    assert less(pod("a", WAITING), (one, seen)).total == 0
    assert completion_of(one, seen) is None
    assert completion_of(*pod("b", succeeded(300.0), role="ps", controller_uid="c")) == Completion("ps", "c", 300.0)


@pytest.mark.parametrize("end", [succeeded(300.0), failed()])
def test_a_minimum_that_is_told_again_is_not_lowered(end: MemberState) -> None:
    said = {"excludes_succeeded": True, "replaces_failed": False}
    assert less(pod("a", WAITING, **said), pod("b", end, **said)) == MinimumReduction()


def test_a_status_tells_when_the_last_container_ended() -> None:
    def ended(*finished: object) -> bytes:
        return json.dumps({"containerStatuses": [{"state": {"terminated": each}} for each in finished]}).encode()

    times = ({"finishedAt": "2026-03-01T12:00:00Z"}, {"finishedAt": "2026-03-01T12:00:07Z"}, {"exitCode": 0}, None)
    assert ended_at(ended(*times)) == BORN_AT + 7
    assert ended_at(ended({"finishedAt": "soon"})) is None
    assert ended_at(b"{}") is None
    assert ended_at(b"?") is None
