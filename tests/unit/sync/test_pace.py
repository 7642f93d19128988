"""Pods of one controller fail with a growing delay, never more than ten in five minutes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkgateway.sync.pods.failure_backoff import FailureBackoff
from vkgateway.sync.views.pods import Owner, decode_tenant_pod, owner_of

WEB: Owner = ("default", "ReplicaSet/web-1")
JOB: Owner = ("default", "Job/train")


def flood(pace: FailureBackoff, *, seconds: float, owner: Owner = WEB) -> list[float]:
    """The times at which pods of a controller fail that replaces each at once."""
    failures, now = [], 0.0
    while now < seconds:
        wait = pace.remaining_delay(owner, now=now)
        if wait == 0:
            pace.record_failure(owner, now=now)
            failures.append(now)
        now += wait
    return failures


def test_the_first_fail_at_once_and_the_next_with_a_growing_delay() -> None:
    assert flood(FailureBackoff(), seconds=400) == [0, 0, 0, 10, 30, 70, 150, 310]


def test_it_never_grows_beyond_ten_in_five_minutes() -> None:
    failures = flood(FailureBackoff(), seconds=24 * 3600)
    assert max(sum(start <= one < start + 300 for one in failures) for start in failures) <= 10


@given(st.lists(st.floats(min_value=0, max_value=200), min_size=1, max_size=200))
def test_however_pods_arrive_at_most_ten_fail_in_five_minutes(gaps: list[float]) -> None:
    pace, now, failures = FailureBackoff(), 0.0, []
    for gap in gaps:
        now += gap
        if pace.remaining_delay(WEB, now=now) == 0:
            pace.record_failure(WEB, now=now)
            failures.append(now)
    assert max(sum(start <= one < start + 300 for one in failures) for start in failures) <= 10


@given(st.lists(st.tuples(st.floats(min_value=0, max_value=400), st.booleans()), max_size=60))
def test_a_wait_ends(story: list[tuple[float, bool]]) -> None:
    """Who waits as long as it is told, while nobody else fails, may fail."""
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
    flood(pace, seconds=60)
    assert pace.remaining_delay(WEB, now=60) > 0
    assert pace.remaining_delay(JOB, now=60) == 0


def test_ten_minutes_later_it_begins_again() -> None:
    pace = FailureBackoff()
    last = flood(pace, seconds=100)[-1]
    assert pace.remaining_delay(WEB, now=last + 600) == 0


def test_a_new_gateway_reads_failures_from_the_pods_once() -> None:
    asked = []

    def before() -> list[tuple[Owner, float]]:
        asked.append(1)
        return [(WEB, 8.0), (WEB, 9.0), (WEB, 10.0), (WEB, 11.0)]

    pace = FailureBackoff(before)
    assert pace.remaining_delay(WEB, now=12.0) == 19.0
    pace.record_failure(JOB, now=12.0)
    assert asked == [1]


def test_times_in_the_future_count_as_now() -> None:
    pace = FailureBackoff(lambda: [(WEB, 1e12)] * 4)
    assert pace.remaining_delay(WEB, now=100.0) == 20.0
    assert pace.remaining_delay(WEB, now=700.0) == 0.0


def test_memory_is_bounded() -> None:
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
def test_what_a_pod_belongs_to(metadata: dict[str, Any], owner: Owner) -> None:
    pod = {"metadata": {"namespace": "default", "uid": "u", **metadata}}
    assert decode_tenant_pod(json.dumps(pod).encode()).owner == owner


def test_a_pod_that_a_controller_of_another_namespace_owns_is_another() -> None:
    assert owner_of("a", "x", "", ("Job", "j")) != owner_of("b", "x", "", ("Job", "j"))
