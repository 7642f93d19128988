"""Stopping what a supervisor that is gone, or hangs, has left running."""

from itertools import groupby
from pathlib import Path

from vkgateway.programs.supervisor.procfs import GUARDIAN, SUPERVISOR, Marked, marked
from vkgateway.programs.supervisor.running import stop_marked
from vkgateway.programs.supervisor.spec import SupervisorPaths

_ROUNDS = 5


def stop_leftovers(data_dir: Path, *, timeout: float = 10.0) -> list[str]:
    """Stop every process of this data directory, supervisor included, found by its environment's mark.

    Blocking. The supervisor is killed first (it would start the others again), then the processes get
    SIGTERM in order of their stop ranks, and SIGKILL after `timeout` seconds a rank; at last what they had
    started. Returns the names of what was stopped. For a supervisor that answers, use its `shutdown`.
    """
    data_dir = data_dir.resolve()
    names: set[str] = set()
    for _ in range(_ROUNDS):
        found = marked(data_dir)
        if not found:
            break
        names.update(process.name for process in found)
        _stop(found, timeout=timeout)
    paths = SupervisorPaths(data_dir)
    for file in (paths.socket, paths.state):
        file.unlink(missing_ok=True)
    return sorted(names)


def _stop(found: list[Marked], *, timeout: float) -> None:
    for keeper in (GUARDIAN, SUPERVISOR):
        stop_marked([p for p in found if p.name == keeper], timeout=timeout, kill_at_once=True)
    leaders = [p for p in found if p.leader and p.name not in (GUARDIAN, SUPERVISOR)]
    leaders.sort(key=lambda process: process.rank, reverse=True)
    for _, rank in groupby(leaders, key=lambda process: process.rank):
        stop_marked(list(rank), timeout=timeout)
    stop_marked([p for p in found if not p.leader], timeout=timeout, kill_at_once=True)
