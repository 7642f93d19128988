"""Batch scheduling: a process that wakes up does not preempt a running one."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def batch_scheduling(*, on: bool) -> Iterator[None]:
    """Start child processes of this thread with batch scheduling within the block, if `on`.

    A child inherits it across fork and exec, and so does each of its threads (sched(7), SCHED_BATCH). Nothing happens
    if it is not permitted: it only saves CPU time.
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
