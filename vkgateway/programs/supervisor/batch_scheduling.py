"""Batch scheduling: a process that wakes up waits for its turn, and does not interrupt one that is at work."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def batch_scheduling(*, on: bool) -> Iterator[None]:
    """Schedule the processes that this thread starts inside the block so, where `on`; others as the thread itself is.

    A child inherits it across fork and exec, and so does each thread that it makes (sched(7), SCHED_BATCH). Where it is
    not allowed nothing is changed: it only saves work.
    """
    if not on:
        yield
        return
    before = os.sched_getscheduler(0)
    with contextlib.suppress(OSError):
        _set_policy(os.SCHED_BATCH)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _set_policy(before)


def _set_policy(policy: int) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(0))
