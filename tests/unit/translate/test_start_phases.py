"""Phases of the start of a pod."""

from __future__ import annotations

import itertools

import pytest

from vkgateway.kinds.pods.translation.start_phases import (
    PHASES,
    StartTimes,
    current_phase,
    describe_phases,
    phase_seconds,
    precise_time,
    since_phase,
)


def test_phases_add_up_to_the_time_until_ready() -> None:
    times = StartTimes(100.0, admitted=103.0, bound=103.5, sandbox=105.0, started=120.0, ready=121.5, pull_seconds=12.0)
    phases = phase_seconds(times)
    assert phases == {"admit": 3.0, "bind": 0.5, "sandbox": 1.5, "pull": 12.0, "start": 3.0, "ready": 1.5}
    assert sum(phases.values()) == 121.5 - 100.0
    assert current_phase(times) is None


def test_phase_without_a_known_end_takes_no_time() -> None:
    """A kubelet without PodReadyToStartContainers, or a hollow one."""
    phases = phase_seconds(StartTimes(0.0, admitted=1.0, bound=2.0, started=5.0, ready=5.0))
    assert phases == {"admit": 1.0, "bind": 1.0, "sandbox": 0.0, "pull": 0.0, "start": 3.0, "ready": 0.0}


def test_pull_is_no_longer_than_the_time_in_which_it_was() -> None:
    phases = phase_seconds(StartTimes(0.0, admitted=0.0, bound=0.0, sandbox=1.0, started=3.0, pull_seconds=99.0))
    assert (phases["pull"], phases["start"]) == (2.0, 0.0)
    assert "ready" not in phases


def test_clocks_that_differ_make_no_negative_phase() -> None:
    """Every order of the times gives phases from 0 on, and their sum is the span after the creation."""
    for order in itertools.permutations(range(5)):
        admitted, bound, sandbox, started, ready = map(float, order)
        times = StartTimes(2.0, admitted, bound, sandbox, started, ready, pull_seconds=1.0)
        phases = phase_seconds(times)
        assert tuple(phases) == PHASES
        assert all(seconds >= 0 for seconds in phases.values())
        assert sum(phases.values()) == max(order) - 2.0


@pytest.mark.parametrize(
    ("times", "pulls", "phase", "since"),
    [
        (StartTimes(1.0), False, "admit", 1.0),
        (StartTimes(1.0, admitted=2.0), False, "bind", 2.0),
        (StartTimes(1.0, admitted=2.0, bound=3.0), False, "sandbox", 3.0),
        (StartTimes(1.0, admitted=2.0, bound=3.0, sandbox=4.0), False, "start", 4.0),
        (StartTimes(1.0, admitted=2.0, bound=3.0, sandbox=4.0), True, "pull", 4.0),
        (StartTimes(1.0, admitted=2.0, bound=3.0, started=5.0), False, "ready", 5.0),
        (StartTimes(1.0, ready=6.0), False, None, 6.0),
    ],
)
def test_current_phase_begins_with_the_last_milestone(
    times: StartTimes, pulls: bool, phase: str | None, since: float
) -> None:
    assert current_phase(times, pulls=pulls) == phase
    assert since_phase(times) == since


def test_another_node_starts_anew_after_the_admission() -> None:
    times = StartTimes(1.0, admitted=2.0, bound=3.0, sandbox=4.0, pull_seconds=5.0)
    times.restart()
    assert times == StartTimes(1.0, admitted=2.0)


@pytest.mark.parametrize(
    ("stamp", "seen", "time"),
    [
        ("1970-01-01T00:00:10Z", 10.4, 10.4),
        ("1970-01-01T00:00:10Z", 15.0, 11.0),
        ("1970-01-01T00:00:10Z", 9.0, 10.0),
        (None, 9.0, 9.0),
    ],
)
def test_observation_decides_within_the_stated_second(stamp: str | None, seen: float, time: float) -> None:
    assert precise_time(stamp, seen) == time


def test_words_have_the_order_of_the_phases() -> None:
    assert describe_phases({"bind": 0.04, "admit": 12.345}) == "admit 12.3 s, bind 0.0 s"
