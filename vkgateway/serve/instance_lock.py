"""Lock of the data directory, and the identity of the gateway that uses it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import structlog

from vkgateway.api.errors import ConflictError

log = structlog.get_logger(__name__)

LOCK_FILE = "gateway.lock"
"""File in the data directory: locked by its gateway, and contains the gateway's identity."""
_NAME_BYTES = 4


@contextlib.contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[str]:
    """Lock a data directory and yield the gateway's identity, which is stable across restarts.

    The kernel releases the lock when the process ends. If the file cannot be locked or written, for example because the
    disk is full, the gateway runs without the lock, and with another identity after a restart: two processes with the
    same identity would take the leader's Lease from each other.

    Raises:
        ConflictError: another gateway uses the data directory.
    """
    host = socket.gethostname()
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.warning("data directory not locked", folder=str(data_dir), error=error.strerror)
        yield f"{host}/{secrets.token_hex(_NAME_BYTES)}"
        return
    try:
        yield f"{host}/{_read_identity(descriptor, data_dir)}"
    finally:
        os.close(descriptor)


def _read_identity(descriptor: int, data_dir: Path) -> str:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConflictError(
            f"another gateway uses the data directory {data_dir}",
            hint="Stop the other one first, or set dataDir to another directory to start a standby.",
        ) from None
    except OSError as error:  # some file systems do not support locks
        log.warning("data directory not locked", folder=str(data_dir), error=error.strerror)
        return secrets.token_hex(_NAME_BYTES)
    known = os.pread(descriptor, 2 * _NAME_BYTES, 0).decode(errors="replace")
    if len(known) == 2 * _NAME_BYTES and known.isalnum():
        return known
    made = secrets.token_hex(_NAME_BYTES)
    try:
        os.pwrite(descriptor, made.encode(), 0)
    except OSError as error:
        log.warning(
            "identity not stored; the gateway has another identity after a restart",
            folder=str(data_dir),
            error=error.strerror,
        )
    return made
