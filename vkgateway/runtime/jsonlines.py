"""Logs of JSON lines: rotated files, readable also after a torn write, or standard output."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import structlog

from vkgateway.kube.write_gate import Permit

log = structlog.get_logger(__name__)

ROTATED_FILES = 4
"""Number of rotated files, from NAME.1 (newest) to NAME.4."""
FILE_MODE = 0o600


STANDARD_OUTPUT: Final = "-"
"""Setting of a log that means standard output instead of a file."""
_MAX_HELD_BYTES: Final = 64 * 1024 * 1024


class LineWriter(Protocol):
    """Log to which lines are appended."""

    @property
    def is_empty(self) -> bool:
        """Whether the next line is the first that a reader sees."""

    def append(self, *lines: bytes) -> bool:
        """Write lines of JSON objects, given without newlines; return False if not all of them were written."""


def open_log(target: str, *, name: str, max_bytes: int, permit: Permit | None = None) -> LeaderLog:
    """Return the log that a setting names: a file, or standard output, whose lines have `name` in the field `log`."""
    is_output = target == STANDARD_OUTPUT
    writer = OutputWriter(name) if is_output else JsonLinesWriter(Path(target), max_bytes=max_bytes)
    return LeaderLog(writer, permit)


class LeaderLog:
    """Log that only the leader writes, so that several gateways may share a file.

    Lines are held back while `permit` is not valid, and written in their order when it is valid again. A process that
    another leader has replaced drops them with itself: their decisions were not carried out.
    """

    def __init__(self, writer: LineWriter, permit: Permit | None) -> None:
        self._writer = writer
        self._permit = permit
        self._held: list[bytes] = []

    @property
    def is_empty(self) -> bool:
        """Whether the next line is the first that a reader sees."""
        return self._writer.is_empty and not self._held

    def append(self, *lines: bytes) -> bool:
        """Write or hold lines; return False if lines were dropped."""
        if not lines:
            return True
        self._held.extend(lines)
        if self.flush():
            return True
        if self._is_permitted() or sum(map(len, self._held)) > _MAX_HELD_BYTES:
            self._held.clear()
            return False
        return True

    def flush(self) -> bool:
        """Write the held lines if that is permitted; return whether none is left."""
        if self._held and self._is_permitted() and self._writer.append(*self._held):
            self._held.clear()
        return not self._held

    def _is_permitted(self) -> bool:
        return self._permit is None or self._permit.is_valid


class OutputWriter:
    """Writer to standard output, for a log collector. Each line has the name of its log in the field `log`."""

    is_empty = False

    def __init__(self, name: str) -> None:
        self._start = b'{"log":"' + name.encode() + b'",'

    def append(self, *lines: bytes) -> bool:
        """Write lines; return False if standard output is closed."""
        try:
            sys.stdout.buffer.write(b"".join(self._start + line[1:] + b"\n" for line in lines))
            sys.stdout.buffer.flush()
        except (OSError, ValueError):
            return False
        return True


class JsonLinesWriter:
    """Writer that appends lines to `path` and rotates the file at `max_bytes`."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._failed = False
        self._last_line_checked = False
        """Whether the file was checked for an incomplete last line of a killed process."""

    @property
    def is_empty(self) -> bool:
        """Whether the next line is the first of its file."""
        try:
            return not self._path.stat().st_size
        except OSError:
            return True

    def append(self, *lines: bytes) -> bool:
        """Write lines, given without newlines; return False if not all of them were written.

        A failing log does not stop the gateway: the failure and the recovery are each logged once.
        """
        if not lines:
            return True
        try:
            self._write_bytes(b"".join(line + b"\n" for line in lines))
        except OSError as error:
            if not self._failed:
                log.warning("cannot write log file", file=str(self._path), error=error.strerror or str(error))
            self._failed, self._last_line_checked = True, False
            return False
        if self._failed:
            log.info("log file is writable again", file=str(self._path))
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
    """Return the path of a rotated file; 1 is the newest."""
    return path.with_name(f"{path.name}.{number}")


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of one file, except empty lines and an incomplete last line.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as lines:
        for line in lines:
            # The last line is incomplete if its writer was killed.
            if line.endswith(b"\n") and line.strip():
                yield line


def read_rotated_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of the rotated files and of the current file, oldest first; missing files are skipped.

    Raises:
        OSError: an existing file cannot be read.
    """
    for file in (*(rotated_path(path, number) for number in range(ROTATED_FILES, 0, -1)), path):
        with contextlib.suppress(FileNotFoundError):
            yield from read_lines(file)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def is_last_line_complete(path: Path) -> bool:
    """Return whether the file is empty or ends with a newline.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"
