"""A log of JSON lines in a file: appended to, put aside when it is large, read also where a line was torn."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

ROTATED_FILES = 4
"""So many files that were put aside are kept: NAME.1, the newest, to NAME.4."""
FILE_MODE = 0o600


class JsonLinesWriter:
    """Appends lines to `path`; once it has `most` bytes it is put aside, and a new file begun."""

    def __init__(self, path: Path, *, most: int) -> None:
        self._path = path
        self._max_bytes = most
        self._failed = False
        self._last_line_checked = False
        """Whether the last line, perhaps of a process that was stopped in the middle of it, was looked at."""

    @property
    def is_empty(self) -> bool:
        """Whether what is written next is the first of its file."""
        try:
            return not self._path.stat().st_size
        except OSError:
            return True

    def append(self, *lines: bytes) -> bool:
        """Write lines, each without its end; False: they are not written, or not all of them.

        A log that cannot be written to is no reason to stop: that is said once, and again when it works again.
        """
        if not lines:
            return True
        try:
            self._write_bytes(b"".join(line + b"\n" for line in lines))
        except OSError as error:
            if not self._failed:
                log.warning("log file is not written", file=str(self._path), error=error.strerror or str(error))
            self._failed, self._last_line_checked = True, False
            return False
        if self._failed:
            log.info("log file is written again", file=str(self._path))
        self._failed = False
        return True

    def _write_bytes(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab", opener=_open_private) as file:
            size = file.seek(0, 2)
            if size and not self._last_line_checked and not is_last_line_complete(self._path):
                data = b"\n" + data
            self._last_line_checked = True
            file.write(data)
        if size + len(data) >= self._max_bytes:
            self._rotate_files()

    def _rotate_files(self) -> None:
        for number in range(ROTATED_FILES, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                rotated_path(self._path, number - 1).replace(rotated_path(self._path, number))
        self._path.replace(rotated_path(self._path, 1))


def rotated_path(path: Path, number: int) -> Path:
    """Where the file is put when it is large; 1 is the newest."""
    return path.with_name(f"{path.name}.{number}")


def read_lines(path: Path) -> Iterator[bytes]:
    """All lines of one file; empty ones, and a last one without its end, are left out.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as lines:
        for line in lines:
            # The last line has no end where its writer was stopped in the middle of it.
            if line.endswith(b"\n") and line.strip():
                yield line


def read_rotated_lines(path: Path) -> Iterator[bytes]:
    """The lines of the file and of those that were put aside, the oldest first; files that are not there have none.

    Raises:
        OSError: a file that is there cannot be read.
    """
    for file in (*(rotated_path(path, number) for number in range(ROTATED_FILES, 0, -1)), path):
        with contextlib.suppress(FileNotFoundError):
            yield from read_lines(file)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def is_last_line_complete(path: Path) -> bool:
    """Whether the file's last line has its end; an empty file has none that misses it.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"
