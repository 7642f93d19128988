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
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            raise _busy(what or f"the platform in {path.parent}", holder=holder) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"vkgateway {command} (pid {os.getpid()})".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _busy(what: str, *, holder: str) -> ConflictError:
    return ConflictError(
        f"{what} is being worked on by {holder or 'another command'}",
        hint="Wait until that is done, or interrupt it.",
    )
