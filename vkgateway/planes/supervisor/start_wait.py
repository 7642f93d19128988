"""How long a starting process is waited for: as long as it works, however slow the machine is."""

from __future__ import annotations

from typing import Final, Protocol

import psutil

_INTERVAL: Final = 1.0
"""Seconds over which work is measured."""
_WORKING: Final = 0.05
"""Share of a core above which a process works: one that waits for another uses less."""
MOST_TIMES: Final = 10
"""However much a process works, it is waited for at most this many times as long."""


class CpuTime(Protocol):
    """How the CPU time of a process is read."""

    def __call__(self, pid: int, /) -> float | None:
        """Return the seconds of CPU time that a process has used; None if it does not exist."""


def read_cpu_time(pid: int) -> float | None:
    """Return the seconds of CPU time that a process has used; None if it does not exist."""
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(used.user + used.system)


class StartWait:
    """The limit of a wait for a process: `seconds` since it last worked, times in seconds of any one clock.

    On a machine that is slow or busy with other work, a sound start takes many times as long as on an idle one.
    """

    def __init__(self, seconds: float, *, now: float, cpu_time: CpuTime = read_cpu_time) -> None:
        self._seconds = seconds
        self._cpu_time = cpu_time
        self._began = self._worked = self._measured = now
        self._used: dict[int, float] = {}

    def is_over(self, pid: int | None, now: float) -> bool:
        """Return whether the process, which may be another one than before, is not waited for any longer."""
        if now - self._measured >= _INTERVAL:
            if pid is not None and self._has_worked(pid, now - self._measured):
                self._worked = now
            self._measured = now
        return now - self._worked >= self._seconds or now - self._began >= MOST_TIMES * self._seconds

    def _has_worked(self, pid: int, elapsed: float) -> bool:
        used = self._cpu_time(pid)
        before = self._used.get(pid, 0.0)
        self._used[pid] = used or 0.0
        return used is not None and used - before >= _WORKING * elapsed
