"""Lifecycles of gangs, from the marks of their pods."""

from __future__ import annotations

import pytest

from bench.scale.lives import arrival_delays, gpu_seconds, job_lives, median_startup, pod_gang, run_drifts
from bench.timeline import Mark, Timeline
from vkgateway.scheduler.core.snapshot import Shape
from vkgateway_platform.simulate.scenario import GPU, Job

JOB = Job(
    id="a/default/low-g16-0001", tenant="a", shapes=(Shape.from_requests({GPU: 8000}),) * 2, submitted=10.0, run=20.0
)


def timeline(*marks: tuple[str, Mark, float]) -> Timeline:
    found = Timeline()
    for pod, mark, time in marks:
        found.mark(mark, ("a", f"low-g16-0001-{pod}"), 100 + time)
    return found


def test_a_gang_starts_with_its_last_pod_and_ends_with_its_last_pod() -> None:
    seen = timeline(
        ("0-aaaaa", "seen", 11), ("1-bbbbb", "seen", 12), ("1-bbbbb", "admitted", 12.5), ("0-aaaaa", "admitted", 12.6),
        ("0-aaaaa", "ready", 13), ("1-bbbbb", "ready", 14), ("1-bbbbb", "ended", 33), ("0-aaaaa", "ended", 32),
    )  # fmt: skip
    lives = job_lives([JOB], seen, origin=100)
    life = lives[JOB.id]
    assert (life.arrived, life.started, life.running, life.ended, life.evictions) == (12, 12.5, 14, 33, 0)
    assert median_startup(lives) == 1.5
    assert arrival_delays([JOB], lives) == {JOB.id: 2}
    assert run_drifts([JOB], lives) == {JOB.id: pytest.approx(0.5)}
    assert gpu_seconds(seen, start=100, end=200) == 8 * (19 + 19)
    assert gpu_seconds(seen, start=120, end=130) == 8 * (10 + 10)


def test_an_evicted_gang_counts_once_and_ends_with_its_last_run() -> None:
    seen = timeline(
        ("0-aaaaa", "seen", 11), ("1-bbbbb", "seen", 11), ("0-aaaaa", "admitted", 12),
        ("0-aaaaa", "ready", 13), ("1-bbbbb", "ready", 13), ("0-aaaaa", "failed", 15), ("0-aaaaa", "ended", 15),
        ("1-bbbbb", "failed", 16), ("1-bbbbb", "ended", 16),
        ("0-ccccc", "seen", 25), ("1-ddddd", "seen", 26), ("0-ccccc", "admitted", 27),
        ("0-ccccc", "ready", 28), ("1-ddddd", "ready", 28), ("0-ccccc", "ended", 48), ("1-ddddd", "ended", 47),
    )  # fmt: skip
    lives = job_lives([JOB], seen, origin=100)
    life = lives[JOB.id]
    assert (life.arrived, life.started, life.running, life.ended, life.evictions) == (11, 12, 13, 48, 1)
    assert run_drifts([JOB], lives) == {}


def test_half_a_gang_has_neither_arrived_nor_started() -> None:
    seen = timeline(("0-aaaaa", "seen", 11), ("0-aaaaa", "ready", 13))
    life = job_lives([JOB], seen, origin=100)[JOB.id]
    assert (life.arrived, life.running, life.ended) == (None, None, None)
    assert job_lives([JOB], Timeline(), origin=100) == {}
    assert median_startup({}) == 0


def test_the_gang_and_the_index_are_in_the_name_of_a_pod() -> None:
    assert pod_gang(("a", "low-g16-0001-7-x7k2p")) == ("a/default/low-g16-0001", 7)
