"""Timer slack: the maximum delay of a process's timers, which lets the kernel fire many of them in one wake-up."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

_PR_SET_TIMERSLACK = 29
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def timer_slack(seconds: float) -> Iterator[None]:
    """Set the timer slack of child processes that this thread starts within the block; 0 for the thread's own.

    A child inherits it across fork and exec, and so does each of its threads (prctl(2)).
    """
    if seconds <= 0:
        yield
        return
    _set_slack(round(seconds * 1e9))
    try:
        yield
    finally:
        _set_slack(0)  # restore the thread's original slack


def _set_slack(nanoseconds: int) -> None:
    if _libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(nanoseconds), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
