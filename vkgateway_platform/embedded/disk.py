"""Errors of a full or read-only disk as one sentence."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vkgateway.api.errors import UnavailableError

_PROBLEMS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        errno.ENOSPC: ("is full", "Make room (`vkgateway binaries prune` frees old programs), then try again."),
        errno.EDQUOT: ("exceeds this user's quota", "Free space or raise the quota, then try again."),
        errno.EROFS: ("is read-only", "Choose another directory with --data-dir DIR."),
        errno.EACCES: ("is not writable for this user", "Choose another directory with --data-dir DIR."),
        errno.EPERM: ("is not writable for this user", "Choose another directory with --data-dir DIR."),
    }
)


NEW_PLATFORM_BYTES: Final = 300 << 20
"""Bytes that a new platform needs at least: etcd allocates 64 MB for each of its first files."""
EXISTING_PLATFORM_BYTES: Final = 80 << 20
"""Bytes that an existing platform needs: etcd allocates 64 MB for its next file."""


def check_free_space(directory: Path, *, needed: int) -> None:
    """Check that the disk has `needed` free bytes; later a full disk causes confusing errors.

    Raises:
        UnavailableError: the disk has less.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise UnavailableError(
            f"the disk that holds {directory} has {free >> 20} MB free, and a platform needs {needed >> 20} MB",
            hint=_PROBLEMS[errno.ENOSPC][1],
        )


@contextlib.contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Convert disk errors within the block to an UnavailableError with the path and the way out."""
    try:
        yield
    except OSError as error:
        problem = _PROBLEMS.get(error.errno or 0)
        if problem is None:
            raise
        place = error.filename or directory
        what, way_out = problem
        raise UnavailableError(f"the disk that holds {place} {what}", hint=way_out) from error
