"""Search for the processes of a platform, by a mark in their environment (/proc)."""

import os
from dataclasses import dataclass
from pathlib import Path

from vkgateway.planes.supervisor.spec import RESERVED

MARK_VARIABLE = "VKGATEWAY_SUPERVISED"
"""Environment variable that marks a process and its descendants."""

SUPERVISOR, GUARDIAN = RESERVED


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    """A live process of a platform."""

    pid: int
    started: int
    """Start time in clock ticks since boot (proc(5), field 22 of stat); together with the pid it identifies a process.
    """
    is_leader: bool
    """Whether the process leads its session, as supervised processes do and their children don't."""
    rank: int
    digest: str
    name: str


def mark_value(data_dir: Path, *, name: str, rank: int = 0, digest: str = "-") -> str:
    """Return the value of the mark."""
    return f"{rank}:{digest}:{name}:{data_dir}"


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if there is none, or for a zombie."""
    fields = _read_stat(pid)
    return None if fields is None else int(fields[19])


def list_marked(data_dir: Path) -> list[MarkedProcess]:
    """Return every live process of `data_dir` except the caller; those of other users are invisible."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            process = _read_process(int(entry), data_dir=str(data_dir))
            if process is not None:
                found.append(process)
    return found


def _read_process(pid: int, *, data_dir: str) -> MarkedProcess | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = b"\0" + file.read()
    except OSError:
        return None
    _, here, rest = environment.partition(b"\0" + MARK_VARIABLE.encode() + b"=")
    parts = os.fsdecode(rest.partition(b"\0")[0]).split(":", 3)
    if not here or len(parts) != 4 or parts[3] != data_dir:
        return None
    fields = _read_stat(pid)
    if fields is None:
        return None
    return MarkedProcess(
        pid=pid,
        started=int(fields[19]),
        is_leader=int(fields[3]) == pid,
        rank=int(parts[0]) if parts[0].lstrip("-").isdigit() else 0,
        digest=parts[1],
        name=parts[2],
    )


def _read_stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (state) on; the second may contain blanks and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if not fields or fields[0] in "ZX" else fields
