"""CPU time and memory of processes, from /proc (proc(5))."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MIB: Final = 1024.0
_ESTABLISHED: Final = "01"
"""State of a connection in /proc/PID/net/tcp."""


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process."""
    # The second field, the name, may contain anything. Fields are counted after its closing bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mib(pid: int) -> Mapping[str, float]:
    """Return `VmRSS` and `VmHWM` (its peak) of a process, in MiB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) / _MIB for line in lines if line and line[0] in ("VmRSS:", "VmHWM:")}


def reset_peak(pid: int) -> None:
    """Reset the peak memory of a process to its current memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def pss_mib(pid: int) -> float:
    """Return the proportional set size of a process, in MiB: each shared page counts in part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / _MIB
    return 0.0


def available_mib() -> float:
    """Return the memory that new processes can use without swapping, in MiB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / _MIB
    return 0.0


def tcp_connections(pid: int) -> int:
    """Return the number of established TCP connections of a process."""
    sockets: set[str] = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            sockets.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return sum(row[3] == _ESTABLISHED and row[9] in sockets for row in rows)


def busy_seconds() -> float:
    """Return the CPU time of the whole machine, all cores together, without idle and I/O wait time."""
    numbers = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / _TICKS


def stolen_seconds() -> float:
    """Return the steal time of a virtual machine, all cores together: CPU time that its hypervisor gave to others."""
    return int(Path("/proc/stat").read_text().split()[8]) / _TICKS


class CpuMeter:
    """CPU time of groups of processes since the meter's creation. The processes must not end."""

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._groups = {name: tuple(pids) for name, pids in groups.items()}
        self._start = self._group_seconds()

    def _group_seconds(self) -> dict[str, float]:
        return {name: sum(map(cpu_seconds, pids)) for name, pids in self._groups.items()}

    def read_seconds(self) -> dict[str, float]:
        """Return seconds by group."""
        return {name: seconds - self._start[name] for name, seconds in self._group_seconds().items()}
