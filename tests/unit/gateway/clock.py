"""Fake clock of the tests."""

from __future__ import annotations

import time

from vkgateway.gateway.clock import SystemClock


class FakeClock(SystemClock):
    """Clock with a settable monotonic time; the time of day is the machine's."""

    def __init__(self) -> None:
        self.seconds = time.monotonic()

    def monotonic(self) -> float:
        """Return the time that the test has set."""
        return self.seconds
