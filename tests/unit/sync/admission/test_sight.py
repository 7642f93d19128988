"""Where governed pods stand, above and below, and what a compute pod itself tells of what was decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sync.admission.samples import BORN_AT, GPU, POOL, TENANT, Pods, above, below, member
from vkgateway.arbiter.snapshot import PodState, Shape
from vkgateway.model.names import (
    BORROWED_ANNOTATION,
    COMPUTE_NODE_ANNOTATION,
    EVICTION_DEADLINE_ANNOTATION,
    UID_ANNOTATION,
)
from vkgateway.sync.admission.member_state import MemberState
from vkgateway.sync.admission.pod_observer import PodObserver, ending_gang, is_arbiter_placed, recover_verdict
from vkgateway.sync.admission.verdict_store import Verdict, VerdictState, VerdictStore
from vkgateway.sync.views.annotations import EVICTED_FOR, REQUESTS, RETAKEN

NOW = BORN_AT + 1000
LEAVING = "2026-03-01T12:30:00Z"
LEAVING_AT = BORN_AT + 1800
ADMITTED = Verdict(
    said=VerdictState.ADMITTED, pool=POOL, node="host-1", borrowed=True, since=BORN_AT + 5, behind="alpha/x"
)
EVICTING = replace(ADMITTED, said=VerdictState.EVICTING, deadline=NOW + 30, evicted_for="beta/x")
PLACED = MemberState(
    state=PodState.PLACED, pool=POOL, node="host-1", borrowed=True, since=BORN_AT + 5, behind="alpha/x"
)
NOTIFIED = replace(PLACED, state=PodState.NOTIFIED, deadline=NOW + 30, evicted_for="beta/x")
GONE = MemberState()
DONE = MemberState(has_succeeded=True, ended_at=NOW)
FAILED = MemberState(has_failed=True, ended_at=NOW)


class Stand:
    """One pod's place above and below, what was said of it, and whether it was sent below a moment ago."""

    def __init__(self) -> None:
        self.pods = Pods()
        self.book = VerdictStore()
        self.sent: dict[str, float] = {}
        self.member = member()
        self.sight = PodObserver(
            TENANT, self.pods.above, self.pods.links, book=self.book, sent=self.sent, clock=lambda: NOW
        )

    def above(self, **meta: Any) -> None:
        phase = meta.pop("phase", "Pending")
        self.pods.put_above(above(meta=meta, phase=phase))

    def below(self, **other: Any) -> None:
        self.pods.put_below(below(**other))

    def said(self, verdict: Verdict) -> None:
        self.book.verdicts["u1"] = verdict

    def seen(self) -> MemberState:
        return self.sight.member_state(self.member)


# -- nothing below -----------------------------------------------------------------------------------------------------


def test_a_pod_of_which_nothing_was_said_waits() -> None:
    stand = Stand()
    stand.above()
    assert stand.seen() == MemberState(state=PodState.WAITING)


def test_a_pod_that_was_admitted_holds_its_place_though_nothing_is_below() -> None:
    stand = Stand()
    stand.above()
    stand.said(ADMITTED)
    assert stand.seen() == PLACED


def test_so_does_one_that_is_told_to_go() -> None:
    stand = Stand()
    stand.above()
    stand.said(EVICTING)
    assert stand.seen() == NOTIFIED


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"phase": "Succeeded"}, DONE),
        ({"phase": "Failed"}, FAILED),
        ({"deletionTimestamp": LEAVING}, GONE),
        ({"phase": "Succeeded", "deletionTimestamp": LEAVING}, DONE),
    ],
)
@pytest.mark.parametrize("verdict", [None, ADMITTED])
def test_a_pod_that_is_final_or_deleted_above_and_not_below_holds_nothing(
    meta: dict[str, Any], expected: MemberState, verdict: Verdict | None
) -> None:
    stand = Stand()
    stand.above(**meta)
    if verdict is not None:
        stand.said(verdict)
    assert stand.seen() == expected


