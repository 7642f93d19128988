"""What the machine lacks when processes of the platform end: the cause that their exit codes do not tell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from vkgateway.api.errors import UnavailableError
from vkgateway_platform.embedded.disk import EXISTING_PLATFORM_BYTES, check_free_space

_LITTLE_MEMORY: Final = 200 << 20
"""Bytes of available memory below which processes are killed or not started."""


def find(data_dir: Path, *, is_down: bool) -> list[str]:
    """Return what the machine lacks, one sentence each, the cause before its effects.

    `is_down` says that a process of the platform does not run. Little memory counts only then.
    """
    return [*_disk_problems(data_dir), *(_memory_problems() if is_down else ())]


def _disk_problems(data_dir: Path) -> Iterator[str]:
    try:
        check_free_space(data_dir, needed=EXISTING_PLATFORM_BYTES)
    except UnavailableError as error:
        yield error.advice
    found = os.statvfs(data_dir)
    if found.f_files and not found.f_favail:
        yield f"the disk that holds {data_dir} has no free inodes: delete files that are not needed"
    if found.f_flag & os.ST_RDONLY:
        yield f"the disk that holds {data_dir} is read-only"
    elif not os.access(data_dir, os.W_OK | os.X_OK):
        yield f"{data_dir} is not writable for this user: restore its owner and mode"


def _memory_problems() -> Iterator[str]:
    free = psutil.virtual_memory().available
    if free < _LITTLE_MEMORY:
        yield f"the machine has {free >> 20} MB of memory left: end other programs, or delete tenants"
