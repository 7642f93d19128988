"""Write small files so that a crash never leaves half of one, and a secret is never readable by others."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

SECRET_MODE = 0o600
PUBLIC_MODE = 0o644


def write_file(path: Path, data: bytes, *, mode: int = PUBLIC_MODE) -> bool:
    """Put `data` at `path` by writing beside it and renaming; False where it already stood there.

    The file is created with `mode` from the start, so a secret is at no moment readable by others; its
    folder, where missing, is made private to the user. Whatever reads it meets the old
    bytes or the new, never a part.
    """
    if _is_unchanged(path, data, mode=mode):
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return True


def _is_unchanged(path: Path, data: bytes, *, mode: int) -> bool:
    try:
        return path.stat().st_mode & 0o777 == mode and path.read_bytes() == data
    except FileNotFoundError:
        return False
