"""Reports to pending pods: the same for all pods of a gang, and at most two per minute."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from vkgateway.scheduler.service.pending_reporter import PendingMessage, PendingReporter


def pending_report(code: str = "WaitingForRoom", text: str = "") -> PendingMessage:
    return PendingMessage(code, code, text or code)


class ReportedGang:
    """Gang whose pods are reconciled one after the other; records each pod's report and the write times."""

    def __init__(self) -> None:
        self.telling = PendingReporter()
        self.shows: dict[str, str] = {}
        self.writes: dict[str, list[float]] = {}
        self.news: list[str] = []

    def due_report(self, uid: str, message: PendingMessage, now: float) -> float | None:
        due = self.telling.plan_report(uid, "default/gang/x", message, now=now)
        if due.report_now is not None:
            self.shows[uid] = due.report_now.text
            self.writes.setdefault(uid, []).append(now)
            self.news += [due.report_now.code] if due.is_new else []
        return due.requeue_after


MEMBERS, ROOM = pending_report("WaitingForMembers"), pending_report("WaitingForRoom")


def test_single_pod_is_reported_after_a_moment_and_every_half_minute() -> None:
    gang = ReportedGang()
    assert gang.due_report("a", ROOM, 100) == 1
    assert gang.due_report("a", ROOM, 101) is None
    assert gang.shows == {"a": "WaitingForRoom"}
    assert gang.due_report("a", ROOM, 102) is None
    assert gang.due_report("a", pending_report(text="place 2"), 105) == 26
    assert gang.due_report("a", pending_report(text="place 2"), 131) is None
    assert gang.shows == {"a": "place 2"}
    assert gang.news == ["WaitingForRoom"]


def test_positions_of_many_waiting_pods_change_less_often() -> None:
    reporter = PendingReporter()
    for number in range(90):
        for second in (100, 101):
            reporter.plan_report(f"p{number}", f"default/pod/p{number}", ROOM, now=second)
    moved, other = PendingMessage("WaitingForRoom", ROOM.reason, "place 2"), pending_report("WaitingForQuota")
    assert reporter.plan_report("p0", "default/pod/p0", moved, now=140).requeue_after == 51
    assert reporter.plan_report("p0", "default/pod/p0", moved, now=191).report_now == moved
    assert reporter.plan_report("p1", "default/pod/p1", other, now=131).report_now == other, (
        "a new reason is not delayed"
    )


def test_growing_gang_is_reported_once_complete() -> None:
    gang = ReportedGang()
    assert gang.due_report("a", MEMBERS, 100) == 1
    assert gang.due_report("b", MEMBERS, 100.9) == 1
    assert gang.due_report("a", MEMBERS, 101) is not None
    assert gang.due_report("c", ROOM, 101.5) == 1
    for uid in "abc":
        gang.due_report(uid, ROOM, 102.5)
    assert gang.shows == dict.fromkeys("abc", "WaitingForRoom")


def test_constantly_growing_gang_is_reported_nevertheless() -> None:
    gang = ReportedGang()
    for second in range(10):
        gang.due_report(f"p{second}", MEMBERS, 100 + second)
        gang.due_report("p0", MEMBERS, 100 + second + 0.5)
    gang.due_report("p0", MEMBERS, 110)
    assert gang.shows == {"p0": "WaitingForMembers"}


def test_report_of_a_round_goes_to_all_members_despite_changes() -> None:
    gang = ReportedGang()
    for uid in "ab":
        gang.due_report(uid, MEMBERS, 100)
    gang.due_report("a", MEMBERS, 101)
    assert gang.due_report("b", ROOM, 101.2) == 30, "what is new is told in the next"
    assert gang.shows == dict.fromkeys("ab", "WaitingForMembers")
    gang.due_report("a", ROOM, 131.2)
    gang.due_report("b", ROOM, 131.3)
    assert gang.shows == dict.fromkeys("ab", "WaitingForRoom")


def test_new_member_between_rounds_is_reported_with_the_others() -> None:
    gang = ReportedGang()
    gang.due_report("a", MEMBERS, 100)
    gang.due_report("a", MEMBERS, 101)
    assert gang.due_report("b", ROOM, 111) == 20
    assert gang.due_report("a", ROOM, 111) == 20
    assert gang.shows == {"a": "WaitingForMembers"}
    gang.due_report("b", ROOM, 131)
    gang.due_report("a", ROOM, 131)
    assert gang.shows == dict.fromkeys("ab", "WaitingForRoom")


def test_new_member_during_a_round_gets_only_current_facts_immediately() -> None:
    gang = ReportedGang()
    gang.due_report("a", MEMBERS, 100)
    gang.due_report("a", MEMBERS, 101)
    assert gang.due_report("b", MEMBERS, 102) == 1
    assert gang.due_report("b", MEMBERS, 103) is None
    assert gang.due_report("c", ROOM, 103.5) == 1
    assert gang.due_report("c", ROOM, 104.5) == 28.5, "half a minute after the last of them"
    assert gang.shows == {"a": "WaitingForMembers", "b": "WaitingForMembers"}
    for uid in "abc":
        gang.due_report(uid, ROOM, 133)
    assert gang.shows == dict.fromkeys("abc", "WaitingForRoom")


def test_failed_write_is_retried() -> None:
    gang = ReportedGang()
    gang.due_report("a", ROOM, 100)
    assert gang.telling.plan_report("a", "default/gang/x", ROOM, now=101).report_now == ROOM
    gang.telling.report_failed("a")
    assert not gang.telling.was_reported("a")
    assert gang.telling.plan_report("a", "default/gang/x", ROOM, now=101.5).report_now == ROOM


def test_deleted_gang_is_dropped_and_a_changed_gang_starts_again() -> None:
    gang = ReportedGang()
    gang.due_report("a", ROOM, 100)
    gang.due_report("a", ROOM, 101)
    assert gang.telling.plan_report("a", "default/gang/y", MEMBERS, now=110).requeue_after == 21, (
        "a pod is written to seldom anyhow"
    )
    gang.telling.forget_pod("a")
    gang.telling.forget_pod("a")
    assert gang.due_report("a", ROOM, 120) == 1


@given(st.integers(0, 2**32))
def test_members_converge_to_one_reason_with_few_writes(seed: int) -> None:
    random = Random(seed)
    gang, now, message, number = ReportedGang(), 1000.0, ROOM, 0
    pods: list[str] = []
    apart = 0.0
    for _ in range(300):
        now += 0.25
        if len(pods) < 6 and random.random() < 0.05:
            pods.append(f"p{len(pods)}")
        if random.random() < 0.05:
            number += 1
            message = pending_report(random.choice(("WaitingForRoom", "WaitingForQuota")), f"text {number}")
        for uid in random.sample(pods, len(pods)):
            gang.due_report(uid, message, now)
        apart = apart + 0.25 if len(set(gang.shows.values())) > 1 else 0.0
        assert apart <= 0.25, f"seed {seed}: {gang.shows} at {now}"
    for times in gang.writes.values():
        assert all(later - sooner >= 30 for sooner, later in pairwise(times))
