"""Steady clock: it advances evenly until it is adjusted to the system clock."""

from __future__ import annotations

from datetime import timedelta

from tests.fakes.clock import EPOCH, FakeClock
from vkgateway.kube.clock import SteadyClock


def test_clock_is_steady_until_it_is_adjusted() -> None:
    wall = FakeClock(50.0, origin=EPOCH + timedelta(seconds=1_000_000 - 50))
    clock = SteadyClock(wall)
    assert clock.time() == 1_000_000.0
    wall.seconds += 7
    wall.origin -= timedelta(hours=1)
    assert clock.time() == 1_000_007.0
    clock.follow_wall()
    assert clock.time() == 1_000_007.0 - 3600
    wall.seconds += 1
    assert clock.time() == 1_000_008.0 - 3600
