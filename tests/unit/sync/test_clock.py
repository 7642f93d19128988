"""Steady clock: it advances evenly until it is adjusted to the system clock."""

from __future__ import annotations

from vkgateway.sync.clock import SteadyClock


def test_clock_is_steady_until_it_is_adjusted() -> None:
    wall, even = [1_000_000.0], [50.0]
    clock = SteadyClock(wall=lambda: wall[0], even=lambda: even[0])
    assert clock() == 1_000_000.0
    wall[0], even[0] = 1_000_007.0 - 3600, 57.0
    assert clock() == 1_000_007.0
    clock.follow_wall()
    assert clock() == 1_000_007.0 - 3600
    even[0] += 1
    assert clock() == 1_000_008.0 - 3600
