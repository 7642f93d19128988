"""A full or read-only disk, told in one sentence."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vkgateway.model.errors import UnavailableError

_PROBLEMS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        errno.ENOSPC: ("is full", "Make room (`vkgateway binaries prune` frees old programs), then try again."),
        errno.EDQUOT: ("has no more room for this user", "Make room or raise the quota, then try again."),
        errno.EROFS: ("is read-only", "Choose another place with --data-dir DIR."),
        errno.EACCES: ("may not be written by this user", "Choose another place with --data-dir DIR."),
        errno.EPERM: ("may not be written by this user", "Choose another place with --data-dir DIR."),
    }
)


NEW_PLATFORM_BYTES: Final = 300 << 20
"""What a new platform needs at least: etcd alone sets 64 MB aside for each of its first files."""
EXISTING_PLATFORM_BYTES: Final = 80 << 20
"""What one needs that is there already: etcd sets 64 MB aside for its next file."""


def check_free_space(directory: Path, *, needed: int) -> None:
    """See that there is room for `needed` bytes, for a full disk shows itself late and in riddles otherwise.

    Raises:
        UnavailableError: there is not.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise UnavailableError(
            f"the disk that holds {directory} has {free >> 20} MB free, and a platform needs {needed >> 20} MB",
            hint=_PROBLEMS[errno.ENOSPC][1],
        )


@contextlib.contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Turn what a disk refuses into an UnavailableError that names the place and the way out."""
    try:
        yield
    except OSError as error:
        problem = _PROBLEMS.get(error.errno or 0)
        if problem is None:
            raise
        place = error.filename or directory
        what, way_out = problem
        raise UnavailableError(f"the disk that holds {place} {what}", hint=way_out) from error
