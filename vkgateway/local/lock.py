"""One command at a time works on a platform, or on something of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from vkgateway.model.errors import ConflictError


@contextlib.contextmanager
def work_lock(path: Path, *, command: str, what: str = "") -> Iterator[None]:
    """Hold the platform, or `what` of it, for `command`; the lock ends with the process, however that ends.

    Raises:
        ConflictError: another command holds it; the message says which.
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
    """See that no command is at work on the platform; nothing is made or written.

    Raises:
        ConflictError: one is; the message says which.
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
        f"{what} is being worked on by {holder or 'another command'}",
        hint="Wait until that is done, or interrupt it.",
    )
