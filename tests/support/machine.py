"""Speed of this machine: every bounded wait of a test is scaled by it, so that no result depends on the machine."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable

VARIABLE = "VKGATEWAY_TEST_SLOWNESS"
"""The measured factor of a run, for its worker processes; set it by hand to wait longer from the start."""
_REFERENCE_SECONDS = 0.25
"""Time of `_work` on an idle core of the machine on which the waits were chosen (see docs/contributing/testing.md)."""
_ROUNDS = 1_100_000
_MARGIN = 2
"""Other work may begin after the measurement."""


def patience(seconds: float) -> float:
    """Return the limit of a wait that takes less than `seconds` on the reference machine.

    It bounds how long a failure takes, so it must not be the subject of a test.
    """
    return seconds * _MARGIN * slowness()


@functools.cache
def slowness() -> float:
    """Return how many times slower this machine is than the reference, at least 1; measured once per run."""
    if given := os.environ.get(VARIABLE):
        return float(given)
    began = time.monotonic()
    _work()
    found = max(1.0, (time.monotonic() - began) / _REFERENCE_SECONDS)
    os.environ[VARIABLE] = f"{found:.1f}"
    return found


def patience_option(seconds: float) -> str:
    """Return the `--timeout` of kubectl and helm for a wait, in whole seconds."""
    return f"--timeout={math.ceil(patience(seconds))}s"


def assert_linear(work: Callable[[int], None], size: int) -> None:
    """Check that 16 times the size takes less than a hundred times the CPU time: quadratic work takes 256 times.

    The bound leaves room for large work that leaves the caches, or whose memory the kernel must map first. Of three
    runs the fastest counts, because other processes displace the caches.
    """
    small, large = (min(_cpu_seconds(work, each) for _ in range(3)) for each in (size, 16 * size))
    assert large < 100 * small, f"{small:.4f} s for {size}, {large:.4f} s for {16 * size}"


def _cpu_seconds(work: Callable[[int], None], size: int) -> float:
    began = time.thread_time()
    work(size)
    return time.thread_time() - began


def _work() -> None:
    """Do what the tests' own processes do most: strings, dictionaries and small objects."""
    seen: dict[str, int] = {}
    for turn in range(_ROUNDS):
        seen[str(turn % 1000)] = seen.get(str(turn % 997), 0) + turn
