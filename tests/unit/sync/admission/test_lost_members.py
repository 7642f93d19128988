"""Memory of running gangs that lost members: their age, their places, and who replaces them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sync.admission.gang_harness import ADMITTED, GONE, PLACED, SUCCEEDED, WAITING, Harness
from tests.unit.sync.admission.samples import gang_marks, make_member
from vkgateway.scheduler.core.queueing.admission import AdmissionState
from vkgateway.scheduler.core.snapshot import Gang, PodState
from vkgateway.scheduler.gangs import Reference
from vkgateway.scheduler.service.lost_members import HOLD_SECONDS, lineage_of
from vkgateway.scheduler.service.member import GangMember, MemberState

JOB = Reference("batch", "Job", "jobs", "default", "train")
EVICTED = MemberState(
    state=PodState.NOTIFIED,
    verdict=replace(ADMITTED, verdict=AdmissionState.EVICTING, deadline=70.0, evicted_for="b/x"),
)
ENDING = MemberState(state=PodState.ENDING, verdict=replace(ADMITTED, deadline=70.0))


class FakeClock:
    now = 1000.0

    def time(self) -> float:
        return self.now


def make_team(*uids: str, created: float = 100.0, controller: str = "job-1", group: str = "default/gang/train") -> Any:
    """Return members of a gang of three with a Job."""
    return [
        make_member(
            uid,
            created=created,
            companions=(JOB,),
            marks=gang_marks(group, minimum=3, rank=rank, controller_uid=controller),
        )
        for rank, uid in enumerate(uids)
    ]


def running_team(*, job: dict[str, Any] | None = None, group: str = "default/gang/train") -> tuple[Harness, FakeClock]:
    """Return a gang of three that runs."""
    clock = FakeClock()
    harness = Harness(*make_team("u0", "u1", "u2", group=group), clock=clock)
    harness.found["train"] = job or {"metadata": {"uid": "job-1"}}
    harness.seen = dict.fromkeys(("u0", "u1", "u2"), PLACED)
    assert not harness.only_gang().short
    return harness, clock


def change(harness: Harness, uid: str, state: MemberState) -> None:
    harness.seen[uid] = state
    harness.gangs.mark_changed(uid)


def replace_members(harness: Harness, *uids: str, by: list[GangMember]) -> None:
    for uid in uids:
        harness.gangs.drop_member(uid, state=harness.seen.pop(uid, GONE))
    for member in by:
        harness.gangs.put_member(member)


def lost_uids(gang: Gang) -> list[str]:
    return [pod.uid for pod in gang.lost]


def test_member_that_failed_is_awaited_and_its_replacement_keeps_the_age_of_the_gang() -> None:
    harness, _ = running_team()
    change(harness, "u1", MemberState(has_failed=True, ended_at=999.0))
    gang = harness.only_gang()
    assert (gang.short, lost_uids(gang), gang.lost[0].deadline) == (True, ["u1"], 1000.0 + HOLD_SECONDS)
    assert (gang.lost[0].node, gang.lost[0].pool) == ("host-1", ADMITTED.pool)

    harness.gangs.put_member(make_team("u3", created=900.0)[0])
    gang = harness.only_gang()
    assert (gang.short, gang.lost, gang.created) == (True, (), 100.0)

    change(harness, "u3", PLACED)
    assert not harness.only_gang().short


def test_terminating_member_makes_its_gang_short() -> None:
    harness, _ = running_team()
    change(harness, "u0", ENDING)
    harness.gangs.put_member(make_team("u3", created=900.0)[0])
    assert harness.only_gang().short


@pytest.mark.parametrize("keeps_pods", [True, False], ids=["failed pods remain", "all pods are deleted"])
def test_gang_that_is_created_again_as_a_whole_is_the_same(*, keeps_pods: bool) -> None:
    harness, _ = running_team()
    if keeps_pods:
        for uid in ("u0", "u1", "u2"):
            change(harness, uid, MemberState(has_failed=True, ended_at=999.0))
    else:
        replace_members(harness, "u0", "u1", "u2", by=[])
    gang = harness.only_gang()
    assert (gang.pods, lost_uids(gang), gang.short) == ((), ["u0", "u1", "u2"], True)
    assert harness.only_gang() is gang, "an unchanged gang is the same object"

    replace_members(harness, by=make_team("v0", "v1", "v2", created=900.0))
    gang = harness.only_gang()
    assert (gang.created, gang.short, gang.lost, len(gang.pods)) == (100.0, True, (), 3)


def test_next_attempt_of_a_jobset_is_the_same_gang() -> None:
    harness, _ = running_team(group="default/jobset/set")
    for member in make_team("v0", "v1", created=900.0, group="default/jobset/set/restart-1"):
        harness.gangs.put_member(member)
    for uid in ("u0", "u1", "u2"):
        change(harness, uid, ENDING)
    gangs = {gang.id: gang for gang in harness.gangs.build_gangs()[0]}
    assert gangs["alpha/default/jobset/set"].short is False
    gang = gangs["alpha/default/jobset/set/restart-1"]
    assert (gang.short, gang.created, len(gang.lost)) == (True, 100.0, 1)


@pytest.mark.parametrize(
    ("group", "lineage"),
    [
        ("ns/jobset/set/restart-12", "ns/jobset/set"),
        ("ns/jobset/set/restart-1/workers", "ns/jobset/set/workers"),
        ("ns/gang/restart-1", "ns/gang/restart-1"),
    ],
)
def test_attempts_share_a_lineage(group: str, lineage: str) -> None:
    assert lineage_of(group) == lineage


@pytest.mark.parametrize(
    "job",
    [
        None,
        {"metadata": {"uid": "job-2"}},
        {"metadata": {"uid": "job-1", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"uid": "job-1"}, "spec": {"suspend": True}},
        {"metadata": {"uid": "job-1"}, "status": {"conditions": [{"type": "Failed", "status": "True"}]}},
    ],
    ids=["deleted", "another one", "being deleted", "suspended", "failed for good"],
)
def test_nothing_is_held_for_a_controller_that_creates_no_pods(job: dict[str, Any] | None) -> None:
    harness, _ = running_team()
    if job is None:
        del harness.found["train"]
    else:
        harness.found["train"] = job
    change(harness, "u1", GONE)
    gang = harness.only_gang()
    assert (gang.short, gang.lost) == (False, ())
    replace_members(harness, "u0", "u1", "u2", by=[])
    assert harness.gangs.build_gangs()[0] == []


def test_pods_of_another_controller_are_another_gang() -> None:
    harness, _ = running_team()
    replace_members(harness, "u0", "u1", "u2", by=[])
    harness.found["train"] = {"metadata": {"uid": "job-2"}}
    replace_members(harness, by=make_team("v0", "v1", "v2", created=900.0, controller="job-2"))
    gang = harness.only_gang()
    assert (gang.short, gang.created) == (False, 900.0)


def test_evicted_gang_is_not_short() -> None:
    harness, _ = running_team()
    for uid in ("u0", "u1", "u2"):
        change(harness, uid, EVICTED)
    assert not harness.only_gang().short
    replace_members(harness, "u0", "u1", "u2", by=make_team("v0", "v1", "v2", created=900.0))
    gang = harness.only_gang()
    assert (gang.short, gang.lost, gang.created) == (False, (), 900.0)


def test_succeeded_gang_is_not_expected_back() -> None:
    harness, _ = running_team()
    for uid in ("u0", "u1", "u2"):
        change(harness, uid, SUCCEEDED)
    assert harness.gangs.build_gangs()[0] == []
    replace_members(harness, by=make_team("v0", "v1", "v2", created=900.0))
    assert not harness.only_gang().short
    assert harness.only_gang().created == 900.0


def test_lost_member_is_not_expected_back_after_its_time() -> None:
    harness, clock = running_team()
    change(harness, "u1", GONE)
    assert harness.only_gang().short
    assert harness.gangs.next_expiry(clock.now) == 1000.0 + HOLD_SECONDS
    clock.now += HOLD_SECONDS
    gang = harness.only_gang()
    assert (gang.short, gang.lost) == (False, ())
    assert harness.gangs.next_expiry(clock.now) is None


def test_late_replacement_comes_after_the_queue_and_a_timely_one_keeps_its_place() -> None:
    harness, clock = running_team()
    replace_members(harness, "u0", "u1", "u2", by=[])
    clock.now += HOLD_SECONDS
    assert harness.gangs.build_gangs()[0] == []
    replace_members(harness, by=make_team("v0", "v1", "v2", created=900.0))
    assert not harness.only_gang().short

    harness, clock = running_team()
    replace_members(harness, "u0", "u1", "u2", by=make_team("v0", "v1", "v2", created=900.0))
    assert harness.only_gang().short
    clock.now += 2 * HOLD_SECONDS
    harness.gangs.mark_all_changed()
    assert harness.only_gang().short


def test_incomplete_gang_with_placed_pods_is_short_after_a_restart() -> None:
    harness = Harness(*make_team("u0", "u1", "u3"), clock=FakeClock())
    harness.seen = {"u0": PLACED, "u1": PLACED, "u3": WAITING}
    assert harness.only_gang().short


def test_gang_whose_minimum_was_raised_is_not_short() -> None:
    harness, _ = running_team()
    for rank in range(4):
        marks = gang_marks(minimum=4, rank=rank, controller_uid="job-1")
        harness.gangs.put_member(make_member(f"u{rank}", companions=(JOB,), marks=marks))
    assert not harness.only_gang().short


def test_pods_of_other_schedulers_hold_no_place_without_pods() -> None:
    harness, _ = running_team()
    harness.foreign = {ADMITTED.pool}
    replace_members(harness, "u0", "u1", "u2", by=[])
    assert harness.gangs.build_gangs()[0] == []
