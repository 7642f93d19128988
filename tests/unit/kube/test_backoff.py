"""Random durations of periodic work."""

from __future__ import annotations

from vkgateway.kube.backoff import random_part, vary_slightly


def test_first_runs_are_spread_over_the_whole_interval() -> None:
    durations = [random_part(10.0) for _ in range(1000)]
    assert min(durations) < 1.0
    assert 9.0 < max(durations) <= 10.0


def test_later_runs_stay_within_a_tenth() -> None:
    durations = [vary_slightly(10.0) for _ in range(1000)]
    assert 9.0 <= min(durations) < 9.5
    assert 10.5 < max(durations) <= 11.0
