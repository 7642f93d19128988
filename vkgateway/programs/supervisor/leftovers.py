"""Stopping what a supervisor that is gone has left running."""

from pathlib import Path


def stop_leftovers(data_dir: Path, *, timeout: float = 10.0) -> list[str]:
    """Stop every process of this data directory, supervisor included, found by its environment's mark.

    Blocking. SIGTERM first in order of stop rank, SIGKILL after `timeout` seconds. Returns what was stopped.
    """
    raise NotImplementedError(data_dir, timeout)
