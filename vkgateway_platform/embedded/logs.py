"""Log files of a platform's processes: list, last lines, and new lines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from vkgateway.api.errors import NotFoundError
from vkgateway.planes.supervisor.spec import SupervisorPaths

_BLOCK = 64 * 1024
_POLL = 0.2
_START = "Start a platform with `vkgateway up`, or name another one's place with --data-dir DIR."


def list_components(data_dir: Path) -> list[str]:
    """Return the components that have a log, by the names that `log_file` accepts."""
    return sorted(path.name.removesuffix(".log").replace(".", "/") for path in _log_dir(data_dir).glob("*.log"))


def require_components(data_dir: Path) -> list[str]:
    """Return the components that have a log. Raises NotFoundError if there are none."""
    if known := list_components(data_dir):
        return known
    raise NotFoundError(f"there are no logs in {_log_dir(data_dir)}", hint=_START)


def log_file(data_dir: Path, component: str) -> Path:
    """Return the log of a component.

    Raises:
        NotFoundError: it has no log; the hint names those that have one.
    """
    known = list_components(data_dir)
    if component not in known:
        raise NotFoundError(
            f"{component!r} has no log in {_log_dir(data_dir)}",
            hint=f"Available logs: {', '.join(known)}." if known else _START,
        )
    return SupervisorPaths(data_dir).log_path(component)


async def follow_file(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield what is appended to the file, forever; a truncated file is read from its start."""
    while True:
        if added := file.read(_BLOCK):
            yield added
            continue
        if os.fstat(file.fileno()).st_size < file.tell():
            file.seek(0)
        await asyncio.sleep(_POLL)


def _log_dir(data_dir: Path) -> Path:
    return SupervisorPaths(data_dir).log_dir
