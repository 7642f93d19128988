"""The log file of a process: opened, rotated, and searched for the error that ended the process."""

import os
import re
import shutil
from pathlib import Path
from typing import BinaryIO

ROTATE_BYTES = 32 * 1024 * 1024
KEPT_ROTATIONS = 2
"""Rotated files kept: NAME.log.1 (the newest) and NAME.log.2."""

_BLOCK = 64 * 1024
_TAIL_BYTES = 16 * 1024
_LINE_CHARACTERS = 300
_ERROR_LINE = re.compile(
    r"""^(\S+\ )?(error|fatal|panic|usage\ error)\b   # Error: unknown flag; panic: ...; python: error: ...
    |^[EF]\d{4}\ \d                                   # klog's error and fatal lines
    |"level":"(error|fatal|panic)"                    # zap (etcd)
    |\blevel=(error|fatal|panic)\b                    # logrus (containerd)
    |^\w+(\.\w+)*(Error|Exception)\b                  # the end of a Python traceback
    """,
    re.VERBOSE | re.IGNORECASE,
)


def open_log(path: Path) -> int:
    """Return a descriptor that appends to the log; create it with mode 0600."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def log_size(path: Path) -> int:
    """Return the length in bytes; 0 if there is no log."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_error_line(path: Path, *, since: int = 0) -> str:
    """Return the last line after byte `since` that looks like an error, else the last line, cut to 300 characters."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(since if since <= end else 0, end - _TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    lines = [line for line in lines if line]
    errors = [line for line in lines if _ERROR_LINE.search(line)]
    return (errors or lines or [""])[-1][:_LINE_CHARACTERS]


def last_lines(file: BinaryIO, count: int) -> bytes:
    """Return the last `count` lines and leave `file` at its end; reads backwards, so the length does not matter."""
    position = file.seek(0, os.SEEK_END)
    end, tail = position, b""
    while position > 0 and tail.count(b"\n") <= count:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        tail = file.read(size) + tail
    file.seek(end)
    lines = tail.removesuffix(b"\n").split(b"\n")[-count:] if count and tail else []
    return b"\n".join(lines) + (b"\n" if lines and tail.endswith(b"\n") else b"")


def rotate_log(path: Path, *, limit: int = ROTATE_BYTES) -> bool:
    """Rotate a log longer than `limit` bytes by copy and truncate; return whether it did.

    The process keeps writing to the same file: it appends, so it continues at the new end. Output between copy and
    truncation is lost. If there is no space for the copy, the log is truncated all the same: a full disk is worse than
    a missing log.
    """
    if log_size(path) <= limit:
        return False
    for number in range(KEPT_ROTATIONS, 1, -1):
        younger = _rotated_path(path, number - 1)
        if younger.exists():
            younger.replace(_rotated_path(path, number))
    try:
        shutil.copyfile(path, _rotated_path(path, 1))
        _rotated_path(path, 1).chmod(0o600)
    except OSError:
        _rotated_path(path, 1).unlink(missing_ok=True)
    os.truncate(path, 0)
    return True


def _rotated_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