def test_a_pod_that_is_gone_holds_nothing_and_a_namesake_is_not_it() -> None:
    stand = Stand()
    stand.said(ADMITTED)
    assert stand.seen() == GONE
    stand.above(uid="another")
    assert stand.seen() == GONE


@pytest.mark.parametrize("meta", [None, {"phase": "Failed"}, {"deletionTimestamp": LEAVING}])
def test_one_that_was_sent_below_a_moment_ago_counts_as_ending_until_it_shows(meta: dict[str, Any] | None) -> None:
    stand = Stand()
    if meta is not None:
        stand.above(**meta)
    stand.said(ADMITTED)
    stand.sent["u1"] = NOW + 1
    assert stand.seen() == replace(PLACED, state=PodState.ENDING, deadline=NOW + 30)
    stand.sent["u1"] = NOW
    assert stand.seen() == (FAILED if meta == {"phase": "Failed"} else GONE)


# -- something below ---------------------------------------------------------------------------------------------------


def test_a_pod_that_runs_is_where_it_is_bound() -> None:
    stand = Stand()
    stand.above(phase="Running")
    stand.said(ADMITTED)
    stand.below(node="host-2")
    assert stand.seen() == replace(PLACED, node="host-2")

    stand.below(node="")
    assert stand.seen() == PLACED


def test_of_a_pod_that_runs_everything_is_known_after_a_restart() -> None:
    stand = Stand()
    stand.above(phase="Running")
    stand.below(marks={EVICTION_DEADLINE_ANNOTATION: LEAVING, EVICTED_FOR: "beta/x"})
    seen = stand.seen()

    assert seen == MemberState(
        state=PodState.NOTIFIED,
        pool=POOL,
        node="host-1",
        borrowed=True,
        since=BORN_AT,
        deadline=LEAVING_AT,
        evicted_for="beta/x",
    )
    assert stand.book.verdicts["u1"].said is VerdictState.EVICTING, (
        "and from now on it is known as if it had just been said"
    )


@pytest.mark.parametrize(("phase", "expected"), [("Succeeded", DONE), ("Failed", FAILED)])
def test_a_pod_that_has_ended_below_holds_nothing(phase: str, expected: MemberState) -> None:
    stand = Stand()
    stand.above(phase="Running")
    stand.said(ADMITTED)
    stand.below(phase=phase)
    assert stand.seen() == expected


def test_a_pod_that_was_deleted_before_it_had_a_node_has_ended() -> None:
    stand = Stand()
    stand.above()
    stand.said(ADMITTED)
    stand.below(node="", phase="Pending", deletionTimestamp=LEAVING)
    assert stand.seen() == GONE


def test_a_pod_that_is_deleted_below_ends_at_the_time_that_is_set_there() -> None:
    stand = Stand()
    stand.above(phase="Running")
    stand.said(EVICTING)
    stand.below(deletionTimestamp=LEAVING)
    assert stand.seen() == replace(NOTIFIED, state=PodState.ENDING, deadline=LEAVING_AT)


@pytest.mark.parametrize("meta", [None, {"uid": "another"}, {"phase": "Succeeded"}, {"deletionTimestamp": LEAVING}])
def test_a_pod_that_runs_and_is_over_above_ends_within_its_grace(meta: dict[str, Any] | None) -> None:
    stand = Stand()
    if meta is not None:
        stand.above(**meta)
    stand.said(ADMITTED)
    stand.below()
    assert stand.seen() == replace(PLACED, state=PodState.ENDING, deadline=NOW + 30)


def test_a_compute_pod_that_was_taken_back_stands_for_nobody() -> None:
    stand = Stand()
    stand.above()
    stand.below(node="", phase="Pending")
    stand.sight.reverted_pods["below-u1"] = "u1"
    assert stand.seen() == MemberState(state=PodState.WAITING)
    assert stand.sight.find_compute_pod(stand.member) is None

    stand.sight.reverted_pods.clear()
    stand.below(node="", phase="Pending", marks={RETAKEN: "true"})
    assert stand.seen() == MemberState(state=PodState.WAITING)


