"""The wait for a starting process: it is given up when the process stops working, not when the machine is slow."""

from __future__ import annotations

import os

import pytest

from vkgateway.planes.supervisor.client import MOST_TIMES, StartWait, read_cpu_time


def seconds_until_over(share: float, *, works_until: float = float("inf")) -> float:
    """Return how long a process is waited for that uses this share of a core."""
    now = 0.0
    limit = StartWait(60.0, now=now, cpu_time=lambda _pid: share * min(now, works_until))
    while not limit.is_over(7, now):
        now += 0.5
    return now


@pytest.mark.parametrize("share", [0.0, 0.04])
def test_idle_process_is_given_up_after_the_limit(share: float) -> None:
    assert seconds_until_over(share) == 60


def test_process_that_works_slowly_is_waited_for_until_it_stops_working() -> None:
    assert 240 <= seconds_until_over(0.1, works_until=180) <= 242


def test_process_that_works_for_ever_is_given_up_in_the_end() -> None:
    assert seconds_until_over(1.0) == 60 * MOST_TIMES


def test_missing_process_does_not_work() -> None:
    limit = StartWait(60.0, now=0.0, cpu_time=lambda _pid: None)
    assert not limit.is_over(None, 59.0)
    assert limit.is_over(7, 60.0)


def test_cpu_time_is_read_from_the_kernel() -> None:
    assert (read_cpu_time(os.getpid()) or 0.0) > 0
    assert read_cpu_time(2**22 + 1) is None
