"""Timer slack: how late a process's timers may fire, so that the kernel can let many of them fire in one wake-up."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

_PR_SET_TIMERSLACK = 29
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def timer_slack(seconds: float) -> Iterator[None]:
    """Give this slack to the processes that this thread starts inside the block; 0 gives them the thread's own.

    A child inherits it across fork and exec, and so does each thread that it makes (prctl(2)).
    """
    if seconds <= 0:
        yield
        return
    _set_slack(round(seconds * 1e9))
    try:
        yield
    finally:
        _set_slack(0)  # back to what the thread was born with


def _set_slack(nanoseconds: int) -> None:
    if _libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(nanoseconds), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