def test_a_compute_pod_of_an_earlier_namesake_is_none_of_its() -> None:
    stand = Stand()
    stand.above()
    stand.below(marks={UID_ANNOTATION: "an-earlier-one"})
    assert stand.seen() == MemberState(state=PodState.WAITING)


def test_what_is_gone_and_what_has_an_owner() -> None:
    stand = Stand()
    assert stand.sight.observe_member(stand.member).is_gone
    stand.sent["u1"] = NOW + 1
    assert not stand.sight.observe_member(stand.member).is_gone
    stand.sent.clear()
    stand.below()
    assert not stand.sight.observe_member(stand.member).is_gone
    assert not stand.sight.has_owner(below())
    stand.above(uid="another")
    assert not stand.sight.has_owner(below())
    stand.above()
    assert stand.sight.has_owner(below())
    assert not stand.sight.observe_member(stand.member).is_gone


def test_placed_below_are_those_that_the_arbiter_placed_and_that_have_not_ended() -> None:
    stand = Stand()
    stand.below(uid="runs")
    stand.below(uid="ended", phase="Succeeded")
    stand.below(uid="free", marks={COMPUTE_NODE_ANNOTATION: ""})
    assert [pod.tenant_uid for pod in stand.sight.placed_compute_pods()] == ["runs"]


# -- what compute pods tell --------------------------------------------------------------------------------------------


def test_only_what_carries_its_node_was_placed() -> None:
    assert is_arbiter_placed(below())
    assert not is_arbiter_placed(below(marks={COMPUTE_NODE_ANNOTATION: ""}))


@pytest.mark.parametrize(("mark", "borrowed"), [("true", True), ("false", False), ("", True)])
def test_what_does_not_say_that_it_is_inside_the_guarantee_is_borrowed(mark: str, borrowed: bool) -> None:
    assert recover_verdict(below(marks={BORROWED_ANNOTATION: mark}), "local").borrowed is borrowed


@pytest.mark.parametrize("text", ["soon", "2026-03-01T12:30:00", ""])
def test_a_notice_without_a_time_is_none(text: str) -> None:
    verdict = recover_verdict(below(marks={EVICTION_DEADLINE_ANNOTATION: text}), "local")
    assert (verdict.said, verdict.deadline) == (VerdictState.ADMITTED, 0.0)


def test_a_pod_that_is_not_bound_is_where_it_was_to_go() -> None:
    verdict = recover_verdict(below(node="", marks={COMPUTE_NODE_ANNOTATION: "host-9"}), "local")
    assert (verdict.node, verdict.pool, verdict.said, verdict.deadline) == ("host-9", POOL, VerdictState.ADMITTED, 0.0)


@pytest.mark.parametrize(("meta", "deadline"), [({}, NOW + 40), ({"deletionTimestamp": LEAVING}, LEAVING_AT)])
def test_what_ends_of_a_pod_that_is_gone_above_is_a_gang_of_its_own(meta: dict[str, Any], deadline: float) -> None:
    gang = ending_gang(TENANT, below(marks={BORROWED_ANNOTATION: "false"}, **meta), "local", now=NOW)
    pod = gang.pods[0]

    assert gang.id == "alpha/default/gone/u1"
    assert (gang.tenant, gang.pools) == (TENANT, (POOL,))
    assert (pod.state, pod.node, pod.pool, pod.borrowed, pod.deadline) == (
        PodState.ENDING,
        "host-1",
        POOL,
        False,
        deadline,
    )
    assert pod.shape == Shape.from_requests({GPU: 1000})


@pytest.mark.parametrize("text", ["", "no json"])
def test_what_does_not_say_what_it_holds_is_taken_to_hold_nothing(text: str) -> None:
    gang = ending_gang(TENANT, below(marks={REQUESTS: text}), "local", now=NOW)
    assert gang.pods[0].shape == Shape.from_requests({})
