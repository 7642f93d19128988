"""Atomic writes of small files; a secret is readable by its owner only at all times."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

SECRET_MODE = 0o600
PUBLIC_MODE = 0o644


def write_file(path: Path, data: bytes, *, mode: int = PUBLIC_MODE) -> bool:
    """Write `data` to `path` atomically; return False if the file is already up to date.

    A reader sees the old content or the new, never a part. The temporary file has `mode` from the start. A missing
    directory is created with mode 0700.
    """
    if _is_unchanged(path, data, mode=mode):
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _is_unchanged(path: Path, data: bytes, *, mode: int) -> bool:
    try:
        return path.stat().st_mode & 0o777 == mode and path.read_bytes() == data
    except FileNotFoundError:
        return False
