"""Stopping the processes of a supervisor that is dead or hangs."""

from itertools import groupby
from pathlib import Path

from vkgateway.api.errors import UnavailableError
from vkgateway.planes.supervisor.procfs import GUARDIAN, SUPERVISOR, MarkedProcess, list_marked
from vkgateway.planes.supervisor.running_process import stop_marked
from vkgateway.planes.supervisor.spec import SupervisorPaths

_ROUNDS = 5


def stop_leftovers(data_dir: Path, *, timeout: float = 10.0) -> list[str]:
    """Stop every process of this data directory, including the supervisor, found by the mark in its environment.

    Blocking. The supervisor is killed first, since it would restart the others. The processes get SIGTERM in the order
    of their stop ranks, and SIGKILL after `timeout` seconds per rank; their descendants are last. Return the names of
    the stopped processes. For a supervisor that answers, use its `shutdown`.

    Raises:
        UnavailableError: some processes cannot be killed; the call may be repeated.
    """
    data_dir = data_dir.resolve()
    names: set[str] = set()
    for _ in range(_ROUNDS):
        found = list_marked(data_dir)
        if not found:
            break
        names.update(process.name for process in found)
        if left := _stop_processes(found, timeout=timeout):
            raise _unkillable_error(left)
    paths = SupervisorPaths(data_dir)
    for file in (paths.socket_path, paths.state_path):
        file.unlink(missing_ok=True)
    return sorted(names)


def _stop_processes(found: list[MarkedProcess], *, timeout: float) -> list[MarkedProcess]:
    """Stop all processes; return those that survived."""
    left: list[MarkedProcess] = []
    for keeper in (GUARDIAN, SUPERVISOR):
        left += stop_marked([p for p in found if p.name == keeper], timeout=timeout, kill_at_once=True)
    leaders = [p for p in found if p.is_leader and p.name not in (GUARDIAN, SUPERVISOR)]
    leaders.sort(key=lambda process: process.rank, reverse=True)
    for _, rank in groupby(leaders, key=lambda process: process.rank):
        left += stop_marked(list(rank), timeout=timeout)
    return left + stop_marked([p for p in found if not p.is_leader], timeout=timeout, kill_at_once=True)


def _unkillable_error(left: list[MarkedProcess]) -> UnavailableError:
    names = ", ".join(sorted(f"{process.name} (pid {process.pid})" for process in left))
    return UnavailableError(
        f"{names} {'survives' if len(left) == 1 else 'survive'} SIGKILL: the kernel waits, most often for a disk or "
        "network share that does not answer",
        hint="Restore it, then run `vkgateway down` again to continue.",
    )
