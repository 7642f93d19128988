"""The minimum of a gang counts only pods of the current run that can still arrive."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sync.admission.samples import BORN_AT, POOL, gang_marks, make_member
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.snapshot import PodState
from vkgateway.scheduler.service.completions import Completion, MinimumReduction, completion_of, reduce_minimum
from vkgateway.scheduler.service.member import GangMember, MemberState
from vkgateway.scheduler.service.pod_observer import ended_at

WAITING = MemberState(state=PodState.WAITING)
RUNNING = MemberState(
    state=PodState.PLACED, verdict=Admission(AdmissionState.ADMITTED, pool=POOL, node="host-1", borrowed=False)
)


def succeeded_at(at: float) -> MemberState:
    return MemberState(has_succeeded=True, ended_at=at)


def failed_at(at: float = 500.0) -> MemberState:
    return MemberState(has_failed=True, ended_at=at)


def make_pod(uid: str, state: MemberState, created: float = 100.0, **fields: Any) -> tuple[GangMember, MemberState]:
    return make_member(uid, created=created, marks=gang_marks(**{"minimum": 4, **fields})), state


def reduced_minimum(
    *pods: tuple[GangMember, MemberState], done: tuple[Completion, ...] = (), size: int | None = 4
) -> MinimumReduction:
    members = [member for member, _ in pods]
    first: dict[str, float] = {}
    for member in members:
        assert member.marks is not None
        if member.marks.controller_uid:
            first[member.marks.controller_uid] = min(
                member.created, first.get(member.marks.controller_uid, member.created)
            )
    fields = members[0].marks
    assert fields is not None
    state = {member.uid: state for member, state in pods}
    return reduce_minimum(members, state, done=done, first=first, marks=replace(fields, size=size))


def test_pods_of_an_earlier_run_are_not_members_of_the_next() -> None:
    """The next run of a CronJob: the pods of the previous run have ended and still exist, or were deleted."""
    before = [make_pod(f"a{index}", succeeded_at(300.0), controller_uid="run-1") for index in range(2)]
    now = [make_pod(f"b{index}", WAITING, 400.0, controller_uid="run-2") for index in range(2)]

    assert reduced_minimum(*now, *before).total == 0
    assert reduced_minimum(*now, done=(Completion("", "run-1", 300.0),)).total == 0
    assert reduced_minimum(*now, done=(Completion("", "", 300.0),)).total == 0


def test_pods_created_by_the_same_controller_count() -> None:
    new_run = make_pod("b", WAITING, 400.0, controller_uid="w")
    assert reduced_minimum(new_run, make_pod("a", succeeded_at(300.0), controller_uid="w")).total == 1
    assert reduced_minimum(new_run, done=(Completion("", "w", 300.0),)).total == 1


def test_replacement_belongs_to_the_run_of_its_controller() -> None:
    """One Job per worker: the first worker succeeds, and later the second one is replaced."""
    replaced = [
        make_pod("b1", failed_at(350.0), controller_uid="job-b"),
        make_pod("b2", WAITING, 360.0, controller_uid="job-b"),
    ]
    assert reduced_minimum(*replaced, make_pod("a", succeeded_at(300.0), controller_uid="job-a")).total == 1


def test_pods_without_controller_belong_to_the_current_run() -> None:
    new_run = make_pod("b", WAITING, 400.0)
    assert reduced_minimum(new_run, make_pod("a", succeeded_at(300.0))).total == 0
    assert reduced_minimum(new_run, make_pod("a", succeeded_at(300.0)), make_pod("c", RUNNING)).total == 1
    assert (
        reduced_minimum(
            new_run, make_pod("a", succeeded_at(300.0)), make_pod("c", RUNNING, controller_uid="run-1")
        ).total
        == 0
    )


def test_creation_timestamps_are_rounded_down() -> None:
    waits = make_pod("b", WAITING, 400.0)
    assert reduced_minimum(waits, done=(Completion("", "", 400.9),)).total == 0
    assert reduced_minimum(waits, done=(Completion("", "", 401.0),)).total == 1


def make_job(
    uid: str, state: MemberState, ended: int, *, parallelism: int = 4, controller_uid: str = "j", **fields: Any
) -> Any:
    return make_pod(uid, state, controller_uid=controller_uid, job_desired=parallelism, job_ended=ended, **fields)


def test_job_counts_its_own_pods() -> None:
    """Two of six completions of a Job with parallelism four reduce nothing; a permanently failed index does."""
    pods = [make_job("a", succeeded_at(300.0), 0), make_job("b", succeeded_at(300.0), 0), make_job("c", WAITING, 0)]
    assert reduced_minimum(*pods, done=(Completion("", "j", 300.0),)).total == 0
    assert reduced_minimum(*[make_job(member.uid, state, 1) for member, state in pods]).total == 1


def test_surplus_pods_replace_permanently_failed_ones() -> None:
    assert reduced_minimum(make_job("a", WAITING, 1), size=6).total == 0
    assert reduced_minimum(make_job("a", WAITING, 3), size=6).total == 1
    assert reduced_minimum(make_job("a", WAITING, 3, parallelism=6), size=None).total == 1


def test_job_of_an_earlier_run_is_ignored() -> None:
    run = [
        make_job("a", succeeded_at(90.0), 2, parallelism=2, controller_uid="run-1"),
        make_job("b", WAITING, 0, controller_uid="run-2"),
    ]
    assert reduced_minimum(*run[::-1], size=None).total == 0
    partial = make_job("a", succeeded_at(300.0), 2, parallelism=2, controller_uid="run-1")
    assert reduced_minimum(run[1], partial).total == 2


def test_roles_are_counted_separately() -> None:
    roles = {"ps": 1, "worker": 3}
    fields: dict[str, Any] = {"role": "worker", "role_minimum": roles}
    found = reduced_minimum(
        make_job("a", WAITING, 1, parallelism=3, **fields), make_pod("p", RUNNING, role="ps", role_minimum=roles)
    )
    assert (found.total, found.roles["worker"], found.roles["ps"]) == (1, 1, 0)
    assert reduced_minimum(make_job("a", WAITING, 1, parallelism=5, **fields), size=6).roles["worker"] == 0


def test_failed_replica_counts_if_it_is_not_replaced() -> None:
    assert reduced_minimum(make_pod("a", WAITING), make_pod("b", failed_at())).total == 0
    assert reduced_minimum(make_pod("a", WAITING), make_pod("b", failed_at(), replaces_failed=False)).total == 1


def test_replaced_successful_pod_is_still_expected() -> None:
    member, state = make_pod("b", succeeded_at(300.0), replaces_succeeded=True)
    assert reduced_minimum(make_pod("a", WAITING), (member, state)).total == 0
    assert completion_of(member, state) is None
    assert completion_of(*make_pod("b", succeeded_at(300.0), role="ps", controller_uid="c")) == Completion(
        "ps", "c", 300.0
    )


@pytest.mark.parametrize("end", [succeeded_at(300.0), failed_at()])
def test_updated_minimum_is_not_reduced(end: MemberState) -> None:
    fields = {"excludes_succeeded": True, "replaces_failed": False}
    assert reduced_minimum(make_pod("a", WAITING, **fields), make_pod("b", end, **fields)) == MinimumReduction()


def test_status_gives_the_end_of_the_last_container() -> None:
    def ended(*finished: object) -> bytes:
        return json.dumps({"containerStatuses": [{"state": {"terminated": each}} for each in finished]}).encode()

    times = ({"finishedAt": "2026-03-01T12:00:00Z"}, {"finishedAt": "2026-03-01T12:00:07Z"}, {"exitCode": 0}, None)
    assert ended_at(ended(*times)) == BORN_AT + 7
    assert ended_at(ended({"finishedAt": "soon"})) is None
    assert ended_at(b"{}") is None
    assert ended_at(b"?") is None
