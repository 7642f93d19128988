"""CPU time and memory of processes, from /proc (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MIB: Final = 1024.0


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    # The second field, the name, may hold anything; counting starts after its closing bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mib(pid: int) -> Mapping[str, float]:
    """`VmRSS` and `VmHWM` (its peak) of a process, in MiB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) / _MIB for line in lines if line and line[0] in ("VmRSS:", "VmHWM:")}


def forget_peak(pid: int) -> None:
    """Let the peak begin anew at what is used now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def pss_mib(pid: int) -> float:
    """Proportional set size of a process, in MiB: shared pages count by share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / _MIB
    return 0.0


def busy_seconds() -> float:
    """CPU time that the whole machine has spent so far, all cores together; idling and waiting left out."""
    numbers = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / _TICKS


def stolen_seconds() -> float:
    """CPU time that a virtual machine wanted so far and its host gave to others, all cores together."""
    return int(Path("/proc/stat").read_text().split()[8]) / _TICKS


class CpuMeter:
    """CPU time of groups of processes since the meter was made; the processes must live on."""

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._groups = {name: tuple(pids) for name, pids in groups.items()}
        self._start = self._now()

    def _now(self) -> dict[str, float]:
        return {name: sum(map(cpu_seconds, pids)) for name, pids in self._groups.items()}

    def read(self) -> dict[str, float]:
        """Seconds by group."""
        return {name: seconds - self._start[name] for name, seconds in self._now().items()}
