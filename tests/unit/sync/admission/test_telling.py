"""What waiting pods are told and when: all of a gang the same, and each once in half a minute at most."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from vkgateway.sync.admission.pending_reporter import PendingReporter
from vkgateway.sync.admission.verdict_store import PendingMessage


def waits(code: str = "WaitingForRoom", text: str = "") -> PendingMessage:
    return PendingMessage(code, code, text or code)


class Gang:
    """Pods of one gang, looked at in turn; what each shows, and when it was written to."""

    def __init__(self) -> None:
        self.telling = PendingReporter()
        self.shows: dict[str, str] = {}
        self.writes: dict[str, list[float]] = {}
        self.news: list[str] = []

    def look(self, uid: str, said: PendingMessage, now: float) -> float | None:
        told = self.telling.plan_report(uid, "default/gang/x", said, now=now)
        if told.report_now is not None:
            self.shows[uid] = told.report_now.text
            self.writes.setdefault(uid, []).append(now)
            self.news += [told.report_now.code] if told.is_new else []
        return told.requeue_after


MEMBERS, ROOM = waits("WaitingForMembers"), waits("WaitingForRoom")


def test_a_lone_pod_is_told_after_a_moment_and_again_after_half_a_minute() -> None:
    made = Gang()
    assert made.look("a", ROOM, 100) == 1
    assert made.look("a", ROOM, 101) is None
    assert made.shows == {"a": "WaitingForRoom"}
    assert made.look("a", ROOM, 102) is None
    assert made.look("a", waits(text="place 2"), 105) == 26
    assert made.look("a", waits(text="place 2"), 131) is None
    assert made.shows == {"a": "place 2"}
    assert made.news == ["WaitingForRoom"]


def test_a_gang_that_still_grows_is_told_when_it_has_grown() -> None:
    made = Gang()
    assert made.look("a", MEMBERS, 100) == 1
    assert made.look("b", MEMBERS, 100.9) == 1
    assert made.look("a", MEMBERS, 101) is not None
    assert made.look("c", ROOM, 101.5) == 1
    for uid in "abc":
        made.look(uid, ROOM, 102.5)
    assert made.shows == dict.fromkeys("abc", "WaitingForRoom")


def test_one_that_grows_on_and_on_is_told_all_the_same() -> None:
    made = Gang()
    for second in range(10):
        made.look(f"p{second}", MEMBERS, 100 + second)
        made.look("p0", MEMBERS, 100 + second + 0.5)
    made.look("p0", MEMBERS, 110)
    assert made.shows == {"p0": "WaitingForMembers"}


def test_what_a_round_says_is_told_to_all_though_it_changed_meanwhile() -> None:
    made = Gang()
    for uid in "ab":
        made.look(uid, MEMBERS, 100)
    made.look("a", MEMBERS, 101)
    assert made.look("b", ROOM, 101.2) == 30, "what is new is told in the next"
    assert made.shows == dict.fromkeys("ab", "WaitingForMembers")
    made.look("a", ROOM, 131.2)
    made.look("b", ROOM, 131.3)
    assert made.shows == dict.fromkeys("ab", "WaitingForRoom")


def test_who_comes_between_rounds_is_told_with_the_others() -> None:
    made = Gang()
    made.look("a", MEMBERS, 100)
    made.look("a", MEMBERS, 101)
    assert made.look("b", ROOM, 111) == 20
    assert made.look("a", ROOM, 111) == 20
    assert made.shows == {"a": "WaitingForMembers"}
    made.look("b", ROOM, 131)
    made.look("a", ROOM, 131)
    assert made.shows == dict.fromkeys("ab", "WaitingForRoom")


def test_who_comes_in_a_round_is_told_at_once_only_what_is_so() -> None:
    made = Gang()
    made.look("a", MEMBERS, 100)
    made.look("a", MEMBERS, 101)
    assert made.look("b", MEMBERS, 102) == 1
    assert made.look("b", MEMBERS, 103) is None
    assert made.look("c", ROOM, 103.5) == 1
    assert made.look("c", ROOM, 104.5) == 28.5, "half a minute after the last of them"
    assert made.shows == {"a": "WaitingForMembers", "b": "WaitingForMembers"}
    for uid in "abc":
        made.look(uid, ROOM, 133)
    assert made.shows == dict.fromkeys("abc", "WaitingForRoom")


def test_what_could_not_be_written_is_tried_again() -> None:
    made = Gang()
    made.look("a", ROOM, 100)
    assert made.telling.plan_report("a", "default/gang/x", ROOM, now=101).report_now == ROOM
    made.telling.report_failed("a")
    assert not made.telling.was_reported("a")
    assert made.telling.plan_report("a", "default/gang/x", ROOM, now=101.5).report_now == ROOM


def test_a_gang_that_is_gone_is_forgotten_and_one_that_changes_its_gang_begins_anew() -> None:
    made = Gang()
    made.look("a", ROOM, 100)
    made.look("a", ROOM, 101)
    assert made.telling.plan_report("a", "default/gang/y", MEMBERS, now=110).requeue_after == 21, (
        "a pod is written to seldom anyhow"
    )
    made.telling.forget_pod("a")
    made.telling.forget_pod("a")
    assert made.look("a", ROOM, 120) == 1


@given(st.integers(0, 2**32))
def test_members_never_show_different_reasons_for_long_and_are_written_to_seldom(seed: int) -> None:
    random = Random(seed)
    made, now, said, number = Gang(), 1000.0, ROOM, 0
    pods: list[str] = []
    apart = 0.0
    for _ in range(600):
        now += 0.25
        if len(pods) < 6 and random.random() < 0.05:
            pods.append(f"p{len(pods)}")
        if random.random() < 0.05:
            number += 1
            said = waits(random.choice(("WaitingForRoom", "WaitingForQuota")), f"text {number}")
        for uid in random.sample(pods, len(pods)):
            made.look(uid, said, now)
        apart = apart + 0.25 if len(set(made.shows.values())) > 1 else 0.0
        assert apart <= 0.25, f"seed {seed}: {made.shows} at {now}"
    for times in made.writes.values():
        assert all(later - sooner >= 30 for sooner, later in pairwise(times))
