"""A process's log file: opened for it, kept small, and asked for the line that tells why it ended."""

import os
import re
import shutil
from pathlib import Path

ROTATE_BYTES = 32 * 1024 * 1024
KEPT_ROTATIONS = 2
"""Old files kept, as NAME.log.1 (the younger) and NAME.log.2."""

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
    """A descriptor that appends to the log; created with mode 0600."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def log_size(path: Path) -> int:
    """Its length in bytes; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_error_line(path: Path, *, since: int = 0) -> str:
    """The last line past byte `since` that looks like an error, else the last line at all, cut to 300 characters."""
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


def rotate_log(path: Path, *, limit: int = ROTATE_BYTES, keep: int = KEPT_ROTATIONS) -> bool:
    """Copy a log longer than `limit` bytes aside and empty it; says whether it did.

    The process goes on writing to the same file (it appends, so it continues at the new end). What it writes
    between copy and truncation is lost. When there is no room for the copy, the log is emptied all the same:
    a full disk would hurt more than a missing log.
    """
    if log_size(path) <= limit:
        return False
    for number in range(keep, 1, -1):
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
