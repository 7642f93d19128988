"""Pods of one controller fail with a growing delay, and at most ten times in five minutes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkgateway.kinds.pods.failures import FailureBackoff
from vkgateway.runtime.views.pods import Owner, decode_tenant_pod, owner_of

WEB: Owner = ("default", "ReplicaSet/web-1")
JOB: Owner = ("default", "Job/train")


def fail_constantly(pace: FailureBackoff, *, seconds: float, owner: Owner = WEB) -> list[float]:
    """Return the failure times of a controller that replaces each failed pod immediately."""
    failures, now = [], 0.0
    while now < seconds:
        wait = pace.remaining_delay(owner, now=now)
        if wait == 0:
            pace.record_failure(owner, now=now)
            failures.append(now)
        now += wait
    return failures


def test_first_failures_are_immediate_and_the_next_have_a_growing_delay() -> None:
    assert fail_constantly(FailureBackoff(), seconds=400) == [0, 0, 0, 10, 30, 70, 150, 310]


def test_rate_never_exceeds_ten_failures_in_five_minutes() -> None:
    failures = fail_constantly(FailureBackoff(), seconds=24 * 3600)
    assert max(sum(start <= one < start + 300 for one in failures) for start in failures) <= 10


@given(st.lists(st.floats(min_value=0, max_value=200), min_size=1, max_size=200))
def test_rate_is_limited_for_any_arrival_pattern(gaps: list[float]) -> None:
    pace, now, failures = FailureBackoff(), 0.0, []
    for gap in gaps:
        now += gap
        if pace.remaining_delay(WEB, now=now) == 0:
            pace.record_failure(WEB, now=now)
            failures.append(now)
    assert max(sum(start <= one < start + 300 for one in failures) for start in failures) <= 10


@given(st.lists(st.tuples(st.floats(min_value=0, max_value=400), st.booleans()), max_size=60))
def test_delay_expires(story: list[tuple[float, bool]]) -> None:
    """A pod that has waited for its delay may fail if no other pod has failed since."""
    pace, now = FailureBackoff(), 0.0
    for gap, fails in story:
        now += gap
        wait = pace.remaining_delay(WEB, now=now)
        assert 0 <= wait <= 300
        assert pace.remaining_delay(WEB, now=now + wait + 0.001) == 0
        if fails and wait == 0:
            pace.record_failure(WEB, now=now)


def test_owners_do_not_delay_each_other() -> None:
    pace = FailureBackoff()
    fail_constantly(pace, seconds=60)
    assert pace.remaining_delay(WEB, now=60) > 0
    assert pace.remaining_delay(JOB, now=60) == 0


def test_backoff_is_reset_after_ten_minutes() -> None:
    pace = FailureBackoff()
    last = fail_constantly(pace, seconds=100)[-1]
    assert pace.remaining_delay(WEB, now=last + 600) == 0


def test_earlier_failures_are_read_once() -> None:
    asked = []

    def before() -> list[tuple[Owner, float]]:
        asked.append(1)
        return [(WEB, 8.0), (WEB, 9.0), (WEB, 10.0), (WEB, 11.0)]

    pace = FailureBackoff(before())
    assert pace.remaining_delay(WEB, now=12.0) == 19.0
    pace.record_failure(JOB, now=12.0)
    assert asked == [1]


def test_future_times_count_as_now() -> None:
    pace = FailureBackoff([(WEB, 1e12)] * 4)
    assert pace.remaining_delay(WEB, now=100.0) == 20.0
    assert pace.remaining_delay(WEB, now=700.0) == 0.0


def test_number_of_owners_is_limited() -> None:
    pace = FailureBackoff()
    for number in range(5000):
        pace.record_failure(("default", f"Pod/{number}"), now=1.0)
    assert len(pace._failures) <= 1024
    pace.record_failure(WEB, now=1000.0)
    assert list(pace._failures) == [WEB]


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        ({"name": "web-1-x", "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "controller": True}]}, WEB),
        (
            {"ownerReferences": [{"kind": "Job", "name": "backup-29384720", "controller": True}]},
            ("default", "Job/backup"),
        ),
        (
            {"ownerReferences": [{"kind": "StatefulSet", "name": "db-12345678", "controller": True}]},
            ("default", "StatefulSet/db-12345678"),
        ),
        ({"name": "one", "ownerReferences": [{"kind": "Config", "name": "some"}]}, ("default", "Pod/one")),
        ({"name": "run-abcde", "generateName": "run-"}, ("default", "Pod/run-")),
        ({"name": "alone"}, ("default", "Pod/alone")),
    ],
)
def test_owner_of_a_pod(metadata: dict[str, Any], owner: Owner) -> None:
    pod = {"metadata": {"namespace": "default", "uid": "u", **metadata}}
    assert decode_tenant_pod(json.dumps(pod).encode()).owner == owner


def test_owners_in_different_namespaces_are_different() -> None:
    assert owner_of("a", "x", "", ("Job", "j")) != owner_of("b", "x", "", ("Job", "j"))
