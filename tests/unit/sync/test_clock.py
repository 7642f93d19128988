"""The even clock: time alone moves it, until it follows the machine's."""

from __future__ import annotations

from vkgateway.sync.clock import SteadyClock


def test_it_goes_on_evenly_when_the_clock_is_set_and_follows_when_told() -> None:
    wall, even = [1_000_000.0], [50.0]
    clock = SteadyClock(wall=lambda: wall[0], even=lambda: even[0])
    assert clock() == 1_000_000.0
    wall[0], even[0] = 1_000_007.0 - 3600, 57.0
    assert clock() == 1_000_007.0
    clock.follow_wall()
    assert clock() == 1_000_007.0 - 3600
    even[0] += 1
    assert clock() == 1_000_008.0 - 3600
