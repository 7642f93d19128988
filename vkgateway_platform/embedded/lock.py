"""A lock, so that one command at a time works on a platform or on a part of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from vkgateway.api.errors import ConflictError


@contextlib.contextmanager
def work_lock(path: Path, *, command: str, what: str = "") -> Iterator[None]:
    """Hold the lock of the platform, or of its part `what`, for `command`; it ends with the process.

    Raises:
        ConflictError: another command holds the lock; the message names it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _try_lock(descriptor, what or _platform_label(path))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"vkgateway {command} (pid {os.getpid()})".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def check_idle(path: Path) -> None:
    """Check that no command works on the platform, without writing anything.

    Raises:
        ConflictError: a command works on it; the message names it.
    """
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        _try_lock(file.fileno(), _platform_label(path))


def _try_lock(descriptor: int, what: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        raise _busy_error(what, holder=holder) from None


def _platform_label(path: Path) -> str:
    return f"the platform in {path.parent}"


def _busy_error(what: str, *, holder: str) -> ConflictError:
    return ConflictError(
        f"{what} is in use by {holder or 'another command'}",
        hint="Wait until the command is done, or interrupt it.",
    )
